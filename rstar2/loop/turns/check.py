"""Tries a format before anything depends on it: renders a made-up conversation, and reads it back."""

from __future__ import annotations

from typing import Any

from rstar2.errors import UserError
from rstar2.loop.turns import tags
from rstar2.loop.turns.codec import ChatCodec, Message

_TEXTS = ('print("6" * 7, \'it\\\'s <b>&amp;</b> π → 字\')\nx = {"a": [1, 2]}', "s = '\\n'\nprint(s)")
"""Code with quotes, tags and Unicode.

Neither ends in a line break: the families that write values between tags (Qwen3.5, GLM, MiniMax, Nemotron) drop it,
those that write JSON (Qwen3, Llama) do not.
"""
_THOUGHT, _ANSWER, _REPLY = "I ask Python: <b>6</b> 字 π?", "It is \\boxed{42}.", "42 π"


def check_round_trip(codec: ChatCodec) -> None:
    """Raise a UserError if a conversation with calls does not come back as it was rendered."""
    name, key = _tool(codec)
    calls = [(name, {key: text}) for text in _TEXTS] if name else []
    one_call = codec.format.calls_per_turn == 1
    turns = [[call] for call in calls] if one_call else [calls] if calls else []
    messages: list[Message] = [*codec.format.messages("What is 6 times 7?")]
    for called in turns:
        messages.append(_message(codec, "", called))
        messages += [{"role": "tool", "name": name, "content": _REPLY} for _ in called]
    messages.append(_message(codec, _ANSWER, []))
    encoded = codec.training_sample(messages, None)
    ids, mask = encoded.input_ids.tolist(), encoded.loss_mask.tolist()
    spans = _runs(mask)
    if len(spans) != len(turns) + 1:
        raise _fault(codec, f"a conversation of {len(turns) + 1} turns becomes one of {len(spans)}")
    for number, (start, end) in enumerate(spans):
        read = codec.parse(ids[start:end], ids[:start])
        expected = turns[number] if number < len(turns) else []
        came = [(call.name, call.arguments) for call in read.calls]
        if came != expected:
            why = "; ".join(call.fault for call in read.calls if call.fault) or f"{came} came back"
            raise _fault(codec, f"tool calls cannot be read back: {why}")
        # A chat template without thoughts leaves it out.
        thought = _THOUGHT if _THOUGHT in codec.tokenizer.decode(ids[start:end]) else ""
        if read.thought.strip() != thought or (not expected and read.said.strip() != _ANSWER):
            raise _fault(
                codec, f"a turn cannot be read back: {read.text!r} is {read.thought!r} and {read.said!r}"
            )
        if expected:
            replies: list[Message] = [{"role": "tool", "name": name, "content": _REPLY} for _ in expected]
            bridge = codec.bridge(ids[:start], ids[start:end], replies)
            after = ids[end : spans[number + 1][0]]
            if bridge != after:
                raise _fault(codec, "what follows a tool call is not what the whole conversation has there")
    if calls and codec.format.shown_tools is not None:
        _check_template(codec, calls[:1])


def _check_template(codec: ChatCodec, calls: list[tuple[str, Any]]) -> None:
    """Raise a UserError if the template writes calls in another way than our tags."""
    written = codec.written_by_template([_openai(*call) for call in calls])
    came = (
        None if written is None else [(call.name, call.arguments) for call in tags.read_turn(written).calls]
    )
    if came is not None and came != calls:
        raise _fault(codec, "the chat template writes tool calls in a way that this format does not read")


def _message(codec: ChatCodec, content: str, calls: list[tuple[str, Any]]) -> Message:
    message: Message = {"role": "assistant", "content": codec.content(_THOUGHT, content)}
    message["reasoning_content"] = _THOUGHT
    return message | ({"tool_calls": [_openai(*call) for call in calls]} if calls else {})


def _openai(name: str, arguments: Any) -> Message:
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool(codec: ChatCodec) -> tuple[str, str]:
    """The name of a tool of the format and of a text among its arguments; empty if there is none."""
    for schema in codec.format.tools:
        properties = schema["function"].get("parameters", {}).get("properties", {})
        for key, value in properties.items():
            if value.get("type") == "string":
                return str(schema["function"]["name"]), str(key)
    return "", ""


def _runs(mask: list[int]) -> list[tuple[int, int]]:
    """Where the runs of ones begin and end."""
    edges = [at for at, (a, b) in enumerate(zip([0, *mask], [*mask, 0], strict=True)) if a != b]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _fault(codec: ChatCodec, what: str) -> UserError:
    where = codec.tokenizer.name_or_path or "the tokenizer"
    return UserError(
        f"{where}, format {codec.source}: {what}",
        "Name the format of the model's family with --format, or listed-tools, which tells the model how to call.",
    )
