"""GRPO-RoC beside plain GRPO, rivals, and ways to save rollouts: the demo's model, at equal steps and rollout tokens.

    python benchmarks/train/roc_vs_grpo.py --seeds 5 --runs runs/roc-vs-grpo --plot docs/pictures/roc-vs-grpo.svg
    python benchmarks/train/roc_vs_grpo.py --seeds 5 --arm grpo-roc --arm grpo-g --arm rounds     only these
    python benchmarks/train/roc_vs_grpo.py --runs runs/roc-vs-grpo --show          what is finished, without training

For each seed one SFT model is made, and every arm trains it by the recipe of the demo's first stage. Models on the way
are measured on the demo's held-out problems. A run that was killed resumes; what is finished is kept in
RUNS/seedN/ARM.json, so that arms can be added later. Only seeds of which every arm asked for is finished are shown. A
seed of five arms took 45 minutes on two cores that other programs used too (load 20).
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from rstar2.cli.training import ProgressRows
from rstar2.data import builtin
from rstar2.data.parquet import rl_rows
from rstar2.demo.pipeline import fine_tuned
from rstar2.demo.recipe import DemoPlan, DemoRecipe, demo_plan
from rstar2.eval.intervals import LEVEL
from rstar2.eval.settings import JudgeChoice
from rstar2.files import write_json, write_text
from rstar2.runs import open_run
from rstar2.train.pipeline import Pipeline, open_pipeline
from rstar2.train.records.steps import Metrics, step_metrics
from rstar2.train.sampling import Evaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

G = 4
"""Rollouts a problem that are trained on, as in the demo; it rolls out 2G."""
ROC = "grpo-roc"
ARMS = {
    ROC: ["rl.select=roc"],
    "grpo-g": ["rl.select=random", f"rl.rollout.rollouts={G}"],
    "grpo-2g": ["rl.select=random", f"rl.groups.keep={2 * G}"],
    "void-turn": ["rl.select=void_turn"],
    "drop-all-failed": ["rl.select=all_failed"],
    "posterior": ["rl.curriculum=posterior"],
    "rounds": [f"rl.groups.round={G}", "rl.algorithm.loss_weights=problems"],
    "posterior-rounds": [
        "rl.curriculum=posterior",
        f"rl.groups.round={G}",
        "rl.algorithm.loss_weights=problems",
    ],
}
"""The recipe's keys that each changes. The second writes half the tokens a step and so trains for twice the steps."""
LABELS = {
    ROC: "GRPO-RoC, 2G → G",
    "grpo-g": "GRPO, G",
    "grpo-2g": "GRPO, 2G",
    "void-turn": "void-turn, 2G → G",
    "drop-all-failed": "drop-all-failed, 2G → G",
    "posterior": "GRPO-RoC, posterior",
    "rounds": "GRPO-RoC, rounds",
    "posterior-rounds": "GRPO-RoC, posterior, rounds",
}
COLOURS = ("#1f6feb", "#d97706", "#b91c1c", "#15803d", "#7c3aed", "#0891b2", "#be185d", "#4d7c0f")
MEASURES = {
    "accuracy": ("accuracy, %", 100.0),
    "failed_calls": ("failed calls in correct traces, %", 100.0),
    "trace_tokens": ("tokens a trace", 1.0),
}
"""Of a `Point`: the title, and what it is multiplied by to be shown."""


@dataclass(frozen=True)
class Point:
    """A model on its way, measured on held-out problems."""

    step: int
    rollout_tokens: float
    """Written in training up to here, tool output included, in rollouts that were not kept too."""
    accuracy: float
    failed_calls: float
    """Failed calls among the calls of correct traces; NaN where these have no call."""
    trace_tokens: float


Seeds = dict[int, dict[str, list[Point]]]
"""Each arm's points from step 0 on, for every seed."""


def arm_plan(seed: int, arm: str, steps: int) -> DemoPlan:
    """The demo's plan with an arm's selection; of its stages only the first is run."""
    total, every = steps * (2 if arm == "grpo-g" else 1), steps // 2
    measured = [f"rl.checkpoint.every={every}", f"rl.checkpoint.export_every={every}"]
    return demo_plan("demo", seed, [*ARMS[arm], f"rl.steps={total}", *measured])


