"""Draws charts as SVG files, in colours and marks that people who confuse red and green can tell apart."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from rstar2.analysis.tables import Chart
from rstar2.files import write_text

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Of Okabe and Ito's palette (Color Universal Design, 2008)."""
_MARKS = ("o", "s", "^", "D")
_SIZE = (6.4, 3.4)
"""Inches."""
_AXES = (0.12, 0.15, 0.85, 0.75)
"""Left, bottom, width and height of the axes, as shares of the figure's."""


def file_names(charts: Sequence[Chart]) -> list[str]:
    """Charts' titles as names of files: eval-stage3-entropy-after-a-tool-reply.svg; of those alike, numbered."""
    names: list[str] = []
    for chart in charts:
        stem = re.sub(r"[^a-z0-9]+", "-", str(chart["title"]).lower()).strip("-")
        numbered = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        names.append(next(name for each in numbered if (name := f"{each}.svg") not in names))
    return names


def draw(charts: Sequence[Chart], folder: Path) -> None:
    """Write each chart, whole or not at all."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    # The same charts give the same files.
    with matplotlib.rc_context({"svg.hashsalt": "rstar2", "svg.fonttype": "none"}):
        for chart, name in zip(charts, file_names(charts), strict=True):
            figure = Figure(figsize=_SIZE)
            # Fixed margins: to measure what surrounds the axes, matplotlib would draw everything twice.
            axes = figure.add_axes(_AXES)
            for number, series in enumerate(chart["series"]):
                points = [point for point in series["points"] if point[1] is not None]
                xs, ys = [point[0] for point in points], [point[1] for point in points]
                colour, mark = _COLOURS[number % len(_COLOURS)], _MARKS[number % len(_MARKS)]
                axes.plot(
                    xs, ys, color=colour, marker=mark, markersize=3, linewidth=1.2, label=series["name"]
                )
                spread = [point for point in points if len(point) > 2]
                if spread:
                    places, _, lows, highs = zip(*spread, strict=True)
                    axes.fill_between(places, lows, highs, color=colour, alpha=0.2, linewidth=0)
            axes.set(title=chart["title"], xlabel=chart["x"], ylabel=chart["y"])
            axes.set_ylim(bottom=0)
            if chart["unit"] == "share":
                axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            if len(chart["series"]) > 1:
                axes.legend(frameon=False)
            axes.spines[["top", "right"]].set_visible(False)
            drawn = io.StringIO()
            figure.savefig(drawn, format="svg", metadata={"Date": None})
            write_text(folder / name, drawn.getvalue())
