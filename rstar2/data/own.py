"""Reads data files of users. The columns of a file decide whether its rows are problems or conversations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from rstar2.data.conversations import (
    BAD_CALL,
    Message,
    Tools,
    call,
    call_message,
    conversation_row,
    text_message,
    tool_reply,
)
from rstar2.data.reading import columns_of
from rstar2.data.rows import Refused, list_of, parsed, problem_row, text_of
from rstar2.data.source import Row, Source
from rstar2.errors import UserError
from rstar2.loop.turns import tags

_HINT = (
    'A row is {"problem": …, "answer": …} or {"messages": [{"role": …, "content": …}, …], "tools": […]}. '
    '"id" is optional.'
)


def own_source(file: Path) -> Source:
    """Returns the source that reads a user's file.

    Raises UserError if the file cannot be read, or contains neither problems nor conversations.
    """
    columns = columns_of(file)
    if "messages" in columns:
        return _SAMPLED if "tokens" in columns else _CONVERSATIONS
    if "problem" in columns:
        return _PROBLEMS
    raise UserError(
        f"{file} has no column `problem` or `messages`; it has {', '.join(columns) or 'no rows'}", _HINT
    )


def _optional_columns(row: Row) -> dict[str, Any]:
    return {name: text_of(row, name) for name in ("id", "licence") if row.get(name) is not None}


def _read_problem(row: Row) -> dict[str, Any]:
    rate = row.get("pass_rate")
    if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float)):
        raise Refused("malformed", f"pass_rate is {rate!r}, not a number")
    return {**problem_row(text_of(row, "problem"), text_of(row, "answer"), rate), **_optional_columns(row)}


def _read_conversation(row: Row) -> dict[str, Any]:
    tools = row.get("tools") or []
    if isinstance(tools, str):
        try:
            tools = parsed(tools)
        except ValueError as error:
            raise Refused("malformed", f"tools is not JSON: {error}") from error
    if not isinstance(tools, list):
        raise Refused("malformed", "tools is not a list")
    messages = [_message(message) for message in list_of(row, "messages")]
    return {**conversation_row(messages, Tools(tools)), **_optional_columns(row)}


def _read_sampled(row: Row) -> dict[str, Any]:
    """Read a row of a file with token ids (`rstar2.train.rejection`).

    The messages of a row with token ids stay unchanged. A row without token ids is read like any other conversation.
    """
    tokens = row.get("tokens")
    if tokens is None:
        return _read_conversation(row)
    if not isinstance(tokens, dict) or len(tokens.get("input_ids") or ()) != len(
        tokens.get("loss_mask") or ()
    ):
        raise Refused("malformed", "in tokens, loss_mask and input_ids have different lengths")
    return {
        "messages": list_of(row, "messages"),
        "tools": row.get("tools") or "[]",
        "tokens": tokens,
        **_optional_columns(row),
    }


def _message(message: Any) -> Message:
    role = message.get("role") if isinstance(message, dict) else None
    if role == "tool":
        return {**tool_reply(message.get("content")), "tool_call_id": _id(message, "tool_call_id")}
    if role not in ("system", "user", "assistant"):
        raise Refused("malformed", f"a message has role {role!r}")
    if role == "assistant":
        message = _with_calls_apart(message)
    if not message.get("tool_calls"):
        return text_message(role, message.get("content"))
    try:
        functions = [each["function"] for each in message["tool_calls"]]
        calls = [call(function["name"], function["arguments"]) for function in functions]
        ids = [_id(each, "id") for each in message["tool_calls"]]
    except (KeyError, TypeError) as error:
        raise Refused(BAD_CALL, "tool_calls are not [{function: {name, arguments}}, …]") from error
    return call_message(
        [{**each, "id": call_id} for each, call_id in zip(calls, ids, strict=True)], message.get("content")
    )


def _with_calls_apart(message: dict[str, Any]) -> dict[str, Any]:
    """Returns an assistant message in the form that `conversation_row` takes.

    Calls in tags at the end of the message's text are moved to `tool_calls`. A thought in `reasoning_content` is moved
    into the text.
    """
    content, thought = message.get("content"), message.get("reasoning_content")
    if not message.get("tool_calls") and isinstance(content, str) and (calls := tags.ending_calls(content)):
        # These calls have no ids, because their replies are in the order of the calls.
        listed = [{"function": {"name": call.name, "arguments": call.arguments}} for call in calls[1]]
        message = {**message, "content": calls[0], "tool_calls": listed}
    if isinstance(thought, str) and thought.strip() and isinstance(content, str | None):
        message = {**message, "content": tags.thought_first(thought.strip(), message.get("content") or "")}
    return message


def _id(value: dict[str, Any], key: str) -> str | None:
    """Returns the id that connects a reply with its call. Returns None if the message or call `value` has no id."""
    return text_of(value, key) if value.get(key) is not None else None


_PROBLEMS = Source(
    kind="problems",
    family="math",
    licence="the user's",
    columns=(("problem", "answer"),),
    more=("id", "licence", "pass_rate"),
    read=_read_problem,
)
_CONVERSATIONS = Source(
    kind="conversations",
    family="own",
    licence="the user's",
    columns=(("messages",),),
    more=("id", "licence", "tools"),
    read=_read_conversation,
)
_SAMPLED = replace(_CONVERSATIONS, columns=(("messages", "tokens"),), read=_read_sampled, token_ids=True)
