"""Stores on disk how many rollouts of each problem were correct at each step of a stage. The stage's curriculum and the
next stage use the stored counts.

```
STAGE/outcomes.jsonl
  {"reward": "paper", "problems": 240}                       the first line
  {"step": 3, "outcomes": {"train-17": [5, 8], …}}           5 of 8 rollouts with a verdict are correct
```

The sampler of VERL's trainer appends a line for each step that is trained on. When the trainer starts, lines of steps
after the last checkpoint are removed, because these steps run again. Outcomes that were copied from the previous stage
have step numbers of 0 and below. A stage that began with an earlier version of rstar2 has no outcomes.jsonl until the
stage is resumed.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rstar2.files import whole_file
from rstar2.train.group import Rollout
from rstar2.train.outcomes import Belief, Outcomes, Problems

OUTCOMES_FILE = "outcomes.jsonl"
PROBLEMS = {
    "useful": "number of used problems that are neither solved nor hopeless",
    "solved": "number of problems for which all rollouts of a group would probably be correct",
    "hopeless": "number of problems for which all rollouts of a group would probably be wrong",
    "unseen": "number of problems that were never used",
    "prediction_error": "mean absolute difference of expected and observed pass rates of the step's problems",
    "prediction_correlation": "correlation of expected and observed pass rates of the step's problems",
}
"""Dict from the name of each metric `rstar2/problems/…` of a step to its description."""
Counts = dict[str, tuple[int, int]]
"""Dict from a problem's id to a pair: its number of correct rollouts, and its number of rollouts with a verdict."""


@dataclass(frozen=True)
class StepOutcomes:
    """The outcomes of the problems that one training step used."""

    step: int
    counts: Counts

    def to_json(self) -> str:
        return json.dumps({"step": self.step, "outcomes": self.counts}) + "\n"


class OutcomeReader:
    """Reads a stage's outcomes from their file while the trainer appends to the file."""

    def __init__(self, stage: Path) -> None:
        self._path = stage / OUTCOMES_FILE
        self._position = 0
        self.header: dict[str, Any] = {}
        """The first line of the file; empty until this line has been read."""
        self.steps: list[StepOutcomes] = []

    def read(self) -> bool:
        """Reads the lines that were appended since the last call. Returns True if these lines contain outcomes."""
        if not self._path.exists():
            return False
        with self._path.open("rb") as file:
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        before = len(self.steps)
        for line in whole.splitlines():
            row = json.loads(line)
            if "step" in row:
                counts = {name: (correct, total) for name, (correct, total) in row["outcomes"].items()}
                self.steps.append(StepOutcomes(row["step"], counts))
            else:
                self.header = row
        return len(self.steps) > before

    @property
    def next_step(self) -> int:
        """The number of the step that follows the last step with outcomes; 1 if there are no outcomes."""
        return max((each.step for each in self.steps), default=0) + 1

    def problems(self, ids: Sequence[str], steps: int, rollouts: int) -> Problems:
        """Returns the problems whose ids are in `ids`, with their outcomes.

        Args:
            ids: the ids of the problems. Outcomes of other problems are left out.
            steps: number of steps of the stage.
            rollouts: number of rollouts per problem in a step.
        """
        place = {name: at for at, name in enumerate(ids)}
        rows = [
            (place[name], each.step, correct, total)
            for each in self.steps
            for name, (correct, total) in each.counts.items()
            if name in place
        ]
        return Problems(tuple(ids), self.next_step, steps, rollouts, Outcomes.of(rows))


