"""A source of training data: puzzles in a file of one's own format, and how a row becomes a problem."""

from collections.abc import Mapping
from typing import Any

from rstar2 import Source


def read(row: Mapping[str, Any]) -> dict[str, Any]:
    """A problem with its answer. Raise rstar2.data.rows.Refused("malformed", why) for a row that cannot be used."""
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