def run_seed(seed: int, arms: Sequence[str], steps: int, folder: Path) -> None:
    """Train and measure the arms of a seed that are not finished."""
    records = {arm: folder / f"{arm}.json" for arm in arms}
    if all(record.exists() for record in records.values()):
        return
    plans = {arm: arm_plan(seed, arm, steps) for arm in arms}
    with opened(folder / "sft-model", arm_plan(seed, ROC, steps)) as pipeline:
        sft = fine_tuned(arm_plan(seed, ROC, steps), pipeline)
        first = measure(pipeline, plans[arms[0]].demo, 0, 0.0, sft, folder / "sft-model")
    for arm, plan in plans.items():
        if records[arm].exists():
            continue
        with opened(folder / arm, plan) as pipeline:
            points = [first, *run_arm(pipeline, plan, sft, folder / arm / "training")]
        write_json(records[arm], [asdict(point) for point in points])


@contextmanager
def opened(folder: Path, plan: DemoPlan) -> Iterator[Pipeline]:
    """The pipeline of a run in this folder."""
    with (
        open_run(folder, "roc-vs-grpo", plan.config()) as run,
        ProgressRows() as progress,
        open_pipeline(run, progress, JudgeChoice(preload=False)) as pipeline,
    ):
        yield pipeline


def run_arm(pipeline: Pipeline, plan: DemoPlan, sft: Path, root: Path) -> list[Point]:
    """Train one arm from the SFT model, and measure the models on its way."""
    demo, recipe, stage = plan.demo, plan.stages[1], root / "stage1"
    problems = builtin.training(demo.seed, demo.problems.train, skip=demo.traces.count)
    rows = rl_rows(problems, recipe.rollout.rollouts, "builtin")
    measured = range(0, recipe.steps + 1, recipe.checkpoint.export_every)[1:]
    models = {step: stage / "models" / f"step-{step}" for step in measured}
    title = f"{root.parent.name} "

    def trained() -> dict[int, Metrics]:
        list(pipeline.train_stages({1: recipe}, sft, rows, root, title))
        return step_metrics(stage)

    steps = trained()
    if len(steps) < recipe.steps or not all(model.is_dir() for model in models.values()):
        # A kill came between a checkpoint and its line, or a model could not be made; a saved step is not repeated.
        shutil.rmtree(root)
        steps = trained()
    written = np.cumsum([_tokens(each) for each in steps.values()])
    return [measure(pipeline, demo, step, float(written[step - 1]), models[step], root) for step in measured]


def _tokens(step: Metrics) -> float:
    """All tokens of a step's rollouts, and of those that began after failed calls."""
    return float(step["rstar2/tokens"] * step["rstar2/rollouts"] + step.get("rstar2/recover/tokens", 0.0))


def measure(pipeline: Pipeline, demo: DemoRecipe, step: int, tokens: float, model: Path, root: Path) -> Point:
    """A model on the demo's held-out problems; keeps the traces in `root`."""
    evaluation = Evaluation(builtin.held_out(demo.seed, demo.problems.held_out), demo.eval)
    found = pipeline.evaluate(f"step-{step}", model, evaluation, root, f"{root.name} ")
    failed = found["failed_call_ratio_correct"]
    failed = math.nan if failed is None else failed
    return Point(step, tokens, found["accuracy"], failed, found["mean_tokens"])


def finished(runs: Path, arms: Sequence[str]) -> Seeds:
    """The seeds of which every one of these arms is finished."""
    seeds = {}
    for folder in sorted(runs.glob("seed*"), key=lambda folder: int(folder.name.removeprefix("seed"))):
        records = {arm: folder / f"{arm}.json" for arm in arms}
        if all(record.exists() for record in records.values()):
            points = {arm: json.loads(record.read_text(encoding="utf-8")) for arm, record in records.items()}
            seeds[int(folder.name.removeprefix("seed"))] = {
                arm: [Point(**point) for point in each] for arm, each in points.items()
            }
    return seeds


def between(points: Sequence[Point], axis: str, value: float) -> dict[str, float]:
    """Every figure where `axis`, a figure that grows, is at `value`: on the line between the two points around it."""
    rows = [asdict(point) for point in points]
    along = [row[axis] for row in rows]
    return {name: float(np.interp(value, along, [row[name] for row in rows])) for name in rows[0]}


def matched(arms: dict[str, list[Point]], axis: str) -> dict[str, dict[str, float]]:
    """Each arm's figures where all have come as far along `axis` as the one that ends first."""
    shortest = min(asdict(points[-1])[axis] for points in arms.values())
    return {arm: between(points, axis, shortest) for arm, points in arms.items()}


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's t interval of the mean over seeds; NaN for a single seed."""
    if len(values) < 2:
        return math.nan, math.nan
    found = stats.ttest_1samp(values, 0.0).confidence_interval(LEVEL)
    return float(found.low), float(found.high)


