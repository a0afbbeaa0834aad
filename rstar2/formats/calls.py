"""Finds the tool calls in the text of a turn. Everything that reads calls asks here, so that all find the same.

A call is `<tool_call>…</tool_call>`. A tag without its end is a call only if a JSON object begins after it, as in a
turn that ended too early. Otherwise the model only mentions the tag.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

OPEN, CLOSE = "<tool_call>", "</tool_call>"
CALL = rf"{OPEN}(?:(?=\s*\{{).*?(?:{CLOSE}|\Z)|(?:(?!{OPEN}).)*?{CLOSE})"
"""A regular expression without groups, for `re.DOTALL`."""
_CALL = re.compile(CALL, re.DOTALL)
_CLOSED_CALL = re.compile(rf"{OPEN}.*?{CLOSE}", re.DOTALL)


def find_calls(text: str, closed_only: bool = False) -> Iterator[re.Match[str]]:
    """The calls of a turn in order, tags included.

    With `closed_only`, a call runs from any `<tool_call>` to the next `</tool_call>`, as in the authors' released code.
    """
    return (_CLOSED_CALL if closed_only else _CALL).finditer(text)


def call_body(written: str) -> str:
    """What a call holds between its tags."""
    return written.removeprefix(OPEN).removesuffix(CLOSE)


def call_bodies(text: str, closed_only: bool = False) -> list[str]:
    """What the calls of a turn hold, see `find_calls`."""
    return [call_body(call[0]) for call in find_calls(text, closed_only)]


def without_calls(text: str, replacement: str = "") -> str:
    """The text of a turn with `replacement` in place of each call."""
    return _CALL.sub(replacement, text)


def begins_object(text: str) -> bool | None:
    """Whether a JSON object begins the text after a `<tool_call>`; None if only white space has arrived yet."""
    text = text.lstrip()
    return text.startswith("{") if text else None
