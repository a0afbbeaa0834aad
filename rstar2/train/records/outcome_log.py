"""The outcomes of a stage's problems on disk: what its curriculum chooses by, and what the stage after it starts from.

```
STAGE/outcomes.jsonl
  {"reward": "paper", "problems": 240}                       the first line
  {"step": 3, "outcomes": {"train-17": [5, 8], …}}           of 8 rollouts with a verdict, 5 are correct
```

The sampler of VERL's trainer appends a line for each step that is trained on. At the trainer's start, lines of steps
after the last checkpoint are removed, because these steps are run again. Outcomes of the stage before are in lines with
steps at 0 and below. A stage that was begun by an earlier version has no such file; it begins when it is resumed.
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
    "useful": "problems whose group is likely to have both outcomes, by the posterior of their pass rates",
    "solved": "problems whose rollouts are all likely to be correct",
    "hopeless": "problems none of whose rollouts is likely to be correct",
    "unseen": "problems that were never asked",
    "prediction_error": "mean distance of the pass rates of the step's problems from those expected of them before",
    "prediction_correlation": "correlation of the two",
}
"""The metrics `rstar2/problems/…` of a step, and what they are."""
Counts = dict[str, tuple[int, int]]
"""By problem, the rollouts that are correct, and all with a verdict."""


@dataclass(frozen=True)
class StepOutcomes:
    """The outcomes of one step."""

    step: int
    counts: Counts

    def to_json(self) -> str:
        return json.dumps({"step": self.step, "outcomes": self.counts}) + "\n"


class OutcomeReader:
    """Reads a stage's outcomes while they are appended."""

    def __init__(self, stage: Path) -> None:
        self._path = stage / OUTCOMES_FILE
        self._position = 0
        self.header: dict[str, Any] = {}
        """The first line; empty before it was read."""
        self.steps: list[StepOutcomes] = []

    def read(self) -> bool:
        """Read what was appended since the last call; returns whether there was anything."""
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
        """The step after the last one with outcomes; 1 before the first."""
        return max((each.step for each in self.steps), default=0) + 1

    def problems(self, ids: Sequence[str], steps: int, rollouts: int) -> Problems:
        """The problems of these ids with their outcomes; others are left out."""
        place = {name: at for at, name in enumerate(ids)}
        rows = [
            (place[name], each.step, correct, total)
            for each in self.steps
            for name, (correct, total) in each.counts.items()
            if name in place
        ]
        return Problems(tuple(ids), self.next_step, steps, rollouts, Outcomes.of(rows))


class OutcomeRecorder:
    """Appends the outcomes of the steps of a stage, and measures what was believed of them before."""

    def __init__(self, stage: Path, rollouts: int, discount: float) -> None:
        self._path = stage / OUTCOMES_FILE
        self._reader = OutcomeReader(stage)
        self._rollouts = rollouts
        self._discount = discount

    def record(self, step: int, rollouts: Sequence[Rollout]) -> dict[str, float]:
        """Record a step's rollouts; those without a verdict are left out. Returns metrics `rstar2/problems/…`.

        Raises OSError if the file cannot be written: a resumed run could not choose the same problems.
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
        """What is believed of the problems that have outcomes."""
        ids = sorted({name for each in self._reader.steps for name in each.counts})
        return ids, self._reader.problems(ids, 0, self._rollouts).belief(self._discount)

    def _shares(self) -> dict[str, float]:
        """How many problems are believed solved, hopeless and useful, and how many were never asked."""
        ids, belief = self._belief()
        solved, hopeless = (int(each(self._rollouts).sum()) for each in (belief.solved, belief.hopeless))
        found = {"solved": solved, "hopeless": hopeless, "useful": len(ids) - solved - hopeless}
        if "problems" in self._reader.header:
            found["unseen"] = self._reader.header["problems"] - len(ids)
        return {f"rstar2/problems/{name}": float(count) for name, count in found.items()}


def counted(rollouts: Sequence[Rollout]) -> Counts:
    """The outcomes of rollouts, by problem. Those that lost a call or that the grader could not decide are left out."""
    verdicts: dict[str, list[bool]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.problem_id and not rollout.lost_calls and not rollout.undecided:
            verdicts[rollout.problem_id].append(rollout.correct)
    return {name: (sum(each), len(each)) for name, each in verdicts.items()}


def _prediction(ids: Sequence[str], belief: Belief, counts: Counts) -> dict[str, float]:
    """How far the pass rates of a step's problems are from what was expected of those that were asked before.

    The correlation is left out if it is undefined: of fewer than two problems, or of equal values.
    """
    expected = dict(zip(ids, belief.mean.tolist(), strict=True))
    pairs = [
        (expected[name], correct / total) for name, (correct, total) in counts.items() if name in expected
    ]
    if not pairs:
        return {}
    predicted, observed = np.array(pairs).T
    found = {"prediction_error": float(np.abs(predicted - observed).mean())}
    if len(pairs) > 1 and predicted.std() > 0 and observed.std() > 0:
        found["prediction_correlation"] = float(np.corrcoef(predicted, observed)[0, 1])
    return {f"rstar2/problems/{name}": value for name, value in found.items()}


def begin(stage: Path, ids: Collection[str], reward: str, model: Path) -> None:
    """Begin the file of a stage that has none, with the outcomes of the stage that made its model, if there are any.

    Outcomes that another reward decided, and those of problems that this stage does not have, are left out.
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
    """The outcomes of the stage that made a model; None if its folder has none."""
    reader = OutcomeReader(model.parent)
    return reader if reader.read() else None


def forget_after(stage: Path, step: int) -> None:
    """Remove the outcomes of the steps after `step`, which are run again, and a line that a kill has torn."""
    reader = OutcomeReader(stage)
    reader.read()
    if not reader.header:
        return
    with whole_file(stage / OUTCOMES_FILE) as file:
        file.write(json.dumps(reader.header) + "\n")
        file.writelines(each.to_json() for each in reader.steps if each.step <= step)
