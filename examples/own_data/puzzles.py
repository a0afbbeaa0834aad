"""A source of training data: a file with columns of its own, and a function that turns a row into a problem."""

from collections.abc import Mapping
from typing import Any

from rstar2 import Source


def read(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a problem and its answer. Raise rstar2.data.rows.Refused("malformed", why) if a row cannot be used."""
    return {"problem": f"{row['story']} {row['question']}", "answer": str(row["solution"])}


SOURCE = Source(
    kind="problems",
    family="math",
    licence="CC0",
    columns=(("story", "question", "solution"),),
    read=read,
    rows="3",
    missing="Give its file: --from puzzles=puzzles.jsonl.",
)
