"""Charts as SVG files."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rstar2.analysis.figures import draw, file_names
from rstar2.analysis.tables import Chart, Table, Value, chart

TITLE_LINE = re.compile(
    r"font-size: ([\d.]+)px[^>]*(?:\(-0 [\d.]+|translate\([\d.]+) ([\d.]+)\)\">(word[^<]*)<"
)
"""Matches a line of a title: its font size, the y of its baseline, and its text."""
TABLE = Table("table", "A table", "", ("x", "y"))
NARROW: list[list[Value]] = [[0, 0.2, 0.1, 0.3], [1, 0.4, 0.3, 0.5]]
TALL: list[list[Value]] = [[-30, 700.0], [10, 900.0], [50, None]]


def test_a_chart_does_not_depend_on_those_drawn_before_it(tmp_path: Path) -> None:
    """The charts have different limits, units, legends and bands."""
    charts: list[Chart] = [
        chart(TABLE, "Two shares", "step", "share", [("a", NARROW), ("b", NARROW[:1])]),
        chart(TABLE, "One tall", "token", "nats", [("a", TALL)]),
        chart(TABLE, "One share", "step", "share", [("a", NARROW)]),
        chart(TABLE, "No values", "step", "share", [("a", [[0, None], [1, None]])]),
        chart(TABLE, "Two tall", "token", "nats", [("a", TALL), ("b", NARROW)]),
    ]
    together, alone = tmp_path / "together", tmp_path / "alone"
    together.mkdir()
    alone.mkdir()
    draw(charts, together)
    for each, name in zip(charts, file_names(charts), strict=True):
        draw([each], alone)
        assert (together / name).read_bytes() == (alone / name).read_bytes()
    assert len({path.read_bytes() for path in alone.iterdir()}) == len(charts)


@pytest.mark.parametrize("words", [1, 15, 40])
def test_a_title_fits_above_its_chart(tmp_path: Path, words: int) -> None:
    title = " ".join(f"word-{number}" for number in range(words))
    draw([chart(TABLE, title, "step", "share", [("a", NARROW)])], tmp_path)
    [file] = tmp_path.iterdir()
    svg = file.read_text()
    width = float(svg.partition('viewBox="0 0 ')[2].split()[0])
    lines = TITLE_LINE.findall(svg)
    assert " ".join(text for _, _, text in lines) == title
    for size, y, text in lines:
        assert float(y) > 0.8 * float(size)
        assert 0.65 * float(size) * len(text) < width
