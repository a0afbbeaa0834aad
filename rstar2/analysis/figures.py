"""Draws charts as SVG files, with colours and marks that people with colour blindness can tell apart."""

from __future__ import annotations

import io
import itertools
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rstar2.analysis.tables import Chart
from rstar2.files import write_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
"""Colours of lines, from Okabe and Ito's palette (Color Universal Design, 2008)."""
_MARKS = ("o", "s", "^", "D")
_SIZE = (6.4, 3.4)
"""Width and height of a chart, in inches."""
_AXES = (0.12, 0.15, 0.85, 0.75)
"""Left, bottom, width and height of the axes, as shares of the figure's size."""
_NAME_CHARS = 200
"""Maximum number of characters of a title in a file name. File systems allow names of 255 bytes."""
_TITLE_CHARS = 68
"""Maximum number of characters in a line of a title. Longer lines would be cut off at the edges of the chart."""
_TITLE_POINTS = 10.0
"""Font size of a title with one or two lines. A longer title has a smaller font, so that it fits above the axes."""
_TITLE_HEIGHT = 20.0
"""Height of a title in points. The height of a line is 1.2 times its font size, but 0.8 times for the first line.
"""


def file_names(charts: Sequence[Chart]) -> list[str]:
    """Returns file names of charts, made from the charts' titles, such as eval-stage3-entropy-after-a-tool-reply.svg.

    A number is appended to names that would otherwise be equal.
    """
    names: list[str] = []
    for chart in charts:
        stem = re.sub(r"[^a-z0-9]+", "-", str(chart["title"]).lower()).strip("-")[:_NAME_CHARS]
        numbered = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        names.append(next(name for each in numbered if (name := f"{each}.svg") not in names))
    return names


def draw(charts: Sequence[Chart], folder: Path) -> None:
    """Write each chart to a file, atomically."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter, ScalarFormatter

    # With a fixed salt, the same charts give the same files.
    with matplotlib.rc_context({"svg.hashsalt": "rstar2", "svg.fonttype": "none"}):
        # All charts share one figure, because making axes with their ticks takes a third of the drawing time.
        figure = Figure(figsize=_SIZE)
        # The margins are fixed. To measure the labels around the axes, matplotlib would draw everything twice.
        axes = figure.add_axes(_AXES)
        axes.spines[["top", "right"]].set_visible(False)
        for chart, name in zip(charts, file_names(charts), strict=True):
            _clear(axes)
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
            lines = _title_lines(chart["title"])
            size = min(_TITLE_POINTS, _TITLE_HEIGHT / (1.2 * len(lines) - 0.4))
            # With a fixed `y`, matplotlib does not measure the axes to place the title above them.
            axes.set_title("\n".join(lines), y=1.0, pad=4.0, fontsize=size)
            axes.set(xlabel=chart["x"], ylabel=chart["y"])
            axes.set_ylim(bottom=0)
            is_share = chart["unit"] == "share"
            axes.yaxis.set_major_formatter(PercentFormatter(1.0) if is_share else ScalarFormatter())
            if len(chart["series"]) > 1:
                axes.legend(frameon=False)
            svg = io.StringIO()
            figure.savefig(svg, format="svg", metadata={"Date": None})
            write_text(folder / name, svg.getvalue())


def _title_lines(title: str) -> list[str]:
    """Returns a title as lines of about the same length, each with at most `_TITLE_CHARS` characters."""
    count = len(textwrap.wrap(title, _TITLE_CHARS, break_on_hyphens=False))
    return next(
        lines
        for width in range(len(title) // count, _TITLE_CHARS + 1)
        if len(lines := textwrap.wrap(title, width, break_on_hyphens=False)) <= count
    )


def _clear(axes: Axes) -> None:
    """Remove the previous chart and reset the limits of the axes. For a chart without values, the limits are 0 to 1."""
    for artist in (*axes.lines, *axes.collections):
        artist.remove()
    if (legend := axes.get_legend()) is not None:
        legend.remove()
    axes.relim()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.autoscale()
