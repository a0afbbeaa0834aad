"""Shows the demo's numbers: a table and a plot for a terminal, and a picture like figure 4 of the paper."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from rstar2.files import write_text
from rstar2.terminal import percent
from rstar2.train.records.curves import Curve, curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_ARMS = (("GRPO-RoC", ".", "#1f6feb"), ("plain GRPO", "plain", "#d97706"))
_COLUMNS = ("accuracy", "95 %", "failed", "repaired", "calls", "tokens", "time")
_CAPTION = (
    "accuracy: share of correct samples, with its 95 % interval. failed: share of failed calls in correct traces. "
    "repaired: share of the turns with a failed call that are followed by a turn whose calls succeed. calls, tokens: "
    "mean per trace. time: duration of the phase and its measurement."
)
_PANELS = (
    ("Failed calls in correct traces, %", "failed", 100.0),
    ("Pass rate of the rollouts, %", "pass_rate", 100.0),
    ("Tokens a rollout", "tokens", 1.0),
)


def table(summary: dict[str, Any]) -> Table:
    """A table of the measurements on held-out problems, with a row per phase."""
    first = summary["phases"][0]
    rows = Table(
        title=f"{first['problems']} held-out problems, {first['samples']} samples, seed {summary['seed']}, "
        f"isolation {summary['isolation']}",
        title_justify="left",
        caption=_CAPTION,
        caption_justify="left",
        box=None,
        padding=(0, 1, 0, 0),
    )
    rows.add_column("phase", no_wrap=True)
    for name in _COLUMNS:
        rows.add_column(name, justify="right", no_wrap=True)
    arms = [("", summary["phases"])]
    if "plain_grpo" in summary:
        arms = [("GRPO-RoC ", summary["phases"]), ("plain GRPO ", summary["plain_grpo"][1:])]
    for label, phases in arms:
        for phase in phases:
            low, high = phase["interval"]
            rows.add_row(
                f"{label if phase['name'] != 'sft' else ''}{phase['name']}",
                percent(phase["accuracy"]),
                f"{100 * low:.1f} – {percent(high)}",
                percent(phase["failed_call_ratio_correct"]),
                # Summaries of earlier versions lack it.
                percent(phase.get("repaired_share")),
                f"{phase['calls_per_trace']:.2f}",
                f"{phase['mean_tokens']:.1f}",
                f"{phase['wall_s']:.0f} s",
            )
    return rows


def plot(run: Path, summary: dict[str, Any]) -> Text:
    """A plot of the training rollouts over steps: their pass rate, and their share of failed calls."""
    import plotext

    plotext.clear_figure()
    plotext.theme("clear")
    plotext.plotsize(100, 18)
    arms = [("GRPO-RoC", curve(run))]
    if "plain_grpo" in summary:
        arms.append(("plain GRPO", curve(run / "plain")))
    for name, values in arms:
        smooth = values.smoothed()
        plotext.plot(smooth.steps, [100 * v for v in smooth.pass_rate], label=f"{name}: pass rate, %")
        plotext.plot(
            smooth.steps, [100 * v for v in smooth.failed], label=f"{name}: failed calls in correct traces, %"
        )
    for step in curve(run).starts[1:]:
        plotext.vline(step)
    last = max(max(values.steps, default=1) for _, values in arms)
    plotext.xticks(sorted({round(1 + (last - 1) * part / 4) for part in range(5)}))
    plotext.xlabel("steps of stages 1, 2 and 3")
    plotext.ylim(0, 100)
    plotext.yticks(range(0, 101, 20))
    return Text.from_ansi(plotext.build())


def write_figure(run: Path) -> Path:
    """Write `figure4.svg` to the run's folder and return its path.

    The figure covers all rollouts of a step, before Resampling on Correct (RoC) selects half of them. Thin lines are
    values of single steps, and thick lines are means of several steps. A dotted line marks the start of a stage.
    """
    import matplotlib.pyplot as plt

    arms = [(name, curve(run / folder), colour) for name, folder, colour in _ARMS]
    figure, axes = plt.subplots(1, len(_PANELS), figsize=(12, 3.4), layout="constrained")
    for axis, (title, field, scale) in zip(axes, _PANELS, strict=True):
        for name, values, colour in arms:
            if values.steps:
                _draw(axis, values, field, scale, name, colour)
        axis.set_title(title, fontsize=10)
        axis.set_xlabel("step")
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.25)
    axes[0].legend(frameon=False, fontsize=9)
    svg = io.StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    plt.close(figure)
    write_text(run / "figure4.svg", svg.getvalue())
    return run / "figure4.svg"


def _draw(axis: Axes, values: Curve, field: str, scale: float, name: str, colour: str) -> None:
    raw = [scale * value for value in getattr(values, field)]
    smooth = [scale * value for value in getattr(values.smoothed(), field)]
    axis.plot(values.steps, raw, color=colour, alpha=0.25, linewidth=1)
    axis.plot(values.steps, smooth, color=colour, linewidth=2, label=name)
    for start in values.starts[1:]:
        axis.axvline(start - 0.5, color="#888888", linewidth=0.6, linestyle=":")
