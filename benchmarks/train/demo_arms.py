"""Trains and measures arms, which are variants of the demo's RL training. Several benchmarks import this module.

```
RUNS/
  seed1/
    sft-model/      the run that trained this seed's SFT model, from which every arm starts
    ARM/            the run of an arm, with training/stage1 and training/eval
    ARM.json        the arm's results; an arm with this file is not trained again
```

A run that was killed is resumed. Arms and seeds can be added later. Processes that run at the same time need different
seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from scipy import stats

from rstar2.cli.common import out
from rstar2.cli.training import ProgressRows
from rstar2.data import builtin
from rstar2.data.parquet import rl_rows
from rstar2.demo.pipeline import fine_tuned
from rstar2.demo.recipe import DemoPlan, demo_plan
from rstar2.errors import Failure, UserError
from rstar2.eval.intervals import LEVEL
from rstar2.eval.settings import JudgeChoice
from rstar2.files import write_json
from rstar2.runs import open_run
from rstar2.train.pipeline import Pipeline, open_pipeline
from rstar2.train.records.steps import Metrics, step_metrics
from rstar2.train.sampling import Evaluation

T = TypeVar("T")
WITHOUT_ROUNDS_AND_PASSES = (
    "rl.groups.round=null", "rl.algorithm.loss_weights=tokens", "rl.optim.epochs=1",
)  # fmt: skip
"""The stage defaults of the settings that `recipes/demo.toml` overrides. Each arm has these settings unless its own
keys change them."""
STAGES = ("rl", "stage1", "stage2", "stage3")
"""Keys of the demo's recipe that do not affect the SFT model."""


@dataclass(frozen=True)
class Arm:
    """One way to train."""

    label: str
    """Its name in tables and plots."""
    keys: tuple[str, ...] = ()
    """Settings that replace those of the demo's recipe, such as `rl.optim.lr=6e-4`."""
    steps: int = 10
    points: int = 1
    """How many of its checkpoints are evaluated, at equal intervals of steps. The last one is the final model."""
    colour: str = "#000000"
    fault: str = ""
    """The fault that spoils it on purpose, as in `provoked`; empty for none."""

    def __post_init__(self) -> None:
        if self.steps % self.points:
            raise ValueError(f"{self.label}: {self.steps} steps cannot be divided by {self.points} points")

    @property
    def measured(self) -> range:
        """The steps whose models are evaluated."""
        every = self.steps // self.points
        return range(every, self.steps + 1, every)

    def plan(self, seed: int) -> DemoPlan:
        """Return the demo's plan with the settings of WITHOUT_ROUNDS_AND_PASSES and of this arm. Only its first stage
        is run."""
        every = self.steps // self.points
        keys = [
            *WITHOUT_ROUNDS_AND_PASSES,
            *self.keys,
            f"rl.steps={self.steps}",
            f"rl.checkpoint.every={every}",
        ]
        if self.points > 1:
            keys.append(f"rl.checkpoint.export_every={every}")
        return demo_plan("demo", seed, keys)

    def record(self) -> dict[str, Any]:
        """Return the settings that decide its outcome. A saved outcome with other settings is refused."""
        return {"keys": list(self.keys), "steps": self.steps, "points": self.points, "fault": self.fault}


@dataclass(frozen=True)
class ArmRun:
    """An arm's run for one seed."""

    arm: Arm
    seed: int
    pipeline: Pipeline = field(repr=False)
    sft: Path
    """The SFT model that it starts from."""
    sft_numbers: dict[str, Any]
    """The evaluation of the SFT model, as `measure` returns it."""
    folder: Path

    @property
    def stage(self) -> Path:
        """The folder of the trained stage, with its metrics and models."""
        return self.folder / "training" / "stage1"

    def train(self) -> dict[int, Metrics]:
        """Train the SFT model. Returns the metrics of each step. Finished steps are not repeated."""
        self._train_stage()
        if not self._complete():
            # A kill came between a checkpoint and its line of metrics, or a model could not be exported. A step that
            # has a checkpoint is not repeated, so the whole stage is.
            shutil.rmtree(self.folder / "training")
            self._train_stage()
        return step_metrics(self.stage)

    def measure(self, step: int) -> dict[str, Any]:
        """Evaluate the model of a step on the demo's held-out problems. Returns the numbers of the summary."""
        root = self.folder / "training"
        return evaluated(self.pipeline, self.arm.plan(self.seed), f"step-{step}", self._model(step), root)

    def _train_stage(self) -> None:
        plan = self.arm.plan(self.seed)
        problems = builtin.training(plan.demo.seed, plan.demo.problems.train, skip=plan.demo.traces.count)
        rows = rl_rows(problems, plan.stages[1].rollout.rollouts, "builtin")
        stages = {1: plan.stages[1]}
        title = f"seed {self.seed} {self.folder.name} "
        list(self.pipeline.train_stages(stages, self.sft, rows, self.folder / "training", title))

    def _model(self, step: int) -> Path:
        return self.stage / ("model" if step == self.arm.steps else f"models/step-{step}")

    def _complete(self) -> bool:
        steps = len(step_metrics(self.stage))
        return steps == self.arm.steps and all(self._model(step).is_dir() for step in self.arm.measured)


