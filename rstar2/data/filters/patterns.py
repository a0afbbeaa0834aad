"""Filters of the user's own: regular expressions that a recipe has by name.

RE2, which is a part of pyarrow, searches in time that is proportional to the text, whatever the expression. In return
it has no look-around and no back-references, and it refuses an expression that needs too much memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rstar2.data.filters.settings import Pattern, PatternField
from rstar2.data.rows import Kind
from rstar2.errors import UserError

FIELDS: dict[Kind, tuple[PatternField, ...]] = {
    "problems": ("problem", "answer"),
    "conversations": ("system", "user", "assistant", "tool", "calls"),
}
"""What a pattern can read of rows of each kind."""
_DEFAULT: dict[Kind, tuple[PatternField, ...]] = {
    "problems": ("problem",),
    "conversations": ("user", "assistant"),
}
_BEFORE, _LENGTH = 20, 120
"""Bytes in front of a match, and of the text in the details of a drop."""


@dataclass(frozen=True)
class PatternFilter:
    """Drops rows with a match in one of the fields; None reads the kind's usual ones.

    Each message, and the arguments of each call, is a text of its own: `^` and `$` are its beginning and its end.
    """

    regex: str
    fields: tuple[PatternField, ...] | None

    @classmethod
    def of(cls, pattern: Pattern) -> PatternFilter:
        return cls(pattern.regex, pattern.fields)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read. `text` stands for a problem, and for the messages of a conversation."""
        return ("text", "answer") if self.fields is not None and "answer" in self.fields else ("text",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        kind: Kind = "problems" if "problem" in batch.schema.names else "conversations"
        done: set[int] = set()
        for field in self.fields or _DEFAULT[kind]:
            rows, texts = _texts(batch, field)
            places = pc.find_substring_regex(texts, self.regex)
            for at in np.flatnonzero(places.fill_null(-1).to_numpy(zero_copy_only=False) >= 0).tolist():
                row = int(rows[at])
                if row not in done:
                    done.add(row)
                    yield row, {"field": field, "text": _around(texts[at].as_py(), places[at].as_py())}


def check_regex(key: str, regex: str) -> None:
    """Raises UserError if a regular expression is not one of RE2, or needs too much memory."""
    try:
        pc.find_substring_regex(pa.array([""]), regex)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise UserError(
            f"{key}.regex = {regex!r} is not a regular expression of RE2: {reason}",
            "RE2 has no look-around and no back-references: https://github.com/google/re2/wiki/Syntax. In TOML, write "
            "expressions in single quotes, in which a backslash is a backslash.",
        ) from error


def _texts(batch: Any, field: PatternField) -> tuple[Any, Any]:
    """The texts of a field, and the row of each."""
    if field in ("problem", "answer"):
        return np.arange(batch.num_rows), batch.column(field)
    messages = batch.column("messages")
    said = pc.list_flatten(messages)
    rows = pc.list_parent_indices(messages).to_numpy()
    if field == "calls":
        calls = said.field("tool_calls")
        functions = pc.list_flatten(calls).field("function")
        return rows[pc.list_parent_indices(calls).to_numpy()], functions.field("arguments")
    of_role = pc.equal(said.field("role"), field)
    return rows[of_role.to_numpy(zero_copy_only=False)], said.field("content").filter(of_role)


def _around(text: str, place: int) -> str:
    """What stands at a match, with a little before it; `place` counts bytes."""
    encoded = text.encode()
    start = max(0, place - _BEFORE)
    return " ".join(encoded[start : start + _LENGTH].decode(errors="ignore").split())
