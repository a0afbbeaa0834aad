"""A table of numbers: for the terminal, as CSV, and for the report page; and the charts that are drawn from some."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rstar2.analysis.estimates import Estimate
from rstar2.files import whole_file

Value = str | int | float | None
"""None is shown as a dash: there was nothing to count."""
Row = tuple[Value, ...]
Chart = dict[str, Any]
"""JSON-able: as `rstar2.report.collect.Chart`, with `table`, the name of the table that it is drawn from; perhaps
`usual`, the band in which its values usually lie."""


@dataclass
class Table:
    """Rows under named columns. A column that ends in `share` holds shares, shown in percent."""

    name: str
    """Of its CSV file."""
    title: str
    columns: tuple[str, ...]
    rows: list[Row] = field(default_factory=list)
    shown: Literal["everywhere", "page", "file"] = "everywhere"
    """Where it is shown: in the terminal too, on the page, or in its CSV file alone."""

    def record(self) -> dict[str, Any]:
        """JSON-able."""
        return {"name": self.name, "title": self.title, "columns": self.columns, "rows": self.rows}


def interval(estimate: Estimate) -> tuple[Value, Value, Value]:
    """An estimate's value, low and high."""
    return number(estimate.value), number(estimate.low), number(estimate.high)


def share_interval(estimate: Estimate) -> tuple[Value, Value, Value]:
    """`interval` of a share, which lies between 0 and 1."""
    low, high = (number(float(np.clip(end, 0.0, 1.0))) for end in (estimate.low, estimate.high))
    return number(estimate.value), low, high


def number(value: float) -> float | None:
    """Six digits, None for NaN."""
    return None if math.isnan(value) else float(f"{value:.6g}")


def ratio(part: float, whole: float) -> float | None:
    return number(part / whole) if whole else None


def text_of(column: str, value: Value) -> str:
    """A value as people read it."""
    if value is None:
        return "–"
    if isinstance(value, float):
        if column.endswith("share"):
            return f"{value:.1%}"
        return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"
    return str(value)


def write_csv(folder: Path, tables: Iterable[Table]) -> None:
    """Write NAME.csv for each table, whole or not at all; None is an empty field."""
    for table in tables:
        with whole_file(folder / f"{table.name}.csv") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table.columns)
            writer.writerows(table.rows)


def chart(table: Table, title: str, x: str, y: str, series: Sequence[tuple[str, list[list[Value]]]]) -> Chart:
    """Lines of points [x, y] or [x, y, low, high]; a `y` that ends in `share` is shown in percent.

    Nothing that is drawn is negative. An interval that would leave the plot is not drawn; the table has it.
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