def evaluated(pipeline: Pipeline, plan: DemoPlan, name: str, model: Path, root: Path) -> dict[str, Any]:
    """Evaluate a model on the demo's held-out problems. Returns the numbers of the summary. Traces are saved below
    `root`."""
    held_out = builtin.held_out(plan.demo.seed, plan.demo.problems.held_out)
    evaluation = Evaluation(held_out, plan.demo.eval)
    return pipeline.evaluate(name, model, evaluation, root, f"{root.parent.name} ")


def rollout_tokens(step: Metrics) -> float:
    """Return the number of tokens of a step's rollouts, tool output included.

    It includes rollouts that were not trained on, and extra rollouts that began after failed calls (`recover`).
    """
    return float(step["rstar2/tokens"] * step["rstar2/rollouts"] + step.get("rstar2/recover/tokens", 0.0))


def run_arms(
    title: str,
    arms: Mapping[str, Arm],
    seeds: Iterable[int],
    runs: Path,
    outcome: Callable[[ArmRun], Any],
) -> None:
    """Train and measure each arm for each seed, unless it is finished. An arm's outcome is saved as JSON.

    Args:
        title: the kind of run, which is stored in the run folders.
        arms: the arms, keyed by the names of their files.
        outcome: trains and measures an arm, and returns the outcome that is saved.

    Raises:
        Failure: if an arm failed. The error is raised after all other arms have run. Call the function again to retry
            the failed arms.
    """
    failures: list[str] = []
    for seed in seeds:
        folder = runs / f"seed{seed}"
        missing = {name: arm for name, arm in arms.items() if not _is_finished(folder, name, arm)}
        if not missing:
            continue
        first = next(iter(arms.values())).plan(seed)
        with _opened(folder / "sft-model", title, first, _of_sft) as pipeline:
            sft = fine_tuned(first, pipeline)
            numbers = evaluated(pipeline, first, "step-0", sft, folder / "sft-model")
        for name, arm in missing.items():
            try:
                with _opened(folder / name, title, arm.plan(seed), DemoPlan.compared) as pipeline:
                    result = outcome(ArmRun(arm, seed, pipeline, sft, numbers, folder / name))
            except Failure as failure:
                failures.append(f"seed {seed}, {name}: {failure.message}")
                out.print(f"failed: {failures[-1]}", style="red", markup=False)
                continue
            write_json(_record(folder, name), {"arm": arm.record(), "result": result})
    if failures:
        raise Failure("\n".join(failures), "The same command tries them again.")


def finished(runs: Path, arms: Mapping[str, Arm]) -> dict[int, dict[str, Any]]:
    """Return the saved outcomes, keyed by seed and name of the arm. The arms of a seed are in the order of `arms`.

    Raises:
        UserError: if an arm of this name was trained with other keys.
    """
    outcomes = {}
    for seed in sorted(int(folder.name.removeprefix("seed")) for folder in runs.glob("seed*")):
        folder = runs / f"seed{seed}"
        found = {name: _read(folder, name) for name, arm in arms.items() if _is_finished(folder, name, arm)}
        if found:
            outcomes[seed] = found
    return outcomes


def with_all(outcomes: Mapping[int, Mapping[str, T]], arms: Iterable[str]) -> dict[int, dict[str, T]]:
    """Return the outcomes of these arms, for the seeds for which all of these arms have finished."""
    names = list(arms)
    return {
        seed: {name: each[name] for name in names}
        for seed, each in outcomes.items()
        if all(name in each for name in names)
    }


