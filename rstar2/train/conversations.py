"""Reads the conversations of SFT, and encodes them as rollouts will: the same prompts, the same replies of tools."""

from __future__ import annotations

import json
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from rstar2.data.parquet import iter_rows
from rstar2.errors import UserError
from rstar2.files import read_objects, whole_path
from rstar2.loop.prompts import ChatCodec, Message

_WRITTEN_TOGETHER = 1024
"""Conversations in a record batch of the file for SFT."""
_ROLES = ("system", "user", "assistant", "tool")


@dataclass(frozen=True)
class Encoded:
    """A conversation as SFT sees it."""

    input_ids: array[int]
    """Shape (T,)."""
    loss_mask: array[int]
    """Shape (T,): 1 where the model has to write the token."""

    def cut(self, tokens: int) -> Encoded:
        return Encoded(self.input_ids[:tokens], self.loss_mask[:tokens])


def read_conversations(path: Path) -> Iterator[dict[str, Any]]:
    """Reads SFT conversations from parquet or JSON lines, one at a time.

    Raises UserError if a row is not a conversation. The error names the row and what is wrong with it.
    """
    hint = "A row must be {messages: [{role, content}, …]}, optionally with tools."
    is_parquet = path.suffix == ".parquet"
    rows = iter_rows(path, "messages") if is_parquet else (row for _, row in read_objects(path, hint))
    number = 0
    for number, row in enumerate(rows, 1):
        fault = _fault(row.get("messages")) or ("" if _are_tools(row) else "tools is not a list of schemas")
        fault = fault or ("" if _can_be_encoded(row) else "holds half a surrogate pair")
        if fault:
            raise UserError(f"{path}, row {number}: {fault}", hint)
        yield row
    if not number:
        raise UserError(f"{path} is empty", "Give at least one conversation.")


def encode(row: dict[str, Any], codec: ChatCodec) -> Encoded:
    """Encode a row of `read_conversations`; what follows the last assistant message is left out.

    Generation starts inside the generation prompt's `<reason>`, so in a conversation with tool calls a turn without a
    thought gets an empty one. Other conversations are taught as they are. A conversation with tool calls and without
    `tools` is shown the format's tools.
    """
    messages: list[Message] = row["messages"]
    calls = any(message["role"] == "tool" or message.get("tool_calls") for message in messages)
    tools = _tools(row)
    if tools is None and not calls:
        tools = []
    ids, mask, before = array("i"), array("b"), list[Message]()
    for message in messages:
        if message["role"] != "assistant":
            before.append({"role": message["role"], "content": message.get("content") or ""})
            continue
        text = written(message)
        if text.startswith(codec.turn_start):
            started, text = True, text.removeprefix(codec.turn_start)
        elif calls:
            started, text = True, _empty_thought(codec.turn_start) + text
        else:
            started = False
        given = codec.between(before, started) if ids else codec.prompt(before, tools, started)
        turn = codec.turn(text)
        ids.extend([*given, *turn])
        mask.extend([*[0] * len(given), *[1] * len(turn)])
        before = []
    return Encoded(ids, mask)


def write_encoded(path: Path, conversations: Iterable[Encoded]) -> None:
    """Write what `rstar2.train.verl.sft_dataset` reads: an Arrow file, 5 bytes a token, whole or absent."""
    import pyarrow

    columns = {"input_ids": pyarrow.int32(), "loss_mask": pyarrow.int8()}
    schema = pyarrow.schema([(name, pyarrow.list_(kind)) for name, kind in columns.items()])
    path.parent.mkdir(parents=True, exist_ok=True)
    rest = iter(conversations)
    with (
        whole_path(path) as part,
        pyarrow.OSFile(str(part), "wb") as file,
        pyarrow.ipc.new_file(file, schema) as writer,
    ):
        while group := list(islice(rest, _WRITTEN_TOGETHER)):
            ends = accumulate((len(each.input_ids) for each in group), initial=0)
            offsets = pyarrow.array(list(ends), type=pyarrow.int32())
            lists = [
                pyarrow.ListArray.from_arrays(offsets, _joined([getattr(each, name) for each in group], kind))
                for name, kind in columns.items()
            ]
            writer.write_batch(pyarrow.record_batch(lists, schema=schema))


def _joined(parts: list[array[int]], kind: Any) -> Any:
    """An Arrow array of all parts, one after another."""
    import pyarrow

    values = array(parts[0].typecode)
    for part in parts:
        values.extend(part)
    return pyarrow.Array.from_buffers(kind, len(values), [None, pyarrow.py_buffer(values)])


def _empty_thought(turn_start: str) -> str:
    """What ends the thought that the generation prompt opens, such as `</reason>`."""
    tag = re.fullmatch(r"<(\w+)>\s*", turn_start)
    return f"</{tag[1]}>\n" if tag else ""


def written(message: Message) -> str:
    """An assistant message as the model has to write it: calls of OpenAI's form follow the text."""
    calls = [_call_text(call["function"]) for call in message.get("tool_calls") or []]
    return "\n".join([*filter(None, [message.get("content")]), *calls])


def _call_text(function: dict[str, Any]) -> str:
    arguments = function["arguments"]
    given = json.loads(arguments) if isinstance(arguments, str) else arguments
    call = json.dumps({"name": function["name"], "arguments": given}, ensure_ascii=False)
    return f"<tool_call>\n{call}\n</tool_call>"


def _tools(row: dict[str, Any]) -> list[Message] | None:
    """A row's tools, as a list or as JSON; None where it has none."""
    tools = row.get("tools")
    found: list[Message] | None = json.loads(tools) if isinstance(tools, str) else tools
    return found


def _are_tools(row: dict[str, Any]) -> bool:
    try:
        tools = _tools(row)
    except ValueError:
        return False
    return tools is None or (isinstance(tools, list) and all(isinstance(tool, dict) for tool in tools))


def _can_be_encoded(row: dict[str, Any]) -> bool:
    """Whether the texts that a row of messages and tools comes to are such that a tokenizer takes them."""
    texts = [written(message) for message in row["messages"]]
    try:
        json.dumps([texts, _tools(row)], ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _are_calls(calls: Any) -> bool:
    """Whether they are calls as OpenAI's API writes them; `arguments` is JSON, as text or not."""
    try:
        return isinstance(calls, list | tuple) and all(_call_text(call["function"]) for call in calls)
    except (KeyError, TypeError, ValueError):
        return False


def _fault(messages: Any) -> str | None:
    """What is wrong with a row's messages, if anything is."""
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
