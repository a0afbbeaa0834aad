"""Project Euler's problems, from a file of the user, because no public set with answers is known."""

from __future__ import annotations

from typing import Any

from rstar2.data.rows import problem_row, text_of
from rstar2.data.source import Row, Source


def _read(row: Row) -> dict[str, Any]:
    columns = {"id": text_of(row, "id")} if row.get("id") is not None else {}
    return {**problem_row(text_of(row, "problem"), text_of(row, "answer")), **columns}


SOURCE = Source(
    kind="problems",
    family="math",
    licence="texts CC-BY-NC-SA-4.0, as projecteuler.net states",
    columns=(("problem", "answer"),),
    more=("id",),
    read=_read,
    rows="937",
    paper="937 problems, huge answers dropped",
    missing="no public set with answers is known: --from project-euler=FILE with problem and answer",
)