def compared(seeds: Seeds, axis: str) -> str:
    """A Markdown table, a row an arm: means over seeds, and the paired difference from GRPO-RoC with its interval."""
    titles = ["arm", "steps", "rollout tokens", *(title for title, _ in MEASURES.values())]
    lines = [titles, ["---"] * len(titles)]
    at = [matched(arms, axis) for arms in seeds.values()]
    for arm in next(iter(seeds.values())):
        cells = [f"{np.mean([each[arm][name] for each in at]):,.0f}" for name in ("step", "rollout_tokens")]
        for name, (_, scale) in MEASURES.items():
            mean = np.mean([scale * each[arm][name] for each in at])
            differences = [scale * (each[arm][name] - each[ROC][name]) for each in at]
            low, high = interval(differences)
            between_seeds = "" if math.isnan(low) else f" ({low:+.1f} to {high:+.1f})"
            beside = "" if arm == ROC else f"; {np.mean(differences):+.1f}{between_seeds}"
            cells.append(f"{mean:.1f}{beside}")
        lines.append([LABELS[arm], *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_csv(seeds: Seeds, path: Path) -> None:
    """Every point of every arm and seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["seed", "arm", *Point.__dataclass_fields__])
    for seed, arms in seeds.items():
        for arm, points in arms.items():
            writer.writerows([seed, arm, *(f"{v:.6g}" for v in asdict(point).values())] for point in points)
    write_text(path, text.getvalue())


def write_plot(seeds: Seeds, path: Path) -> None:
    """Means over seeds with their intervals, against steps and against rollout tokens."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "rstar2"
    matplotlib.rcParams["svg.fonttype"] = "none"
    shown = list(next(iter(seeds.values())))
    figure, axes = plt.subplots(2, len(MEASURES), figsize=(12, 6.4), layout="constrained", sharey="col")
    for row, (along, title) in enumerate((("step", "step"), ("rollout_tokens", "rollout tokens, thousands"))):
        for axis, (name, (measure, scale)) in zip(axes[row], MEASURES.items(), strict=True):
            for arm in shown:
                points, colour = [arms[arm] for arms in seeds.values()], COLOURS[list(ARMS).index(arm)]
                _draw(axis, points, along, name, scale, colour, LABELS[arm])
            axis.set_title(measure, fontsize=10)
            axis.set_xlabel(title)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(axis="y", alpha=0.25)
    figure.legend(
        *axes[0][0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=min(len(shown), 5),
        frameon=False,
    )
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    plt.close(figure)
    write_text(path, drawn.getvalue())


def _draw(
    axis: Axes, runs: list[list[Point]], along: str, name: str, scale: float, colour: str, label: str
) -> None:
    """One arm: at each measured step the mean over seeds."""
    across = [[asdict(point) for point in points] for points in zip(*runs, strict=True)]
    thousand = 1000.0 if along == "rollout_tokens" else 1.0
    x = [np.mean([point[along] for point in points]) / thousand for points in across]
    values = [[scale * point[name] for point in points] for points in across]
    means = [float(np.mean(each)) for each in values]
    half = [mean - interval(each)[0] for mean, each in zip(means, values, strict=True)]
    axis.errorbar(
        x, means, yerr=half, color=colour, label=label, marker="o", markersize=3, capsize=2, elinewidth=0.8
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="how many, from seed 1 on")
    parser.add_argument(
        "--steps", type=int, default=10, help="of every arm, an even number; GRPO with G: twice as many"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/roc-vs-grpo"))
    parser.add_argument("--plot", type=Path, help="an SVG; the data stand beside it as CSV")
    parser.add_argument("--arm", action="append", choices=ARMS, help="one of those to run; all by default")
    parser.add_argument("--show", action="store_true", help="only show what is finished")
    given = parser.parse_args()
    if given.steps < 2 or given.steps % 2:
        parser.error(f"--steps {given.steps} is not an even number")
    # GRPO-RoC is what the others are compared with.
    arms = [arm for arm in ARMS if given.arm is None or arm in (ROC, *given.arm)]
    if not given.show:
        for seed in range(1, given.seeds + 1):
            run_seed(seed, arms, given.steps, given.runs / f"seed{seed}")
    seeds = finished(given.runs, arms)
    if not seeds:
        parser.exit(1, f"no seed in {given.runs} is finished\n")
    for axis, name in (("step", "steps"), ("rollout_tokens", "rollout tokens")):
        print(f"\nAt equal {name}, seeds {', '.join(map(str, seeds))}:\n\n{compared(seeds, axis)}")
    if given.plot:
        write_plot(seeds, given.plot)
        write_csv(seeds, given.plot.with_suffix(".csv"))


if __name__ == "__main__":
    main()
