"""Filters that a recipe defines as regular expressions.

The regex engine is RE2, which is part of pyarrow. A search with RE2 always takes time proportional to the length of the
text. However, RE2 has no look-around and no back-references, and rejects expressions that need too much memory.
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
"""Dict from each kind of rows to the fields that a pattern can search."""
_DEFAULT: dict[Kind, tuple[PatternField, ...]] = {
    "problems": ("problem",),
    "conversations": ("user", "assistant"),
}
_BEFORE, _LENGTH = 20, 120
"""The details of a dropped row quote `_LENGTH` bytes of the text, from `_BEFORE` bytes before the match."""


@dataclass(frozen=True)
class PatternFilter:
    """Drops rows with a match in one of the fields. If `fields` is None, the default fields of problems or of
    conversations are searched.

    Each message and the arguments of each call are searched separately, so that `^` and `$` match at the ends of each
    message and of each call's arguments.
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
        dropped_rows: set[int] = set()
        for field in self.fields or _DEFAULT[kind]:
            rows, texts = _texts(batch, field)
            places = pc.find_substring_regex(texts, self.regex)
            for at in np.flatnonzero(places.fill_null(-1).to_numpy(zero_copy_only=False) >= 0).tolist():
                row = int(rows[at])
                if row not in dropped_rows:
                    dropped_rows.add(row)
                    yield row, {"field": field, "text": _around(texts[at].as_py(), places[at].as_py())}


def check_regex(key: str, regex: str) -> None:
    """Raise UserError if RE2 cannot compile a regular expression, or needs too much memory for the expression."""
    try:
        pc.find_substring_regex(pa.array([""]), regex)
    except pa.ArrowInvalid as error:
        reason = str(error).removeprefix("Invalid regular expression: ")
        raise UserError(
            f"{key}.regex = {regex!r} is not a regular expression of RE2: {reason}",
            "RE2 has no look-around and no back-references: https://github.com/google/re2/wiki/Syntax. In TOML, write "
            "a regular expression in single quotes, so that backslashes need no escaping.",
        ) from error


def _texts(batch: Any, field: PatternField) -> tuple[Any, Any]:
    """Returns the row index of each text in a field, and the texts."""
    if field in ("problem", "answer"):
        return np.arange(batch.num_rows), batch.column(field)
    messages = batch.column("messages")
    flat = pc.list_flatten(messages)
    rows = pc.list_parent_indices(messages).to_numpy()
    if field == "calls":
        calls = flat.field("tool_calls")
        functions = pc.list_flatten(calls).field("function")
        return rows[pc.list_parent_indices(calls).to_numpy()], functions.field("arguments")
    of_role = pc.equal(flat.field("role"), field)
    return rows[of_role.to_numpy(zero_copy_only=False)], flat.field("content").filter(of_role)


def _around(text: str, place: int) -> str:
    """Returns the text around a match that begins at byte `place`."""
    encoded = text.encode()
    start = max(0, place - _BEFORE)
    return " ".join(encoded[start : start + _LENGTH].decode(errors="ignore").split())
