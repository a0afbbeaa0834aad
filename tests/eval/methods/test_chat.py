"""Requests by chat messages: parts removed from a reply, tool calls through a template, and servers that refuse."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from contextlib import aclosing

import pytest
from support.servers.chat_standin import ChatStandIn
from support.servers.vllm_standin import serving
from support.waiting import TIMEOUT_S

from rstar2.data.problem import Problem
from rstar2.engines.oracle import byte_codec
from rstar2.engines.pool import RetryingEngine
from rstar2.eval.methods.chat import EngineChat, ServerChat, answer_text, trace_of
from rstar2.loop.engine import Engine, EngineError, Generation, OnTokens, Sampling
from rstar2.loop.turns.choose import codec_for
from rstar2.loop.turns.codec import ChatCodec
from rstar2.retry import RetryPolicy, ServiceGone

NO_TOOLS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
GREEDY = Sampling(temperature=0.0, max_tokens=50)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ("plain", "plain"),
        ("<think>a</think>\n\nb", "b"),
        ("<reason>a</reason>\n<answer>b c</answer>", "b c"),
        ("a</reason>b", "b"),
        ("<think>it never ends", ""),
        ("", ""),
    ],
)
def test_reasoning_and_answer_tags_are_taken_off(reply: str, answer: str) -> None:
    assert answer_text(reply) == answer


def _retrying(engine: Engine) -> RetryingEngine:
    return RetryingEngine(engine, RetryPolicy(TIMEOUT_S).service("engine"), TIMEOUT_S)


class RecordingEngine:
    """An engine that records the prompt and always writes the same text."""

    name = "writes"

    def __init__(self, codec: ChatCodec, text: str) -> None:
        self._codec = codec
        self._text = text
        self.prompt = ""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        self.prompt = self._codec.tokenizer.decode(list(prompt_ids))
        return Generation([*self._codec.tokenizer.encode(self._text), self._codec.end_id], None, "stop")

    async def aclose(self) -> None:
        return


async def test_a_models_own_calls_become_those_of_the_api_and_go_back_through_the_template() -> None:
    codec = byte_codec()
    call = {"name": "add", "arguments": {"a": 1}}
    engine = RecordingEngine(
        codec, f"hm</reason>\n<tool_call>{json.dumps(call)}</tool_call><tool_call>broken</tool_call>"
    )
    schema = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}
    chat = EngineChat(_retrying(engine), codec)
    first = await chat.reply([{"role": "user", "content": "1+1?"}], GREEDY, [schema])
    assert '"add"' in engine.prompt
    assert first.finish == "tool_calls"
    (api_call,) = first.message["tool_calls"]
    assert api_call["function"] == {"name": "add", "arguments": '{"a": 1}'}
    messages = [{"role": "user", "content": "1+1?"}, first.message, {"role": "tool", "content": "two"}]
    await chat.reply(messages, GREEDY, [schema])
    assert "two" in engine.prompt
    without = await chat.reply([{"role": "user", "content": "1+1?"}], GREEDY)
    assert "tool_calls" not in without.message
    assert chat.tokens == first.tokens * 3
    problem = Problem("simple_0", "1+1?", "2")
    (turn,) = trace_of(problem, 0, [first], 0.1).turns
    assert turn.text.removeprefix("<reason>") == codec.decode(first.token_ids)


async def test_the_trace_has_the_calls_that_a_server_tells_apart() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    with serving(ChatStandIn(lambda body: {"content": None, "tool_calls": [call]})) as server:
        async with aclosing(ServerChat(server.url, None, RetryPolicy(TIMEOUT_S), TIMEOUT_S)) as chat:
            reply = await chat.reply([{"role": "user", "content": "?"}], GREEDY)
    (turn,) = trace_of(Problem("simple_0", "?", "2"), 0, [reply], 0.1).turns
    assert turn.text == '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'


async def test_functions_that_the_models_template_drops_are_no_wrong_answer() -> None:
    codec = byte_codec()
    knows_none = codec_for(
        codec.tokenizer, codec.format.model_copy(update={"template": NO_TOOLS, "tools": []}), "own"
    )
    schema = {"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}
    chat = EngineChat(_retrying(RecordingEngine(knows_none, "hm")), knows_none)
    with pytest.raises(EngineError, match="chat template leaves out the function add") as dropped:
        await chat.reply([{"role": "user", "content": "1+1?"}], GREEDY, [schema])
    assert "--native-calls" in dropped.value.hint
    assert (await chat.reply([{"role": "user", "content": "1+1?"}], GREEDY)).text == "hm"


async def test_a_busy_server_is_asked_again_and_a_refusal_is_final() -> None:
    server = ChatStandIn(lambda body: "fine")
    server.busy_answers = 1
    with serving(server):
        async with aclosing(ServerChat(server.url, None, RetryPolicy(TIMEOUT_S), TIMEOUT_S)) as chat:
            reply = await chat.reply([{"role": "user", "content": "?"}], GREEDY)
            assert (reply.text, reply.tokens, chat.tokens) == ("fine", 7, 7)
        async with aclosing(
            ServerChat(f"{server.url}/elsewhere", "m", RetryPolicy(TIMEOUT_S), TIMEOUT_S)
        ) as chat:
            with pytest.raises(EngineError, match="refused the request: HTTP 404"):
                await chat.reply([{"role": "user", "content": "?"}], GREEDY)


@pytest.mark.parametrize(("context", "text", "limits"), [(30, "fine", [50, 24]), (5, "", [50])])
async def test_a_reply_gets_the_tokens_that_the_context_has_room_for(
    context: int, text: str, limits: list[int]
) -> None:
    server = ChatStandIn(lambda body: "fine")
    server.context = context
    with serving(server):
        async with aclosing(ServerChat(server.url, None, RetryPolicy(TIMEOUT_S), TIMEOUT_S)) as chat:
            reply = await chat.reply([{"role": "user", "content": "?"}], GREEDY)
    assert (reply.text, reply.finish) == (text, "stop" if text else "length")
    assert [body["max_tokens"] for body in server.requests] == limits


async def test_one_of_several_models_must_be_named() -> None:
    for names, model_list in {
        "ab": "2 models: a, b",
        "abcdefgh": "8 models: a, b, c, d, e and 3 more",
    }.items():
        with serving(ChatStandIn(lambda body: "fine", names=tuple(names))) as server:
            async with aclosing(ServerChat(server.url, None, RetryPolicy(TIMEOUT_S), TIMEOUT_S)) as chat:
                with pytest.raises(EngineError) as error:
                    await chat.named()
        assert error.value.message == f"the server at {server.url} serves {model_list}"


OFF = {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Values that vLLM takes from the model's generation_config.json where a request does not have them."""


