"""Compares GRPO-RoC (Resampling on Correct) with plain GRPO, other selections, and ways to save rollouts, on the demo.

    python benchmarks/train/roc_vs_grpo.py --seeds 5 --runs runs/roc-vs-grpo --plot docs/pictures/roc-vs-grpo.svg
    python benchmarks/train/roc_vs_grpo.py --seeds 2 --first-seed 11 --arm rounds --arm roc-m8    only these two
    python benchmarks/train/roc_vs_grpo.py --runs runs/roc-vs-grpo --show      print finished results, without training

For each seed, one SFT model is trained. Every arm then trains a copy of it in the demo's first stage. Unlike in the
demo, all rollouts of a group start at once, and each step makes one pass over its rollouts, unless the arm changes
this. The final model and intermediate ones are evaluated on the demo's held-out problems. `demo_arms` describes the
folders: killed runs are resumed, and arms can be added later. GRPO-RoC and plain GRPO with G are always among the arms.
Prints three tables: at equal steps, at equal rollout tokens, and at half of GRPO-RoC's rollout tokens. The first two
tables use only the seeds for which all arms have finished. In the third, each arm uses all of its finished seeds. A
seed with five arms took 45 minutes on two busy cores (load 20).
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from demo_arms import (
    Arm,
    ArmRun,
    Figure,
    common_parser,
    compared_cells,
    finished,
    interval,
    rollout_tokens,
    run_arms,
    seeds_of,
    table,
    with_all,
)

from rstar2.files import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

G = 4
"""Number of rollouts per problem that are trained on, as in the demo. GRPO-RoC rolls out 2G."""
ROC, PLAIN = "grpo-roc", "grpo-g"
PLAIN_G = ("rl.select=random", f"rl.rollout.rollouts={G}")
POSTERIOR = ("rl.curriculum=posterior",)
ROUNDS = (f"rl.groups.round={G}", "rl.algorithm.loss_weights=problems")


def epochs(count: int) -> tuple[str, ...]:
    """Return the setting with which every step trains on its rollouts `count` times."""
    return (f"rl.optim.epochs={count}",)


def mini_batches(problems: int) -> tuple[str, ...]:
    """Return the setting for updates of at most this many problems. With 16 problems per step, 8 makes two updates per
    step."""
    return (f"rl.verl.actor_rollout_ref.actor.ppo_mini_batch_size={problems}",)


ARMS = {
    # The plot shows the first five. Plain GRPO with G writes half of the tokens per step.
    ROC: Arm("GRPO-RoC, 2G → G", ("rl.select=roc",), 10, 2, "#1f6feb"),
    PLAIN: Arm("GRPO, G", PLAIN_G, 20, 4, "#d97706"),
    "grpo-2g": Arm("GRPO, 2G", ("rl.select=random", f"rl.groups.keep={2 * G}"), 10, 2, "#b91c1c"),
    "void-turn": Arm("void_turn, 2G → G", ("rl.select=void_turn",), 10, 2, "#15803d"),
    "drop-all-failed": Arm("all_failed, 2G → G", ("rl.select=all_failed",), 10, 2, "#7c3aed"),
    # The other arms try to learn as much from fewer rollouts. All except plain GRPO have the selection "roc".
    "posterior": Arm("RoC, posterior", POSTERIOR, 10, 2, "#0891b2"),
    "posterior-rounds": Arm("RoC, posterior, rounds", (*POSTERIOR, *ROUNDS), 10, 2, "#4d7c0f"),
    "roc-e2": Arm("RoC, 2 epochs", epochs(2), 6, 2, "#0369a1"),
    "roc-m8": Arm("RoC, 2 updates", mini_batches(8), 6, 2, "#4338ca"),
    "rounds": Arm("RoC, rounds", ROUNDS, 8, 4, "#be185d"),
    "rounds-e2": Arm("RoC, rounds, 2 epochs", (*ROUNDS, *epochs(2)), 8, 4, "#0e7490"),
    "rounds-e4": Arm("RoC, rounds, 4 epochs", (*ROUNDS, *epochs(4)), 8, 4, "#164e63"),
    "rounds-m8": Arm("RoC, rounds, 2 updates", (*ROUNDS, *mini_batches(8)), 8, 4, "#6d28d9"),
    "grpo-g-e2": Arm("GRPO, G, 2 epochs", (*PLAIN_G, *epochs(2)), 10, 2, "#ea580c"),
}
"""The arms, keyed by name. An arm that tests learning from half of the rollout tokens has the number of steps that
takes about that many tokens."""
SELECTIONS = tuple(ARMS)[:5]
MEASURES = {
    "accuracy": Figure("accuracy, %", 100.0),
    "failed_calls": Figure("failed calls in correct traces, %", 100.0),
    "trace_tokens": Figure("tokens per trace"),
}
"""The metrics of a `Point` that are compared between arms."""
PROGRESS = {
    "step": Figure("steps", digits=0, compared=False),
    "rollout_tokens": Figure("rollout tokens", digits=0, compared=False),
}


@dataclass(frozen=True)
class Point:
    """The evaluation of an intermediate or final model on held-out problems."""

    step: int
    rollout_tokens: float
    """Tokens of all rollouts up to this step, including tool output and rollouts that were not trained on."""
    accuracy: float
    failed_calls: float
    """Share of failed calls among the calls of correct traces; NaN if these have no calls."""
    trace_tokens: float


Seeds = Mapping[int, Mapping[str, Sequence[Point]]]
"""Dict from seed to arm to the arm's points, beginning with step 0."""


