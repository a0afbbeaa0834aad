"""Stands in for a tokenizer where a server shows only text: an id is up to four bytes of UTF-8.

The agent loop, its budgets and its traces are in token ids. Of a server that gives none, their number is estimated so:
four bytes of English are about a token.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

from rstar2.loop.formats.format import Format
from rstar2.loop.turns import tags
from rstar2.loop.turns.codec import ChatCodec
from rstar2.loop.turns.template import END_OF_TURN, TemplateCodec

BYTES = 4
"""Bytes of an id at most."""
START = "<|im_start|>"
END_ID = 2
_SPECIAL = {START: 1, END_OF_TURN: END_ID}
_OFFSET = 3
TEMPLATE = (
    "{% for message in messages %}" + START + "{{ message.role }}\n{{ message.content }}" + END_OF_TURN + "\n"
    "{% endfor %}{% if add_generation_prompt %}" + START + "assistant\n{% endif %}"
)
"""Holds a conversation in such ids, so that `messages_of` can read it again. No model sees it."""


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
    """The ids of a text in which nothing is special; each is its bytes after a leading 1, which keeps their number."""
    data = text.encode("utf-8", "replace")
    parts = (data[start : start + BYTES] for start in range(0, len(data), BYTES))
    return [_OFFSET + int.from_bytes(b"\1" + part) for part in parts]


def _unpacked(token_id: int) -> bytes:
    number = token_id - _OFFSET
    return number.to_bytes((number.bit_length() + 7) // 8)[1:]


def text_codec(tool: str) -> ChatCodec:
    """A codec for a server that applies its own template, with one tool, named as in `Format.with_tool`."""
    fmt = Format(template=TEMPLATE, tools_in_prompt=False).with_tool(tool)
    return TemplateCodec(TextTokenizer(), fmt, "the server's own")


def messages_of(token_ids: Sequence[int]) -> list[dict[str, Any]]:
    """The conversation in a prompt of `text_codec`, as OpenAI's API writes it; the turn to be written is left out."""
    text = TextTokenizer().decode(token_ids)
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []
    """Ids of calls whose replies come next."""
    for number, part in enumerate(text.split(START)[1:-1]):
        role, _, content = part.rpartition(END_OF_TURN)[0].partition("\n")
        if role == "assistant":
            message, waiting = _assistant(content, number)
            messages.append(message)
        elif role == "tool" and waiting:
            messages.append({"role": "tool", "tool_call_id": waiting.pop(0), "content": content})
        else:
            messages.append({"role": "user" if role == "tool" else role, "content": content})
    return messages


def _assistant(content: str, number: int) -> tuple[dict[str, Any], list[str]]:
    """A turn of the model without its thought, and the ids of the calls in it."""
    read = tags.read_turn(tags.after_thought(content))
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
