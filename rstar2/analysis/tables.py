"""Tables of numbers for the terminal, CSV files and the report page, and the charts that are drawn from tables."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rstar2.analysis.estimates import Estimate
from rstar2.files import whole_file
from rstar2.terminal import percent

Value = str | int | float | None
"""A cell of a table. None is printed as a dash, and means that the cell's number could not be computed because its data
is missing."""
Row = tuple[Value, ...]
Chart = dict[str, Any]
"""A `rstar2.report.collect.Chart` with two more keys: `table`, the name of the table that the chart is drawn from, and
optionally `usual`, a text about usual values."""


INTERVAL = ("95 % low", "95 % high")
"""Names of the columns for the lower and the upper end of an interval."""
SHARE_INTERVAL = ("95 % low share", "95 % high share")
"""Names of the columns for the lower and the upper end of a share's interval."""
INTERVAL_NOTE = "95 % low, 95 % high: the ends of the 95 % interval, clustered by problem."
"""Sentence for the captions of tables that have these columns."""


@dataclass
class Table:
    """Rows under named columns. A column whose name ends in `share` has shares, which are printed in percent."""

    name: str
    """Name of the CSV file, without its suffix."""
    title: str
    about: str
    """Sentences that explain the rows and the numbers."""
    columns: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    notes: Mapping[str, str] = field(default_factory=dict)
    """Dict from a column's name to its explanation."""
    output: Literal["page", "file"] = "page"
    """Where the table is written. file: only to the CSV file. page: also to the report page."""
    terminal: tuple[str, ...] = ()
    """The columns that are printed on the terminal. If there are none, the table is not printed."""

    def caption(self, columns: Sequence[str]) -> str:
        """Returns sentences that explain the numbers in these columns."""
        notes = (f"{heading(name)}: {self.notes[name]}." for name in columns if name in self.notes)
        return " ".join((self.about, *notes)).strip()

    def record(self) -> dict[str, Any]:
        """The table as a JSON-able object."""
        return {
            "name": self.name,
            "title": self.title,
            "caption": self.caption(self.columns),
            "columns": self.columns,
            "rows": self.rows,
        }


def heading(column: str) -> str:
    """Returns the heading under which a column is shown."""
    return column.removesuffix(" share")


def interval(estimate: Estimate) -> tuple[Value, Value, Value]:
    """Returns an estimate's value, and the lower and the upper end of its interval."""
    return number(estimate.value), number(estimate.low), number(estimate.high)


def share_interval(estimate: Estimate) -> tuple[Value, Value, Value]:
    """Returns a share's value, and the lower and the upper end of its interval, clipped to 0..1."""
    low, high = (number(float(np.clip(end, 0.0, 1.0))) for end in (estimate.low, estimate.high))
    return number(estimate.value), low, high


def number(value: float) -> float | None:
    """A value rounded to six significant digits. The result is None if the value is NaN."""
    return None if math.isnan(value) else float(f"{value:.6g}")


def ratio(part: float, whole: float) -> float | None:
    return number(part / whole) if whole else None


def text_of(column: str, value: Value) -> str:
    """Formats the value of a cell as text."""
    if value is None:
        return "–"
    if isinstance(value, float):
        if column.endswith("share"):
            return percent(value)
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def write_csv(folder: Path, tables: Iterable[Table]) -> None:
    """Write NAME.csv for each table, atomically. A cell that is None becomes an empty field."""
    for table in tables:
        with whole_file(folder / f"{table.name}.csv") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table.columns)
            writer.writerows(table.rows)


def chart(table: Table, title: str, x: str, y: str, series: Sequence[tuple[str, list[list[Value]]]]) -> Chart:
    """Make a chart with a line per series.

    An interval is left out if its upper end is more than twice the chart's largest value. The table contains every
    interval.

    Args:
        table: the table that the values come from.
        title: title of the chart.
        x: label of the x axis.
        y: label of the y axis. If the label ends in `share`, values are drawn in percent.
        series: the name and the points of each line. A point is [x, y] or [x, y, low, high]. Its numbers are not
            negative.
    """
    tallest = max((float(point[1] or 0) for _, points in series for point in points), default=0.0)
    return {
        "title": title,
        "x": x,
        "y": y,
        "unit": "share" if y.endswith("share") else "",
        "table": table.name,
        "marks": [],
        "series": [
            {"name": name, "points": [_point(p, tallest) for p in points]}
            for name, points in series
            if points
        ],
    }


def _point(point: list[Value], tallest: float) -> list[Value]:
    low, high = (*point[2:4], None, None)[:2]
    if not isinstance(low, float) or not isinstance(high, float) or high > 2 * tallest:
        return point[:2]
    return [*point[:2], max(0.0, low), high]
