"""Draws a snapshot of a training run on a terminal: its state, alarms, decisions, and measurements over the steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rstar2.terminal import percent
from rstar2.train.choose import measured_curves
from rstar2.train.records.panels import PANELS, Panel, Unit
from rstar2.train.records.steps import Step
from rstar2.watch.snapshot import Snapshot

_BARS = "▁▂▃▄▅▆▇█"
_WIDTH = 20
"""Maximum number of characters of a sparkline, which shows a measurement over the steps."""
_LEVEL = 1e-9
"""Values count as equal if their relative difference is below this limit, since means have rounding errors."""
_STATE_STYLES = {
    "running": "cyan",
    "finished": "green",
    "failed": "red",
    "killed": "red",
    "stopped": "yellow",
}
_WIDE = 130
"""Minimum width of a terminal, in characters, for which the table has the column "usual"."""
_MOST_ALARMS = 4


def draw(snapshot: Snapshot, width: int) -> RenderableType:
    """The whole view for a terminal of `width` characters, the most important lines first."""
    parts: list[RenderableType] = [_head(snapshot)]
    parts += [Text(f"ALARM  {text}", style="bold red") for text in alarm_lines(snapshot)[-_MOST_ALARMS:]]
    parts += [Text(f"DECIDED  {text}", style="bold yellow") for text in decision_lines(snapshot)]
    if snapshot.cause:
        parts.append(Text(snapshot.cause, style="red"))
    if snapshot.losses:
        parts.append(Text(f"loss   {snapshot.losses[-1]:.4g}   {course(snapshot.losses)}"))
    for name, curve in measured_curves(snapshot.measured):
        parts.append(
            Text(f"{name}   step {curve[-1][0]}: {curve[-1][1]:.4g}   {course([y for _, y in curve])}")
        )
    if snapshot.chosen:
        parts.append(Text(f"chosen   {snapshot.chosen}", style="green"))
    if snapshot.steps:
        parts.append(table(snapshot, width >= _WIDE))
    return Group(*parts)


def alarm_lines(snapshot: Snapshot) -> list[str]:
    """One line per alarm, in order."""
    return [f"stage {each['stage']}, step {each['step']}: {each['text']}" for each in snapshot.alarms]


def decision_lines(snapshot: Snapshot) -> list[str]:
    """One line per decision of a rule, in order."""
    return [f"stage {each['stage']}, step {each['step']}: {each['text']}" for each in snapshot.decisions]


def table(snapshot: Snapshot, with_usual: bool) -> Table:
    """One row per panel: a sparkline of its first figure, its figures at the last step, and their usual values."""
    rows = Table(
        box=None,
        padding=(0, 2, 0, 0),
        header_style="dim",
        caption="all: all rollouts of the step; kept: the rollouts selected for training",
        caption_justify="left",
    )
    rows.add_column("", style="bold", no_wrap=True)
    rows.add_column("the first figure\nover all steps", no_wrap=True)
    rows.add_column(f"at step {snapshot.steps[-1].number} of the run")
    if with_usual:
        rows.add_column("usual", style="dim")
    for panel in PANELS:
        curves, now = panel.curves(snapshot.steps), _now(panel, snapshot.steps[-1])
        if curves or now:
            values = [value for _, value in curves[0][1]] if curves else []
            row = [panel.name, course(values), now]
            rows.add_row(*row, *([panel.usual] if with_usual else []))
    return rows


def course(values: Sequence[float]) -> str:
    """Returns values as a sparkline, scaled from the least to the greatest value.

    NaN and infinities are left out. If there are more than 20 values, each bar is the mean of several values.
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


def _head(snapshot: Snapshot) -> Text:
    text = Text.assemble(
        (str(snapshot.run), "bold"),
        f"  {snapshot.kind}, ",
        (snapshot.state, _STATE_STYLES.get(snapshot.state, "")),
    )
    if snapshot.samples:
        text.append(f"  {snapshot.phase}, {snapshot.samples.done} of {snapshot.samples.wanted} samples")
    elif snapshot.phase:
        text.append(
            f"  {snapshot.phase}, step {snapshot.step}" + (f" of {snapshot.of}" if snapshot.of else "")
        )
        last = snapshot.steps[-1] if snapshot.steps else None
        if last and last.stage_step == snapshot.step != last.number:
            text.append(f" of the stage, step {last.number} of the run")
    if snapshot.rollouts:
        rollouts = snapshot.rollouts
        text.append(
            f"  {rollouts.text()}", "bold yellow" if rollouts.judge_away_s or rollouts.failed else "dim"
        )
    if snapshot.activity:
        text.append(f"  {snapshot.activity.text()}", "dim")
    if snapshot.rollouts and snapshot.rollouts.fault:
        text.append(f"\n{snapshot.rollouts.fault}", "bold yellow")
    return text


_TEXTS: dict[Unit, Callable[[float], str]] = {
    "share": percent,
    "count": lambda value: f"{value:.0f}",
    "seconds": lambda value: f"{value:.2f}",
    "number": lambda value: f"{value:.3g}",
}


_NEGLIGIBLE = 1e-6
"""A figure without a unit is shown as 0 if its absolute value is lower than this. Rounding errors can make a KL
divergence of 0 slightly negative."""


def _now(panel: Panel, step: Step) -> str:
    """The figures of a panel's lines at a step. Zeros are left out, except for the first line."""
    texts = []
    for place, (column, label) in enumerate(panel.lines):
        value = step.values[column]
        if value is not None and panel.unit == "number" and abs(value) < _NEGLIGIBLE:
            value = 0.0
        if value is not None and (value or place == 0):
            name = f"{label} " if len(panel.lines) > 1 else ""
            texts.append(name + (_TEXTS[panel.unit](value) if math.isfinite(value) else str(value)))
    if not texts:
        return ""
    if len(panel.lines) == 1:
        return f"{panel.measure} {texts[0]}".strip()
    return ", ".join([*filter(None, [panel.measure]), *texts])
