"""A substitute for a tokenizer, for servers that return only text. Each id stands for up to four bytes of UTF-8.

The agent loop, its budgets and its traces use token ids, but a chat API returns none. The number of ids is therefore an
estimate of the number of tokens: four bytes of English text are about one token.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, Literal

from rstar2.loop.formats.format import Format, read_format
from rstar2.loop.turns import tags
from rstar2.loop.turns.breaker import without_turn_tokens
from rstar2.loop.turns.codec import ChatCodec, Message
from rstar2.loop.turns.template import END_OF_TURN, TemplateCodec

ToolsIn = Literal["request", "text", "nothing"]
"""The part of a request that describes the tools.

request: the field `tools` describes the tools, and calls are read from `tool_calls` in the answer. text: the system
text describes the tools, and calls are read from the text of the answer. nothing: there are no tools.
"""
BYTES = 4
"""Maximum number of bytes that an id stands for."""
START = "<|im_start|>"
START_ID = 1
END_ID = 2
_SPECIAL = {START: START_ID, END_OF_TURN: END_ID}
_OFFSET = 3
NO_OUTPUT = "There is no output, because the call did not finish."
"""The reply to a call that was stopped, or that was not run because of a limit. A chat API accepts no call without a
reply.
"""
TEMPLATE = (
    "{% for message in messages %}" + START + "{{ message.role }}\n{{ message.content }}" + END_OF_TURN + "\n"
    "{% endfor %}{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"
)
"""The chat template for conversations that `TextTokenizer` encodes. `messages_of` parses the encoded conversation, and
no model sees it.
"""


class TextTokenizer:
    """The part of a Hugging Face tokenizer that `ChatCodec` uses."""

    name_or_path = "text"
    chat_template = TEMPLATE
    all_special_tokens = tuple(_SPECIAL)
    all_special_ids = tuple(_SPECIAL.values())

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        while text:
            places = [(text.find(token), token) for token in _SPECIAL if token in text]
            at, token = min(places, default=(len(text), ""))
            ids += plain_ids(text[:at])
            ids += [_SPECIAL[token]] if token else []
            text = text[at + len(token) :]
        return ids

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        special = {} if skip_special_tokens else {number: token for token, number in _SPECIAL.items()}
        parts = (special.get(i, "").encode() if i < _OFFSET else _unpacked(i) for i in token_ids)
        return b"".join(parts).decode("utf-8", "replace")

    def convert_ids_to_tokens(self, token_id: int) -> str:
        return self.decode([token_id])

    def apply_chat_template(
        self, messages: Sequence[Any], *, chat_template: str, add_generation_prompt: bool, **_: Any
    ) -> str:
        return str(
            _template(chat_template).render(messages=messages, add_generation_prompt=add_generation_prompt)
        )


@functools.cache
def _template(source: str) -> Any:
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    return ImmutableSandboxedEnvironment().from_string(source)


def plain_ids(text: str) -> list[int]:
    """Returns the ids of a text without special tokens.

    Written in base 256, an id is the digit 1 followed by the bytes of the text. The leading 1 preserves the number of
    bytes.
    """
    data = text.encode("utf-8", "replace")
    parts = (data[start : start + BYTES] for start in range(0, len(data), BYTES))
    return [_OFFSET + int.from_bytes(b"\1" + part) for part in parts]


def _unpacked(token_id: int) -> bytes:
    number = token_id - _OFFSET
    return number.to_bytes((number.bit_length() + 7) // 8)[1:]


def text_codec(tool: str, tools_in: ToolsIn = "request") -> ChatCodec:
    """Create a codec for a server that applies its own template.

    Args:
        tool: the name or the `module:object` of the only tool, see `Format.with_tool`.
        tools_in: the part of a request that describes the tool.
    """
    if tools_in == "request":
        fmt = Format(template=TEMPLATE, tools_in_prompt=False).with_tool(tool)
        return TemplateCodec(TextTokenizer(), fmt, "the server's own")
    named = "listed-tools" if tools_in == "text" else "no-tools"
    fmt = read_format(named, TEMPLATE)
    if tools_in == "text":
        fmt = fmt.with_tool(tool)
    return TemplateCodec(TextTokenizer(), fmt, f"{named}, in the server's own template")


def messages_of(token_ids: Sequence[int], tools_in: ToolsIn = "request") -> list[Message]:
    """Parse a prompt of `text_codec` into messages of OpenAI's API, without the turn that the model has to write.

    Only special ids separate messages. Text that looks like a special token is broken up, so that the server does not
    read it as a special token.
    """
    tokenizer = TextTokenizer()
    messages: list[Message] = []
    waiting: list[str] = []
    """Ids of the calls that have no reply yet."""
    for number, ids in enumerate(_split(token_ids)[1:-1]):
        role, _, content = tokenizer.decode(ids).partition("\n")
        content = without_turn_tokens(content)
        if role != "tool":
            messages += _no_output(waiting)
            waiting = []
        if role == "assistant" and tools_in == "request":
            message, waiting = _assistant(content, number)
            messages.append(message)
        elif role == "assistant":
            messages.append({"role": role, "content": _without_thought(content).strip()})
        elif role == "tool" and waiting:
            messages.append({"role": "tool", "tool_call_id": waiting.pop(0), "content": content})
        elif role == "tool":
            _add_reply(messages, content)
        else:
            messages.append({"role": role, "content": content})
    return messages + _no_output(waiting)


def _no_output(call_ids: Sequence[str]) -> list[Message]:
    return [{"role": "tool", "tool_call_id": call_id, "content": NO_OUTPUT} for call_id in call_ids]


def _without_thought(turn: str) -> str:
    """Returns the text of a turn after its thought. A thought that was stopped has no end tag."""
    rest = tags.after_thought(turn)
    return "" if tags.unfinished_thought(rest) else rest


def _split(token_ids: Sequence[int]) -> list[list[int]]:
    """Returns the token ids of each message. A message lies between a start id and the last end id before the next
    start id.
    """
    parts: list[list[int]] = [[]]
    for token in token_ids:
        if token == START_ID:
            parts.append([])
        else:
            parts[-1].append(token)
    ends = [len(part) - 1 - part[::-1].index(END_ID) if END_ID in part else 0 for part in parts]
    return [[token for token in part[:end] if token != END_ID] for part, end in zip(parts, ends, strict=True)]


def _add_reply(messages: list[Message], content: str) -> None:
    """Add the reply to a call as a user message. All replies to the calls of one turn are in the same message."""
    reply = f"{tags.REPLY}\n{content}\n{tags.REPLY_END}"
    if len(messages) > 1 and messages[-1]["role"] == "user" and messages[-2]["role"] == "assistant":
        messages[-1]["content"] += f"\n{reply}"
    else:
        messages.append({"role": "user", "content": reply})


def plain_messages(messages: Sequence[Message]) -> list[Message]:
    """Returns the messages, in which text that looks like the start or end of a message is broken up."""
    return [
        {**message, "content": without_turn_tokens(message["content"])}
        if isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def _assistant(content: str, number: int) -> tuple[dict[str, Any], list[str]]:
    """Returns a turn of the model without its thought, and the ids of its calls."""
    read = tags.read_turn(_without_thought(content))
    calls: list[dict[str, Any]] = []
    for call in read.calls:
        if call.fault:
            body = {"text": tags.body(call.text)}
            function = {"name": "invalid", "arguments": json.dumps(body, ensure_ascii=False)}
        else:
            function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
        calls.append({"id": f"call_{number}_{len(calls)}", "type": "function", "function": function})
    first = next((part.start for part in read.parts if part.kind == "call"), len(read.text))
    message: dict[str, Any] = {
        "role": "assistant",
        "content": read.text[:first].strip() or (None if calls else ""),
    }
    return message | ({"tool_calls": calls} if calls else {}), [str(call["id"]) for call in calls]
