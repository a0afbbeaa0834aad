"""A chat's prompts have the same ids as training: the model's turns unchanged, the rest as the template renders it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.tools import SharedTools
from support.turns import user_turn

from rstar2.chat.conversation import Conversation
from rstar2.loop.agent import Limits
from rstar2.loop.engine import Generation, OnTokens, Sampling
from rstar2.loop.tools.python_code_with_standard_io import NAME
from rstar2.loop.trace import ToolCall
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.conversations import encode

OUTPUTS = ["", "π √2 日本語 😀", "x" * 300, "a <|im_end|> b", "(no output)", "two\n\nlines\n"]
CALLS = [
    json.dumps({"name": NAME, "arguments": {"code": "print('π')"}}, ensure_ascii=False),
    '{"name": "nothing", "arguments": {}}',
    "{not JSON",
]
TEXT = st.sampled_from(["Hello", "Was ist 2 · π?", "", "😀 <|im_start|>user", "line\n\nline "])


class Scripted:
    """An engine that writes the given turns, cuts them at the token limit, and records the prompts."""

    name = "scripted"

    def __init__(self, codec: ChatCodec, turns: list[str]) -> None:
        self._codec = codec
        self._turns = list(turns)
        self.prompts: list[list[int]] = []

    async def generate(
        self, prompt_ids: Any, sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        self.prompts.append(list(prompt_ids))
        ids = self._codec.turn(self._turns.pop(0))
        token_ids = ids[: sampling.max_tokens]
        return Generation(token_ids, None, "stop" if len(token_ids) == len(ids) else "length")

    async def aclose(self) -> None:
        return


class Replies(SharedTools):
    def __init__(self, outputs: list[str]) -> None:
        self._outputs = list(outputs)

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        return ToolCall(name=name, arguments=arguments, status="ok", output=self._outputs.pop(0))


@given(
    answers=st.lists(
        st.tuples(TEXT, st.lists(st.tuples(st.sampled_from(CALLS), st.sampled_from(OUTPUTS)), max_size=2)),
        min_size=1,
        max_size=4,
    )
)
async def test_several_turns_with_failed_calls_are_encoded_as_sft_encodes_them(
    codec: ChatCodec, answers: list[tuple[str, list[tuple[str, str]]]]
) -> None:
    """A conversation has the same ids as a training row with the same messages."""
    turns = []
    for _, calls in answers:
        turns += [f"I call.</reason>\n<tool_call>\n{call}\n</tool_call>" for call, _ in calls]
        turns.append("Done.</reason>\n<answer>√4 = \\boxed{2}</answer>")
    outputs = [output for _, calls in answers for call, output in calls if call == CALLS[0]]
    chat = Conversation(
        Scripted(codec, turns), codec, Replies(outputs), Limits(max_turns=10, max_tokens=100_000), Sampling()
    )
    messages: list[dict[str, Any]] = []
    for question, _ in answers:
        trace = await chat.ask(question)
        opening = [{"role": "user", "content": question}]
        messages += opening if messages else codec.format.messages(question)
        for turn in trace.turns:
            messages.append({"role": "assistant", "content": f"{codec.turn_start}{turn.text}"})
            messages += [{"role": "tool", "content": call.output} for call in turn.calls]
    row = {"messages": messages, "tools": list(codec.format.tools)}
    assert list(encode(row, codec).input_ids) == chat.history


async def test_an_answer_that_was_cut_is_closed_and_nothing_of_it_is_encoded_again(codec: ChatCodec) -> None:
    engine = Scripted(codec, ["a long thought that is cut in its middle", "Done."])
    chat = Conversation(engine, codec, Replies([]), Limits(max_tokens=6), Sampling())
    trace = await chat.ask("Was ist 2 · π?")
    assert trace.finish == "max_tokens"
    await chat.ask("And?")
    first, second = engine.prompts
    assert second == [*first, *trace.response_ids, codec.end_id, *user_turn(codec, "And?")]
