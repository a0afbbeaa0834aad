"""Draws a snapshot of a training run for a terminal: its state, alarms, decisions, and how each measurement went."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rstar2.train.choose import measured_curves
from rstar2.train.records.panels import PANELS, Panel, Unit
from rstar2.train.records.steps import Step
from rstar2.watch.snapshot import Snapshot

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 20
"""Characters of a course."""
_LEVEL = 1e-9
"""Values that differ by less than this share of themselves are one: the mean of equal ones is not always theirs."""
_STATE_STYLES = {
    "running": "cyan",
    "finished": "green",
    "failed": "red",
    "killed": "red",
    "stopped": "yellow",
}
_WIDE = 130
"""Characters from which on there is room for what is usual."""
_MOST_ALARMS = 4


def draw(shown: Snapshot, width: int) -> RenderableType:
    """Everything, from what is looked at first to the details, for a terminal of `width` characters."""
    parts: list[RenderableType] = [_head(shown)]
    parts += [Text(f"ALARM  {text}", style="bold red") for text in alarm_lines(shown)[-_MOST_ALARMS:]]
    parts += [Text(f"DECIDED  {text}", style="bold yellow") for text in decision_lines(shown)]
    if shown.cause:
        parts.append(Text(shown.cause, style="red"))
    if shown.losses:
        parts.append(Text(f"loss   {shown.losses[-1]:.4g}   {course(shown.losses)}"))
    for name, curve in measured_curves(shown.measured):
        parts.append(
            Text(f"{name}   step {curve[-1][0]}: {curve[-1][1]:.4g}   {course([y for _, y in curve])}")
        )
    if shown.chosen:
        parts.append(Text(f"chosen   {shown.chosen}", style="green"))
    if shown.steps:
        parts.append(table(shown, width >= _WIDE))
    return Group(*parts)


def alarm_lines(shown: Snapshot) -> list[str]:
    """One line per alarm, in order."""
    return [f"stage {each['stage']}, step {each['step']}: {each['text']}" for each in shown.alarms]


def decision_lines(shown: Snapshot) -> list[str]:
    """One line per decision of a rule, in order."""
    return [f"stage {each['stage']}, step {each['step']}: {each['text']}" for each in shown.decisions]


def table(shown: Snapshot, with_usual: bool) -> Table:
    """One row per panel: the course of its first line, its values at the last step, and what is usual."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    made.add_column("", style="bold", no_wrap=True)
    made.add_column("first value over time", no_wrap=True)
    made.add_column(f"step {shown.steps[-1].number}")
    if with_usual:
        made.add_column("usual", style="dim")
    for panel in PANELS:
        curves, now = panel.curves(shown.steps), _now(panel, shown.steps[-1])
        if curves or now:
            values = [value for _, value in curves[0][1]] if curves else []
            row = [panel.name, course(values), now]
            made.add_row(*row, *([panel.usual] if with_usual else []))
    return made


def course(values: Sequence[float]) -> str:
    """Values as bars, from the least to the greatest; of many, each bar is a mean.

    What is not a number is left out.
    """
    values = [value for value in values if math.isfinite(value)]
    if not values:
        return ""
    size = max(1, -(-len(values) // _WIDTH))
    means = [sum(part) / len(part) for part in _parts(values, size)]
    low, high = min(means), max(means)
    if high - low <= _LEVEL * abs(high):
        return _BARS[3] * len(means)
    return "".join(_BARS[round((mean - low) / (high - low) * (len(_BARS) - 1))] for mean in means)


def _parts(values: Sequence[float], size: int) -> Iterator[Sequence[float]]:
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _head(shown: Snapshot) -> Text:
    text = Text.assemble(
        (str(shown.run), "bold"),
        f"  {shown.kind}, ",
        (shown.state, _STATE_STYLES.get(shown.state, "")),
    )
    if shown.samples:
        text.append(f"  {shown.phase}, {shown.samples.done} of {shown.samples.wanted} samples")
    elif shown.phase:
        text.append(f"  {shown.phase}, step {shown.step}" + (f" of {shown.of}" if shown.of else ""))
    if shown.rollouts:
        rollouts = shown.rollouts
        text.append(
            f"  {rollouts.text()}", "bold yellow" if rollouts.judge_away_s or rollouts.failed else "dim"
        )
    if shown.activity:
        text.append(f"  {shown.activity.text()}", "dim")
    if shown.rollouts and shown.rollouts.fault:
        text.append(f"\n{shown.rollouts.fault}", "bold yellow")
    return text


_SHOWN: dict[Unit, Callable[[float], str]] = {
    "share": lambda value: f"{value:.1%}",
    "count": lambda value: f"{value:.0f}",
    "seconds": lambda value: f"{value:.2f} s",
    "number": lambda value: f"{value:.3g}",
}


def _now(panel: Panel, step: Step) -> str:
    """The values of a panel's lines at a step; what is 0 is left out, but for the first."""
    found = []
    for place, (column, label) in enumerate(panel.lines):
        value = step.values[column]
        if value is not None and (value or place == 0):
            name = f"{label} " if len(panel.lines) > 1 else ""
            found.append(name + (_SHOWN[panel.unit](value) if math.isfinite(value) else str(value)))
    return ", ".join(found)
