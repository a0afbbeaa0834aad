"""Finds the tool calls in the text of a turn. Everything that reads a whole turn asks here, so that all find the same.

A call is `<tool_call>…</tool_call>`, or a tag without its end after which a JSON object begins, as in a turn that ended
too early. Otherwise the model only mentions the tag; so it does where a final turn, which has its `<answer>`, holds
nothing else than pairs in which no JSON object begins.

What shows a turn while it is written cannot know how the turn ends: it asks `begins_object`, and shows as text what is
no JSON object.
"""

from __future__ import annotations

import re

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_OBJECT = r"\s*\{\s*[\"}]"
_CALL = re.compile(rf"{OPEN}(?:(?={_OBJECT}).*?(?:{CLOSE}|\Z)|(?:(?!{OPEN}).)*?{CLOSE})", re.DOTALL)
_CLOSED_CALL = re.compile(rf"{OPEN}.*?{CLOSE}", re.DOTALL)
_BEGINS_OBJECT = re.compile(_OBJECT)
REASONING_ENDS = ("</think>", "</reason>")


def find_calls(text: str, closed_only: bool = False) -> list[re.Match[str]]:
    """The calls of a turn in order, tags included.

    With `closed_only`, a call runs from any `<tool_call>` to the next `</tool_call>`, as in the authors' released code.
    """
    if closed_only:
        # Behind the last end there is none, and looking there from each beginning would take quadratic time.
        return list(_CLOSED_CALL.finditer(text, 0, text.rfind(CLOSE) + len(CLOSE)))
    found = list(_CALL.finditer(text))
    if not found or any(begins_object(call_body(call[0])) for call in found):
        return found
    said = after_reasoning(_CALL.sub("", text))
    has_answer = "</answer>" in said.partition("<answer>")[2]
    return [] if has_answer else found


def after_reasoning(text: str) -> str:
    """What follows the reasoning of a turn; the whole turn if no reasoning ends in it."""
    for end in REASONING_ENDS:
        text = text.rpartition(end)[2]
    return text


def call_body(written: str) -> str:
    """What a call holds between its tags."""
    return written.removeprefix(OPEN).removesuffix(CLOSE)


def call_bodies(text: str, closed_only: bool = False) -> list[str]:
    """What the calls of a turn hold, see `find_calls`."""
    return [call_body(call[0]) for call in find_calls(text, closed_only)]


def parted(text: str) -> list[str]:
    """The text of a turn at even places, and between them its calls."""
    parts, end = [], 0
    for call in find_calls(text):
        parts += [text[end : call.start()], call[0]]
        end = call.end()
    return [*parts, text[end:]]


def without_calls(text: str, replacement: str = "") -> str:
    """The text of a turn with `replacement` in place of each call."""
    return replacement.join(parted(text)[::2])


def begins_object(text: str) -> bool | None:
    """Whether a JSON object begins the text after a `<tool_call>`; None if too little of it has arrived yet."""
    return None if text.strip() in ("", "{") else _BEGINS_OBJECT.match(text) is not None
