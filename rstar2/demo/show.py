"""The demo's numbers for a terminal: a table and a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from rstar2.train.curves import curve


def table(summary: dict[str, Any]) -> Table:
    """One row a phase, on the held-out problems."""
    first = summary["phases"][0]
    shown = Table(
        title=f"{first['problems']} held-out problems, {first['samples']} samples, seed {summary['seed']}, "
        f"isolation {summary['isolation']}"
    )
    shown.add_column("phase")
    for name in (
        "accuracy",
        "95 % interval",
        "failed calls in\ncorrect traces",
        "calls",
        "tokens",
        "seconds",
    ):
        shown.add_column(name, justify="right")
    arms = [("", summary["phases"])]
    if "plain_grpo" in summary:
        arms = [("GRPO-RoC ", summary["phases"]), ("plain GRPO ", summary["plain_grpo"][1:])]
    for label, phases in arms:
        for phase in phases:
            low, high = phase["interval"]
            failed = phase["failed_call_ratio_correct"]
            shown.add_row(
                f"{label if phase['name'] != 'sft' else ''}{phase['name']}",
                f"{phase['accuracy']:.1%}",
                f"{low:.1%} – {high:.1%}",
                "–" if failed is None else f"{failed:.1%}",
                f"{phase['calls_per_trace']:.2f}",
                f"{phase['mean_tokens']:.1f}",
                f"{phase['wall_s']:.0f}",
            )
    return shown


def plot(run: Path, summary: dict[str, Any]) -> Text:
    """Pass rate and failed-call ratio of the training rollouts against steps."""
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
    plotext.xlabel("steps of stages 1, 2 and 3")
    plotext.ylim(0, 100)
    return Text.from_ansi(plotext.build())
