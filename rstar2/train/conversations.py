"""Reads the conversations of SFT, and encodes them so that prompts and tool replies have the same tokens as in RL."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from rstar2.data.parquet import iter_rows
from rstar2.data.taught import ANSWER_FORM, as_taught, tools_of
from rstar2.errors import UserError
from rstar2.files import read_objects
from rstar2.loop.turns.codec import ChatCodec, Encoded, Message
from rstar2.loop.turns.tags import message_text

HOW_A_ROW_LOOKS = (
    f"A row must be {{messages: [{{role, content}}, …]}}, optionally with tools and {ANSWER_FORM}."
)
_ROLES = ("system", "user", "assistant", "tool")


def read_conversations(path: Path) -> Iterator[dict[str, Any]]:
    """Reads SFT conversations from a Parquet or JSON Lines file, one at a time.

    Raises UserError if a row is not a conversation, or if the file is empty. The message names the row and its fault.
    """
    hint = HOW_A_ROW_LOOKS
    is_parquet = path.suffix == ".parquet"
    rows = iter_rows(path, "messages") if is_parquet else (row for _, row in read_objects(path, hint))
    number = 0
    for number, row in enumerate(rows, 1):
        if fault := conversation_fault(row):
            raise UserError(f"{path}, row {number}: {fault}", hint)
        yield row
    if not number:
        raise UserError(f"{path} is empty", "Give at least one conversation.")


def conversation_fault(row: dict[str, Any]) -> str:
    """Returns text that says what is wrong with a row of conversations, or an empty text if nothing is wrong."""
    fault = _fault(row.get("messages")) or ("" if _are_tools(row) else "tools is not a list of schemas")
    if not isinstance(row.get(ANSWER_FORM), bool | None):
        fault = fault or f"{ANSWER_FORM} is {row[ANSWER_FORM]!r}, not true or false"
    return fault or ("" if _can_be_encoded(row) else "holds half a surrogate pair")


def encode(row: dict[str, Any], codec: ChatCodec) -> Encoded:
    """Encodes one row from `read_conversations` for SFT, see `as_taught` and `ChatCodec.training_sample`.

    A row from a trace may contain the token ids that the model wrote (`rstar2.data.rows.TOKENS`). Token ids that belong
    to the same tokenizer and format are used unchanged, because encoding the text again could give other ids.
    """
    tokens = row.get("tokens")
    if tokens and tokens["codec"] == codec.digest:
        return Encoded(array("i", tokens["input_ids"]), array("b", tokens["loss_mask"]))
    taught = as_taught(row, codec.texts)
    return codec.training_sample(taught.messages, taught.tools)


def question_of(messages: Sequence[Message], around: tuple[str, str]) -> str:
    """Returns the first question of a conversation: all text before the assistant's first message.

    System texts are not part of the question.

    Args:
        around: the texts that a format puts before and after a problem, which are not part of the question.
    """
    before = takewhile(lambda message: message["role"] != "assistant", messages)
    texts = [message.get("content") or "" for message in before if message["role"] != "system"]
    first, last = around
    return "\n".join(text.removeprefix(first).removesuffix(last) for text in texts)


def _are_tools(row: dict[str, Any]) -> bool:
    try:
        tools = tools_of(row)
    except ValueError:
        return False
    return tools is None or (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools))


def _can_be_encoded(row: dict[str, Any]) -> bool:
    """Whether a tokenizer accepts all texts of a row. A tokenizer rejects half a surrogate pair."""
    texts = [[message_text(message), message.get("reasoning_content")] for message in row["messages"]]
    try:
        json.dumps([texts, tools_of(row)], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _are_calls(calls: Any) -> bool:
    """Whether the value is a list of calls in the form of OpenAI's API. `arguments` may be JSON text or an object."""
    try:
        return isinstance(calls, list | tuple) and bool(message_text({"tool_calls": calls}) or not calls)
    except (KeyError, TypeError, ValueError):
        return False


def _fault(messages: Any) -> str | None:
    """Returns text that says what is wrong with a row's messages, or None if nothing is wrong."""
    if not isinstance(messages, list) or not messages:
        return "no messages"
    for place, message in enumerate(messages, 1):
        if not isinstance(message, dict):
            return f"message {place} is not an object"
        calls = message.get("tool_calls") or []
        if not _are_calls(calls):
            return f"message {place} has tool_calls that are not [{{function: {{name, arguments}}}}, …]"
        if not isinstance(message.get("content"), str) and (message.get("content") is not None or not calls):
            return f"message {place} has no text content"
        if message.get("role") not in _ROLES:
            return f"message {place} has role {message.get('role')!r}"
    if messages[0]["role"] == "assistant":
        return "begins with an assistant message"
    if all(message["role"] != "assistant" for message in messages):
        return "no assistant message to learn from"
    return None