def trained_points(run: ArmRun) -> list[dict[str, Any]]:
    """Train an arm. Returns its points as JSON objects."""
    written = np.cumsum([rollout_tokens(step) for step in run.train().values()])
    points = [point(0, 0.0, run.sft_numbers)]
    points += [point(step, float(written[step - 1]), run.measure(step)) for step in run.arm.measured]
    return [asdict(each) for each in points]


def point(step: int, tokens: float, numbers: dict[str, Any]) -> Point:
    """Return a point, from the summary of an evaluation."""
    failed = numbers["failed_call_ratio_correct"]
    return Point(
        step, tokens, numbers["accuracy"], math.nan if failed is None else failed, numbers["mean_tokens"]
    )


def finished_points(runs: Path, arms: Mapping[str, Arm]) -> Seeds:
    """Return the points of every finished arm."""
    return {
        seed: {name: [Point(**each) for each in points] for name, points in outcomes.items()}
        for seed, outcomes in finished(runs, arms).items()
    }


def between(points: Sequence[Point], axis: str, value: float) -> dict[str, float]:
    """Return all figures at this value of `axis`, by linear interpolation between points.

    Beyond the last point, they are the figures of the last point.
    """
    rows = [asdict(point) for point in points]
    along = [row[axis] for row in rows]
    return {name: float(np.interp(value, along, [row[name] for row in rows])) for name in rows[0]}


def matched(arms: Mapping[str, Sequence[Point]], axis: str) -> dict[str, dict[str, float]]:
    """Return each arm's figures at the largest value of `axis` that all arms reach."""
    shortest = min(asdict(points[-1])[axis] for points in arms.values())
    return {arm: between(points, axis, shortest) for arm, points in arms.items()}


def compared(seeds: Seeds, axis: str) -> str:
    """Return a table with a row for each arm: means over seeds, and paired differences from GRPO-RoC with their
    intervals."""
    figures = PROGRESS | MEASURES
    cells = compared_cells([matched(arms, axis) for arms in seeds.values()], figures, ROC)
    rows = [[ARMS[arm].label, *each] for arm, each in cells.items()]
    return table(["arm", *(figure.title for figure in figures.values())], rows)


def at_half(seeds: Seeds) -> str:
    """Return a table with a row for each arm, at half of the rollout tokens that GRPO-RoC wrote with the same seed.

    The first two rows are the baselines at the full number of GRPO-RoC's tokens. Each figure is compared with the
    better baseline: accuracy with plain GRPO, failed calls and length with GRPO-RoC.
    """
    figures = PROGRESS | MEASURES
    titles = ["arm", "seeds", *(figure.title for figure in figures.values())]
    baselines = [_row_at(seeds, f"**{ARMS[name].label}**, all tokens", name, 1.0) for name in (PLAIN, ROC)]
    trained = {name: arm for name, arm in ARMS.items() if any(name in arms for arms in seeds.values())}
    halves = [_row_at(seeds, arm.label, name, 0.5) for name, arm in trained.items()]
    return table(titles, [*baselines, *halves])


def _row_at(seeds: Seeds, label: str, name: str, share: float) -> list[str]:
    """Return the row of an arm at this share of GRPO-RoC's rollout tokens, over the seeds for which the arm is
    finished."""
    runs = [arms for arms in seeds.values() if name in arms]
    budgets = [arms[ROC][-1].rollout_tokens for arms in runs]

    def places(arm: str, share: float) -> list[dict[str, float]]:
        return [
            between(arms[arm], "rollout_tokens", share * budget)
            for arms, budget in zip(runs, budgets, strict=True)
        ]

    at, better = places(name, share), {"accuracy": PLAIN, "failed_calls": ROC, "trace_tokens": ROC}
    cells = [label, str(len(runs))]
    for key, figure in (PROGRESS | MEASURES).items():
        baseline = None
        if figure.compared and (share, better[key]) != (1.0, name):
            baseline = [each[key] for each in places(better[key], 1.0)]
        cells.append(figure.cell([each[key] for each in at], baseline))
    return cells


