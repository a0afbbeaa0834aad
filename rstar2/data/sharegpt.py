"""Reads conversations in ShareGPT's form: turns from human, gpt, function_call or observation; tools as JSON text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rstar2.data.conversations import (
    BAD_CALL,
    KEPT_TOOLS,
    Message,
    Tools,
    answered,
    call,
    called,
    conversation_row,
    replied,
    said,
)
from rstar2.data.rows import Refused, list_of, parsed, text_of
from rstar2.data.source import Row


def sharegpt_row(row: Row) -> dict[str, Any]:
    """The columns of a conversation with `conversations`, `tools` and optionally `system`.

    Raises:
        Refused: as `conversation_row`, or a turn or the tools are not in this form.
    """
    tools = _tools(text_of(row, "tools"))
    messages: list[Message] = [said("system", row["system"])] if row.get("system") else []
    for turn in list_of(row, "conversations"):
        if not isinstance(turn, dict):
            raise Refused("malformed", "a turn is not an object")
        role, value = turn.get("from"), turn.get("value")
        if role == "function_call":
            messages.append(called(_calls(value)))
        elif role == "observation":
            messages.append(replied(value))
        elif role == "human":
            messages.append(said("user", value))
        elif role == "gpt":
            messages.append(answered(value, tools))
        else:
            raise Refused("malformed", f"a turn is from {role!r}")
    return conversation_row(messages, tools)


@lru_cache(KEPT_TOOLS)
def _tools(text: str) -> Tools:
    try:
        tools = parsed(text)
    except ValueError as error:
        raise Refused("malformed", f"tools is not JSON: {error}") from error
    if not isinstance(tools, list):
        raise Refused("malformed", "tools is not a JSON list")
    return Tools(tools)


def _calls(value: Any) -> list[dict[str, Any]]:
    """The calls of a turn: an object with name and arguments, or a list of them."""
    try:
        listed = parsed(value) if isinstance(value, str) else value
    except ValueError as error:
        raise Refused(BAD_CALL, f"not JSON: {error}") from error
    if isinstance(listed, dict):
        listed = [listed]
    if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
        raise Refused(BAD_CALL, "not an object with name and arguments")
    return [call(each.get("name"), each.get("arguments")) for each in listed]