@pytest.mark.parametrize(("owned_by", "extra_values"), [("vllm", OFF), ("rstar2", OFF), ("openai", {})])
async def test_every_sampling_value_is_sent_to_a_server_that_is_known_to_take_them(
    owned_by: str, extra_values: dict[str, float]
) -> None:
    server = ChatStandIn(lambda body: "fine")
    server.owned_by = owned_by
    with serving(server):
        for name in (None, "scripted"):
            async with aclosing(ServerChat(server.url, name, RetryPolicy(TIMEOUT_S), TIMEOUT_S)) as chat:
                await chat.reply([{"role": "user", "content": "?"}], GREEDY)
    for request in server.requests:
        assert {key: value for key, value in request.items() if key in OFF} == extra_values
        assert (request["temperature"], request["top_p"]) == (0.0, 1.0)


async def test_a_turn_that_takes_too_long_is_a_server_that_does_not_answer() -> None:
    class Stuck(RecordingEngine):
        async def generate(
            self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
        ) -> Generation:
            await asyncio.Event().wait()
            raise AssertionError

    codec = byte_codec()
    chat = EngineChat(RetryingEngine(Stuck(codec, ""), RetryPolicy(0.0).service("engine"), 0.05), codec)
    with pytest.raises(ServiceGone, match=r"writes did not finish a turn within 0\.05 seconds"):
        await chat.reply([{"role": "user", "content": "?"}], GREEDY)
