"""A chat over a chat API: an answer that was stopped keeps its text, and the conversation goes on."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.servers.chat_api import ChatEndpoint
from support.servers.vllm_standin import serving
from support.tools import SharedTools

from rstar2.chat.conversation import Conversation
from rstar2.engines.chat_api import open_chat_api
from rstar2.loop.agent import Limits
from rstar2.loop.engine import Sampling
from rstar2.loop.tools.python_code_with_standard_io import NAME
from rstar2.loop.trace import ToolCall, Trace

CODE = json.dumps({"code": "print(42)"})


class Prints42(SharedTools):
    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        return ToolCall(name=name, arguments=arguments, status="ok", output="42")


@contextlib.asynccontextmanager
async def _chat(*replies: dict[str, Any]) -> AsyncIterator[tuple[Conversation, ChatEndpoint]]:
    """A chat with an endpoint that gives these replies, in order."""
    remaining = iter(replies)
    with serving(ChatEndpoint(lambda _: next(remaining))) as endpoint:
        opened = await open_chat_api(endpoint.url, None, None)
        chat = Conversation(opened.engine, opened.codec, Prints42(), Limits(), Sampling())
        yield chat, endpoint
        await chat.aclose()


async def _stopped_after(chat: Conversation, question: str, end: str) -> Trace:
    """Ask a question, and stop the answer when its text ends with `end`."""
    written: list[int] = []

    def stop(token_ids: list[int]) -> None:
        written.extend(token_ids)
        if chat.codec.decode(written).endswith(end):
            asking.cancel()

    asking = asyncio.ensure_future(chat.ask(question, stop))
    return await asking


@pytest.mark.parametrize("calls", [1, 3])
async def test_a_stopped_turn_keeps_its_text_after_finished_turns(calls: int) -> None:
    async with _chat(*[{"calls": [(NAME, CODE)]}] * calls, {"content": "one two three four five"}) as (
        chat,
        _,
    ):
        trace = await _stopped_after(chat, "Count.", "one two three f")
    assert trace.finish == "stopped"
    assert [turn.text for turn in trace.turns[calls:]] == ["one two three f"]


async def test_a_thought_that_was_stopped_is_not_sent_again() -> None:
    async with _chat({"thought": "I wonder about it"}, {"content": "yes"}) as (chat, endpoint):
        await _stopped_after(chat, "Why?", "I wonder a")
        await chat.ask("Sure?")
    assert [message["content"] for message in endpoint.requests[-1]["messages"]] == ["Why?", "", "Sure?"]


@pytest.mark.parametrize("end", ["print", "</tool_call>"])
async def test_a_question_follows_a_turn_that_was_stopped_in_its_call(end: str) -> None:
    async with _chat({"calls": [(NAME, CODE)]}, {"content": "yes"}) as (chat, endpoint):
        trace = await _stopped_after(chat, "Compute.", end)
        assert trace.finish == "stopped"
        assert not trace.calls
        assert (await chat.ask("Sure?")).finish == "answer"
    _, _, reply, _ = endpoint.requests[-1]["messages"]
    assert reply["content"] == "There is no output, because the call did not finish."


async def test_a_question_follows_calls_that_the_limit_on_turns_left_out() -> None:
    calls = [(NAME, CODE), (NAME, CODE)]
    async with _chat({"calls": calls}, {"content": "yes"}) as (chat, endpoint):
        chat.limits = Limits(max_turns=1)
        assert (await chat.ask("Compute.")).finish == "max_turns"
        assert (await chat.ask("Sure?")).finish == "answer"
    assert [message["role"] for message in endpoint.requests[-1]["messages"]] == [
        "user", "assistant", "tool", "tool", "user",
    ]  # fmt: skip
