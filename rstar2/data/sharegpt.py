"""Reads conversations in ShareGPT's form, with turns of human, gpt, function_call and observation, and JSON tools."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from rstar2.data.conversations import (
    BAD_CALL,
    KEPT_TOOLS,
    Message,
    Tools,
    call,
    call_message,
    conversation_row,
    prose_message,
    text_message,
    tool_reply,
)
from rstar2.data.rows import Refused, list_of, parsed, text_of
from rstar2.data.source import Row


def sharegpt_row(row: Row) -> dict[str, Any]:
    """Convert a row with `conversations`, `tools` and optionally `system` to the columns of a conversation.

    Raises:
        Refused: a turn or the tools do not have this form, or the conversation is wrong (see `conversation_row`).
    """
    tools = _tools(text_of(row, "tools"))
    messages: list[Message] = [text_message("system", row["system"])] if row.get("system") else []
    for turn in list_of(row, "conversations"):
        if not isinstance(turn, dict):
            raise Refused("malformed", "a turn is not an object")
        role, value = turn.get("from"), turn.get("value")
        if role == "function_call":
            messages.append(call_message(_calls(value)))
        elif role == "observation":
            messages.append(tool_reply(value))
        elif role == "human":
            messages.append(text_message("user", value))
        elif role == "gpt":
            messages.append(prose_message(value, tools))
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
    """Returns the calls of a turn. `value` is an object with name and arguments, a list of such objects, or the JSON
    text of one of them."""
    try:
        listed = parsed(value) if isinstance(value, str) else value
    except ValueError as error:
        raise Refused(BAD_CALL, f"not JSON: {error}") from error
    if isinstance(listed, dict):
        listed = [listed]
    if not isinstance(listed, list) or not listed or not all(isinstance(each, dict) for each in listed):
        raise Refused(BAD_CALL, "not an object with name and arguments")
    return [call(each.get("name"), each.get("arguments")) for each in listed]
