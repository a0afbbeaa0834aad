"""Groups in rounds beside groups that are made at once, in VERL's modes `sync` and `colocate_async`: the demo's model.

    python benchmarks/train/rounds_demo.py --seeds 1 --runs runs/rounds
    python benchmarks/train/rounds_demo.py --runs runs/rounds --show         what is finished, without training

For each seed one SFT model is made, and every arm trains it by the recipe of the demo's first stage for the same number
of steps, with `algorithm.loss_weights` = "problems" in all of them. The models are measured on the demo's held-out
problems. What is finished is kept in RUNS/seedN/ARM.json.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from rstar2.cli.common import out
from rstar2.cli.training import ProgressRows
from rstar2.data import builtin
from rstar2.data.parquet import rl_rows
from rstar2.demo.pipeline import fine_tuned
from rstar2.demo.recipe import DemoPlan, demo_plan
from rstar2.eval.settings import JudgeChoice
from rstar2.files import write_json
from rstar2.runs import open_run
from rstar2.train.pipeline import Pipeline, open_pipeline
from rstar2.train.records.steps import step_metrics
from rstar2.train.records.timing import read_timing
from rstar2.train.sampling import Evaluation

ROUNDS = ["rl.groups.round=4"]
ASYNC = ["rl.mode=colocate_async", "rl.algorithm.correction=token-tis"]
ARMS = {"sync": [], "sync, rounds": ROUNDS, "async": ASYNC, "async, rounds": [*ASYNC, *ROUNDS]}
"""The recipe's keys that each changes; the demo has 2G = 8 and G = 4."""
STEPS = 10


@dataclass(frozen=True)
class Outcome:
    """What an arm came to, over all of its steps."""

    rollouts: float
    saved: float
    """Rollouts that rounds did not make."""
    tokens: float
    """Tokens of all rollouts that were made, with tool output."""
    kept: float
    """Rollouts that were trained on."""
    rounds: float
    """Per group, on average."""
    solved: float
    """Groups that stopped because all of their rollouts were correct."""
    mixed: float
    trained_groups: float
    """Share of groups that were trained on."""
    accuracy: float
    """On held-out problems."""
    failed_calls: float
    """Share of failed calls in correct traces there."""
    rollout_s: float
    wall_s: float
    """Seconds of the stage, from its start to its model."""


def plan_of(seed: int, arm: str) -> DemoPlan:
    """The demo's plan with an arm's keys; of its stages only the first is run."""
    same = [f"rl.steps={STEPS}", "rl.algorithm.loss_weights=problems", "rl.checkpoint.every=1000"]
    return demo_plan("demo", seed, [*same, *ARMS[arm]])


def run_seed(seed: int, folder: Path) -> None:
    """Train and measure the arms of a seed that are not finished."""
    plans = {arm: plan_of(seed, arm) for arm in ARMS}
    records = {arm: folder / f"{arm}.json" for arm in ARMS}
    if all(record.exists() for record in records.values()):
        return
    with (
        open_run(folder, "rounds", {arm: plan.config() for arm, plan in plans.items()}) as run,
        ProgressRows() as progress,
        open_pipeline(run, progress, JudgeChoice(preload=False)) as pipeline,
    ):
        sft = fine_tuned(plans["sync"], pipeline)
        for arm, plan in plans.items():
            if not records[arm].exists():
                write_json(
                    records[arm], asdict(run_arm(pipeline, plan, sft, folder / arm.replace(", ", "-")))
                )


def run_arm(pipeline: Pipeline, plan: DemoPlan, sft: Path, root: Path) -> Outcome:
    """Train the SFT model by an arm's recipe, and measure what it becomes."""
    demo, recipe = plan.demo, plan.stages[1]
    problems = builtin.training(demo.seed, demo.problems.train, skip=demo.traces.count)
    rows = rl_rows(problems, recipe.rollout.rollouts, "builtin")
    [(name, model)] = pipeline.train_stages({1: recipe}, sft, rows, root, f"{root.name} ")
    evaluation = Evaluation(builtin.held_out(demo.seed, demo.problems.held_out), demo.eval)
    found = pipeline.evaluate(name, model, evaluation, root, f"{root.name} ")
    steps, timing = list(step_metrics(root / name).values()), read_timing(root / name)

    def total(metric: str) -> float:
        return float(sum(step.get(f"rstar2/{metric}", 0.0) for step in steps))

    return Outcome(
        rollouts=total("rollouts"),
        saved=total("saved_rollouts"),
        tokens=float(sum(step["rstar2/tokens"] * step["rstar2/rollouts"] for step in steps)),
        kept=total("kept"),
        rounds=total("rounds") / len(steps) or 1.0,
        solved=total("decided/solved"),
        mixed=total("decided/mixed"),
        trained_groups=1 - total("dropped_groups") / len(steps),
        accuracy=found["accuracy"],
        failed_calls=found["failed_call_ratio_correct"] or 0.0,
        rollout_s=timing.rollout_s,
        wall_s=timing.wall_s,
    )


SHOWN = {
    "rollouts": ("rollouts", 1.0, 0),
    "saved": ("rollouts saved", 1.0, 0),
    "tokens": ("rollout tokens", 1.0, 0),
    "kept": ("rollouts trained on", 1.0, 0),
    "rounds": ("rounds per group", 1.0, 2),
    "solved": ("groups that stopped as solved", 1.0, 0),
    "mixed": ("groups that stopped as mixed", 1.0, 0),
    "trained_groups": ("groups trained on, %", 100.0, 0),
    "accuracy": ("held-out accuracy, %", 100.0, 1),
    "failed_calls": ("failed calls in correct traces, %", 100.0, 1),
    "rollout_s": ("seconds waiting for rollouts", 1.0, 0),
    "wall_s": ("seconds with start-up and export", 1.0, 0),
}


def finished(runs: Path) -> list[dict[str, dict[str, float]]]:
    """The outcomes of every arm, for each seed of which all arms are finished."""
    return [
        {arm: json.loads((folder / f"{arm}.json").read_text()) for arm in ARMS}
        for folder in sorted(runs.glob("seed*"))
        if all((folder / f"{arm}.json").exists() for arm in ARMS)
    ]


def show(seeds: list[dict[str, dict[str, float]]]) -> None:
    """Print a table in Markdown: the mean of each figure over seeds."""
    out.print(f"{len(seeds)} seeds, the mean of each figure\n")
    out.print(f"| | {' | '.join(ARMS)} |\n|---{'|---' * len(ARMS)}|", markup=False)
    for name, (text, scale, digits) in SHOWN.items():
        means = [scale * float(np.mean([seed[arm][name] for seed in seeds])) for arm in ARMS]
        out.print(
            f"| {text} | {' | '.join(f'{mean:,.{digits}f}' for mean in means)} |",
            markup=False,
            soft_wrap=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs/rounds"))
    parser.add_argument("--show", action="store_true", help="print what is finished, without training")
    given = parser.parse_args()
    if not given.show:
        for seed in range(1, given.seeds + 1):
            run_seed(seed, given.runs / f"seed{seed}")
    seeds = finished(given.runs)
    if not seeds:
        parser.exit(1, f"no seed in {given.runs} is finished\n")
    show(seeds)


if __name__ == "__main__":
    main()