class OutcomeRecorder:
    """Appends the outcomes of each step of a stage, and measures how well earlier outcomes predicted them.

    Args:
        stage: the stage's folder.
        rollouts: number of rollouts per problem in a step.
        discount: see `rstar2.train.outcomes.Problems.belief`.
    """

    def __init__(self, stage: Path, rollouts: int, discount: float) -> None:
        self._path = stage / OUTCOMES_FILE
        self._reader = OutcomeReader(stage)
        self._rollouts = rollouts
        self._discount = discount

    def record(self, step: int, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Appends the outcomes of a step's rollouts. Rollouts without a verdict are left out.

        Returns:
            The step's metrics, whose names begin with `rstar2/problems/`.

        Raises:
            OSError: the file of outcomes cannot be written. Training cannot continue without the outcomes, because a
                resumed run without the outcomes would choose other problems.
        """
        counts = counted(rollouts)
        self._reader.read()
        before = self._belief()
        line = StepOutcomes(step, counts)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(line.to_json())
            file.flush()
            os.fsync(file.fileno())
        self._reader.read()
        return {**_prediction(*before, counts), **self._shares()}

    def _belief(self) -> tuple[list[str], Belief]:
        """Returns the ids of the problems with outcomes, and the posterior of their pass rates."""
        ids = sorted({name for each in self._reader.steps for name in each.counts})
        return ids, self._reader.problems(ids, 0, self._rollouts).belief(self._discount)

    def _shares(self) -> dict[str, float]:
        """Returns the number of solved, hopeless, useful and unseen problems. `PROBLEMS` explains the four words."""
        ids, belief = self._belief()
        solved, hopeless = (int(each(self._rollouts).sum()) for each in (belief.solved, belief.hopeless))
        counts = {"solved": solved, "hopeless": hopeless, "useful": len(ids) - solved - hopeless}
        if "problems" in self._reader.header:
            counts["unseen"] = self._reader.header["problems"] - len(ids)
        return {f"rstar2/problems/{name}": float(count) for name, count in counts.items()}


def counted(rollouts: Sequence[Rollout]) -> Counts:
    """Returns, for each problem, its number of correct rollouts and its number of rollouts with a verdict.

    Rollouts that lost a call, or whose answer the grader could not decide, are left out.
    """
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.problem_id and not rollout.lost_calls and not rollout.undecided:
            verdicts[rollout.problem_id].append(rollout.correct)
    return {name: (sum(each), len(each)) for name, each in verdicts.items()}


def _prediction(ids: Sequence[str], belief: Belief, counts: Counts) -> dict[str, float]:
    """Compares the pass rates of a step's problems with the pass rates that earlier outcomes predict.

    Problems without earlier outcomes are left out of the comparison. The correlation is left out if it is undefined: if
    there are fewer than two problems, or if all expected or all observed pass rates are equal.
    """
    expected = dict(zip(ids, belief.mean.tolist(), strict=True))
    pairs = [
        (expected[name], correct / total) for name, (correct, total) in counts.items() if name in expected
    ]
    if not pairs:
        return {}
    predicted, observed = np.array(pairs).T
    metrics = {"prediction_error": float(np.abs(predicted - observed).mean())}
    if len(pairs) > 1 and predicted.std() > 0 and observed.std() > 0:
        metrics["prediction_correlation"] = float(np.corrcoef(predicted, observed)[0, 1])
    return {f"rstar2/problems/{name}": value for name, value in metrics.items()}


def begin(stage: Path, ids: Collection[str], reward: str, model: Path) -> None:
    """Creates a stage's file of outcomes, unless the file exists. The new file begins with the outcomes of the stage
    that trained the model.

    All outcomes of the earlier stage are left out if the earlier stage had another reward. Outcomes of problems that
    this stage does not have are left out too.

    Args:
        stage: the stage's folder.
        ids: the ids of the stage's problems.
        reward: the name of the recipe's reward.
        model: the folder of the model that the stage starts from.
    """
    if (stage / OUTCOMES_FILE).exists():
        return
    before = outcomes_of(model)
    known = set(ids)
    with whole_file(stage / OUTCOMES_FILE) as file:
        file.write(json.dumps({"reward": reward, "problems": len(known)}) + "\n")
        if before is not None and before.header.get("reward") == reward:
            last = before.next_step - 1
            for each in before.steps:
                counts = {name: count for name, count in each.counts.items() if name in known}
                file.write(StepOutcomes(each.step - last, counts).to_json())


def outcomes_of(model: Path) -> OutcomeReader | None:
    """Returns the outcomes of the stage that trained a model, or None if there are none."""
    reader = OutcomeReader(model.parent)
    return reader if reader.read() else None


def forget_after(stage: Path, step: int) -> None:
    """Removes the outcomes of all steps after `step`, because these steps will run again. Also removes an incomplete
    last line."""
    reader = OutcomeReader(stage)
    reader.read()
    if not reader.header:
        return
    with whole_file(stage / OUTCOMES_FILE) as file:
        file.write(json.dumps(reader.header) + "\n")
        file.writelines(each.to_json() for each in reader.steps if each.step <= step)
