"""ToolACE: function calls written as `[Name(arg=value), …]`, the functions listed in the system text."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from rstar2.data.conversations import (
    BAD_CALL,
    KEPT_TOOLS,
    Message,
    Tools,
    call,
    called,
    conversation_row,
    replied,
    said,
)
from rstar2.data.rows import Refused, list_of, parsed, strict_json, text_of
from rstar2.data.source import HubSet, Row, Source

_LIST = re.compile(r"\[\s*\{")
_TODAY = re.compile(r"(?:Today is|The current (?:time|date) is)[^\n]*")
_WORDS = {"true": True, "false": False, "null": None}
_CLOSES = {")": "(", "]": "[", "}": "{"}


def _read(row: Row) -> dict[str, Any]:
    system = text_of(row, "system")
    messages: list[Message] = [said("system", today[0])] if (today := _TODAY.search(system)) else []
    for turn in list_of(row, "conversations"):
        if not isinstance(turn, dict):
            raise Refused("malformed", "a turn is not an object")
        role, value = turn.get("from"), turn.get("value")
        if role == "tool":
            messages += _replies(value, messages)
        elif role == "assistant" and isinstance(value, str) and _is_call(value):
            messages.append(called(list(_calls(value))))
        elif role in ("user", "assistant"):
            messages.append(said(role, value))
        else:
            raise Refused("malformed", f"a turn is from {role!r}")
    return conversation_row(messages, _tools(system))


@lru_cache(KEPT_TOOLS)
def _tools(system: str) -> Tools:
    return Tools(_functions(system))


def _functions(system: str) -> list[Any]:
    """The functions in the system text; none where it lists none."""
    start = _LIST.search(system)
    if start is None:
        return []
    try:
        functions, _ = json.JSONDecoder(strict=False).raw_decode(system, start.start())
    except ValueError as error:
        raise Refused("malformed", f"the functions in system are not JSON: {error}") from error
    return list(functions)


def _is_call(value: str) -> bool:
    text = value.strip()
    return text.startswith("[") and text.endswith(")]")


def _calls(value: str) -> Iterator[dict[str, Any]]:
    for part in _split(value.strip()[1:-1]):
        name, opened, arguments = part.strip().partition("(")
        if not opened or not arguments.endswith(")"):
            raise Refused(BAD_CALL, f"not a call: {part.strip()[:80]}")
        pairs = [pair.partition("=") for pair in _split(arguments[:-1])]
        yield call(name.strip(), {key.strip(): _value(text.strip()) for key, _, text in pairs})


def _split(text: str) -> Iterator[str]:
    """The parts between commas that are in no bracket and no quotes; none of an empty text."""
    opened: list[str] = []
    quote, before, start, skip = "", "", 0, False
    for at, char in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = char == "\\"
            quote = "" if char == quote else quote
        elif char in "\"'" and before in "=[({,:":
            quote = char
        elif char in "([{":
            opened.append(char)
        elif char in _CLOSES:
            if not opened or opened.pop() != _CLOSES[char]:
                raise Refused(BAD_CALL, f"its brackets do not match: {text[:80]}")
        elif char == "," and not opened:
            yield text[start:at]
            start = at + 1
        before = char if not char.isspace() else before
    if opened or quote:
        raise Refused(BAD_CALL, f"a bracket or quote is not closed: {text[:80]}")
    if text[start:].strip():
        yield text[start:]


def _value(text: str) -> Any:
    """A value as JSON or Python writes it."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        return parsed(text)
    except ValueError:
        pass
    try:
        value = ast.literal_eval(text)
        json.dumps(value)
        return value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise Refused(BAD_CALL, f"not a value: {text[:80]}") from error


def _replies(value: Any, messages: list[Message]) -> list[Message]:
    """One reply per call of the last message; several calls get theirs as a JSON list of as many."""
    calls = len(messages[-1].get("tool_calls") or ()) if messages else 0
    if calls == 1:
        return [replied(value)]
    try:
        parts = parsed(value) if isinstance(value, str) else value
    except ValueError:
        parts = None
    if not isinstance(parts, list) or len(parts) != calls or not calls:
        raise Refused("malformed", f"{calls} calls, but a different number of replies")
    return [replied(part if isinstance(part, str) else strict_json(part, "a tool's reply")) for part in parts]


SOURCE = Source(
    kind="conversations",
    family="function-calls",
    licence="Apache-2.0 (its card; not checked)",
    columns=(("system", "conversations"),),
    read=_read,
    rows="11,300",
    download="37 MB",
    disk="about 80 MB",
    hub=(HubSet("Team-ACE/ToolACE", None, "train"),),
    paper="11K",
)