def write_csv(seeds: Seeds, path: Path) -> None:
    """Write every point of every arm and seed."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["seed", "arm", *Point.__dataclass_fields__])
    for seed, arms in seeds.items():
        for arm, points in arms.items():
            writer.writerows([seed, arm, *(f"{v:.6g}" for v in asdict(point).values())] for point in points)
    write_text(path, text.getvalue())


def write_plot(seeds: Seeds, path: Path) -> None:
    """Plot means over seeds with their intervals, against steps and against rollout tokens."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "rstar2"
    matplotlib.rcParams["svg.fonttype"] = "none"
    shown = list(next(iter(seeds.values())))
    picture, axes = plt.subplots(2, len(MEASURES), figsize=(12, 6.4), layout="constrained", sharey="col")
    for row, (along, title) in enumerate((("step", "step"), ("rollout_tokens", "rollout tokens, thousands"))):
        for axis, (name, figure) in zip(axes[row], MEASURES.items(), strict=True):
            for arm in shown:
                points = [arms[arm] for arms in seeds.values()]
                _draw(axis, points, along, name, figure.scale, ARMS[arm])
            axis.set_title(figure.title, fontsize=10)
            axis.set_xlabel(title)
            axis.spines[["top", "right"]].set_visible(False)
            axis.grid(axis="y", alpha=0.25)
    picture.legend(
        *axes[0][0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=min(len(shown), 5),
        frameon=False,
    )
    drawn = io.StringIO()
    picture.savefig(drawn, format="svg", metadata={"Date": None})
    plt.close(picture)
    write_text(path, drawn.getvalue())


def _draw(axis: Axes, runs: Sequence[Sequence[Point]], along: str, name: str, scale: float, arm: Arm) -> None:
    """Draw one arm: the mean over seeds at each evaluated step."""
    across = [[asdict(point) for point in points] for points in zip(*runs, strict=True)]
    thousand = 1000.0 if along == "rollout_tokens" else 1.0
    x = [np.mean([point[along] for point in points]) / thousand for points in across]
    values = [[scale * point[name] for point in points] for points in across]
    means = [float(np.mean(each)) for each in values]
    half = [mean - interval(each)[0] for mean, each in zip(means, values, strict=True)]
    axis.errorbar(
        x,
        means,
        yerr=half,
        color=arm.colour,
        label=arm.label,
        marker="o",
        markersize=3,
        capsize=2,
        elinewidth=0.8,
    )


def main() -> None:
    parser = common_parser(__doc__, "runs/roc-vs-grpo", 5)
    parser.add_argument("--plot", type=Path, help="an SVG file; the data are written beside it as CSV")
    parser.add_argument(
        "--arm",
        action="append",
        choices=ARMS,
        help=f"an arm to run; may be repeated; by default {', '.join(SELECTIONS)}",
    )
    options = parser.parse_args()
    asked = {name: arm for name, arm in ARMS.items() if name in (ROC, PLAIN, *(options.arm or SELECTIONS))}
    if not options.show:
        run_arms("roc-vs-grpo", asked, seeds_of(options), options.runs, trained_points)
    alone = options.show and not options.arm
    every = {
        seed: outcomes
        for seed, outcomes in finished_points(options.runs, ARMS if alone else asked).items()
        if ROC in outcomes and PLAIN in outcomes
    }
    if not every:
        parser.exit(1, f"no seed in {options.runs} has both {ROC} and {PLAIN}\n")
    named = [name for name in asked if not alone or any(name in outcomes for outcomes in every.values())]
    seeds = with_all(every, named)
    for axis, name in (("step", "steps"), ("rollout_tokens", "rollout tokens")):
        if seeds:
            print(f"\nAt equal {name}, seeds {', '.join(map(str, seeds))}:\n\n{compared(seeds, axis)}")
    print(
        f"\nAt half of {ARMS[ROC].label}'s rollout tokens, each arm over its own seeds:\n\n{at_half(every)}"
    )
    if options.plot and seeds:
        write_plot(seeds, options.plot)
        write_csv(seeds, options.plot.with_suffix(".csv"))


if __name__ == "__main__":
    main()
