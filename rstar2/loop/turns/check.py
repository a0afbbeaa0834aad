"""Tests a format before a run depends on it: renders a sample conversation, and parses it back."""

from __future__ import annotations

from typing import Any

from rstar2.errors import UserError
from rstar2.loop.turns import tags
from rstar2.loop.turns.codec import ChatCodec, Message

_TEXTS = ('print("6" * 7, \'it\\\'s <b>&amp;</b> π → 字\')\nx = {"a": [1, 2]}', "s = '\\n'\nprint(s)")
"""Programs with quotes, tags and Unicode.

The programs do not end in a line break. Families that write values between tags (Qwen3.5, GLM, MiniMax, Nemotron) drop
a final line break, while families that write JSON (Qwen3, Llama) keep it.
"""
_THOUGHT, _ANSWER, _REPLY = "I ask Python: <b>6</b> 字 π?", "It is \\boxed{42}.", "42 π"


def check_round_trip(codec: ChatCodec) -> None:
    """Raise UserError if parsing a rendered conversation does not return the same thoughts, calls and answer."""
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
        raise _fault(codec, f"a conversation of {len(turns) + 1} turns is rendered with {len(spans)} turns")
    for number, (start, end) in enumerate(spans):
        read = codec.parse(ids[start:end], ids[:start])
        expected = turns[number] if number < len(turns) else []
        parsed_calls = [(call.name, call.arguments) for call in read.calls]
        if parsed_calls != expected:
            why = "; ".join(call.fault for call in read.calls if call.fault)
            why = why or f"{expected} was parsed as {parsed_calls}"
            raise _fault(codec, f"tool calls cannot be read back: {why}")
        # A chat template without thoughts leaves the thought out.
        thought = _THOUGHT if _THOUGHT in codec.tokenizer.decode(ids[start:end]) else ""
        if read.thought.strip() != thought or (not expected and read.visible_text.strip() != _ANSWER):
            raise _fault(
                codec,
                f"a turn cannot be read back: {read.text!r} was parsed as the thought {read.thought!r} and the text "
                f"{read.visible_text!r}",
            )
        if expected:
            replies: list[Message] = [{"role": "tool", "name": name, "content": _REPLY} for _ in expected]
            bridge = codec.bridge(ids[:start], ids[start:end], replies)
            after = ids[end : spans[number + 1][0]]
            if bridge != after:
                raise _fault(
                    codec,
                    "the tokens between a tool call and the next turn differ from the same tokens of the whole "
                    "conversation",
                )
    if calls and codec.format.template_tools is not None:
        _check_template(codec, calls[:1])


def _check_template(codec: ChatCodec, calls: list[tuple[str, Any]]) -> None:
    """Raise UserError if the template writes calls that do not use rstar2's tags."""
    written = codec.written_by_template([_openai(*call) for call in calls])
    if written is None:
        return
    parsed_calls = [(call.name, call.arguments) for call in tags.read_turn(written).calls]
    if parsed_calls != calls:
        raise _fault(codec, "the chat template writes tool calls in a syntax that this format cannot read")


def _message(codec: ChatCodec, content: str, calls: list[tuple[str, Any]]) -> Message:
    message: Message = {"role": "assistant", "content": codec.content(_THOUGHT, content)}
    message["reasoning_content"] = _THOUGHT
    return message | ({"tool_calls": [_openai(*call) for call in calls]} if calls else {})


def _openai(name: str, arguments: Any) -> Message:
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}


def _tool(codec: ChatCodec) -> tuple[str, str]:
    """Returns the names of a tool and of one of its arguments of type string.

    Both names are empty if no tool of the codec's format has an argument of type string.
    """
    for schema in codec.format.tools:
        properties = schema["function"].get("parameters", {}).get("properties", {})
        for key, value in properties.items():
            if value.get("type") == "string":
                return str(schema["function"]["name"]), str(key)
    return "", ""


def _runs(mask: list[int]) -> list[tuple[int, int]]:
    """Returns the start and the end of each run of consecutive values of 1."""
    edges = [at for at, (a, b) in enumerate(zip([0, *mask], [*mask, 0], strict=True)) if a != b]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _fault(codec: ChatCodec, what: str) -> UserError:
    where = codec.tokenizer.name_or_path or "the tokenizer"
    return UserError(
        f"{where}, format {codec.source}: {what}",
        "Use --format with the model's family, or with listed-tools, which tells the model how to call tools.",
    )