def _record(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def _is_finished(folder: Path, name: str, arm: Arm) -> bool:
    path = _record(folder, name)
    if not path.exists():
        return False
    written = json.loads(path.read_text(encoding="utf-8"))
    # Earlier versions wrote the result alone.
    if isinstance(written, dict) and "result" in written and written["arm"] != arm.record():
        raise UserError(f"{path} was made with {written['arm']}", f"Remove it and {folder / name}.")
    return True


def _read(folder: Path, name: str) -> Any:
    written = json.loads(_record(folder, name).read_text(encoding="utf-8"))
    return written["result"] if isinstance(written, dict) and "result" in written else written


def _of_sft(config: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a config that determines the SFT model."""
    compared = DemoPlan.compared(config)
    demo = {key: value for key, value in compared["demo"].items() if key not in STAGES}
    return {"demo": demo, "sft": compared["sft"]}


@contextmanager
def _opened(
    folder: Path, title: str, plan: DemoPlan, compared: Callable[[dict[str, Any]], dict[str, Any]]
) -> Iterator[Pipeline]:
    with (
        open_run(folder, title, plan.config(), compared=compared) as run,
        ProgressRows() as progress,
        open_pipeline(run, progress, JudgeChoice(preload=False)) as pipeline,
    ):
        yield pipeline


@dataclass(frozen=True)
class Figure:
    """A number of an arm's outcome, and how tables show it."""

    title: str
    scale: float = 1.0
    """The factor by which it is multiplied."""
    digits: int = 1
    compared: bool = True
    """Whether the difference from the baseline is shown too."""

    def cell(self, values: Sequence[float], baseline: Sequence[float] | None = None) -> str:
        """Return the mean over seeds, and with `baseline` also the mean paired difference and its interval.

        Args:
            values: one for each seed.
            baseline: the baseline's values for the same seeds.
        """
        mean = f"{self.scale * np.mean(values):,.{self.digits}f}"
        return mean if baseline is None else f"{mean}; {self.difference(values, baseline)}"

    def difference(self, values: Sequence[float], baseline: Sequence[float]) -> str:
        """Return the mean paired difference, with its interval over the seeds if there are two or more."""
        differences = [self.scale * (one - other) for one, other in zip(values, baseline, strict=True)]
        low, high = interval(differences)
        between = "" if math.isnan(low) else f" ({low:+,.{self.digits}f} to {high:+,.{self.digits}f})"
        return f"{np.mean(differences):+,.{self.digits}f}{between}"


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return Student's t interval of the mean over seeds, or NaN for a single seed."""
    if len(values) < 2:
        return math.nan, math.nan
    limits = stats.ttest_1samp(values, 0.0).confidence_interval(LEVEL)
    return float(limits.low), float(limits.high)


def compared_cells(
    seeds: Sequence[Mapping[str, Mapping[str, float]]], figures: Mapping[str, Figure], baseline: str
) -> dict[str, list[str]]:
    """Return the cells of each arm, one for each figure, compared with the arm `baseline`.

    Args:
        seeds: one dict per seed, from each arm to its figures.
    """
    cells = {}
    for arm in seeds[0]:
        compared = arm != baseline
        cells[arm] = [
            figure.cell(
                [each[arm][name] for each in seeds],
                [each[baseline][name] for each in seeds] if compared and figure.compared else None,
            )
            for name, figure in figures.items()
        ]
    return cells


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [titles, ["---"] * len(titles), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def figures_by_arm(
    outcomes: Mapping[int, Mapping[str, Mapping[str, float]]],
    figures: Mapping[str, Figure],
    arms: Mapping[str, Arm],
) -> str:
    """Return a table with a row for each figure and a column for each arm. The first arm is the baseline."""
    seeds = list(outcomes.values())
    cells = compared_cells(seeds, figures, next(iter(arms)))
    rows = zip([figure.title for figure in figures.values()], *cells.values(), strict=True)
    return table(["", *(arms[name].label for name in cells)], rows)


def common_parser(description: str | None, runs: str, seeds: int) -> argparse.ArgumentParser:
    """Return a parser with the options that all of these benchmarks have, and their defaults."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=seeds, help="the number of seeds")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path(runs))
    parser.add_argument(
        "--show", action="store_true", help="print the results of finished runs, without training"
    )
    return parser


def seeds_of(options: argparse.Namespace) -> range:
    """Return the seeds that the options request."""
    return range(options.first_seed, options.first_seed + options.seeds)
