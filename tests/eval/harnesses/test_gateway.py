"""The gateway between a harness and the model: budgets, counts, and a model that is unreachable or refuses."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import httpx
import pytest
from support.servers import openai_client as openai
from support.servers.chat_standin import ChatStandIn
from support.servers.vllm_standin import serving
from support.waiting import TIMEOUT_S

from rstar2.data.problem import Problem
from rstar2.eval.benchmarks.bfcl_v3 import BFCLMethod
from rstar2.eval.harnesses.gateway import Gateway
from rstar2.eval.harnesses.process import Refused
from rstar2.eval.methods.chat import ServerChat
from rstar2.eval.settings import EvalSettings
from rstar2.loop.engine import EngineError
from rstar2.processes import free_port
from rstar2.retry import RetryPolicy, ServiceGone

SETTINGS = EvalSettings(samples=1, temperature=0.0, max_tokens=33)


async def post(url: str) -> httpx.Response:
    body = {"model": "any", "messages": [{"role": "user", "content": "hello"}], "temperature": 0.9}
    async with httpx.AsyncClient(trust_env=False, timeout=TIMEOUT_S) as client:
        return await client.post(f"{url}/chat/completions", json=body)


async def test_a_request_is_asked_by_the_runs_settings_and_its_reply_is_kept() -> None:
    with serving(ChatStandIn(lambda body: "hi")) as server:
        async with (
            aclosing(ServerChat(server.url, None, RetryPolicy(TIMEOUT_S), TIMEOUT_S)) as chat,
            Gateway(chat, SETTINGS) as gateway,
        ):
            async with gateway.conversation("a", 0) as conversation:
                answer = (await post(conversation.url)).json()
            late = await post(conversation.url)
    assert answer["choices"][0]["message"]["content"] == "hi"
    assert answer["usage"]["completion_tokens"] == 7
    assert [reply.text for reply in conversation.replies] == ["hi"]
    (request,) = server.requests
    assert (request["temperature"], request["max_tokens"], request["model"]) == (0.0, 33, "scripted")
    assert late.status_code == 400


async def test_the_harness_gets_the_answer_and_the_record_keeps_the_reasoning() -> None:
    reply_text = "<reason>[f(a=0)] is wrong.</reason><answer>[f(a=1)]</answer>"
    with serving(ChatStandIn(lambda body: reply_text)) as server:
        async with (
            aclosing(ServerChat(server.url, None, RetryPolicy(TIMEOUT_S), TIMEOUT_S)) as chat,
            Gateway(chat, SETTINGS) as gateway,
            gateway.conversation("a", 0) as conversation,
        ):
            answer = (await post(conversation.url)).json()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "[f(a=1)]"}
    assert [reply.text for reply in conversation.replies] == [reply_text]


async def test_the_openai_client_of_a_harness_reads_the_answer_and_a_refusal() -> None:
    messages: list[Any] = [{"role": "user", "content": "hello"}]
    with serving(ChatStandIn(lambda body: "hi")) as server:
        async with (
            aclosing(ServerChat(server.url, None, RetryPolicy(TIMEOUT_S), TIMEOUT_S)) as chat,
            Gateway(chat, SETTINGS) as gateway,
        ):
            async with gateway.conversation("a", 0) as conversation:
                client = openai.AsyncOpenAI(base_url=conversation.url, api_key="none", max_retries=0)
                answer = await client.chat.completions.create(model="theirs", messages=messages)
            with pytest.raises(openai.BadRequestError, match="this conversation has ended") as error:
                await client.chat.completions.create(model="theirs", messages=messages)
            await client.close()
    choice = answer.choices[0]
    assert (answer.model, choice.message.content, choice.finish_reason) == ("theirs", "hi", "stop")
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.object) == (7, "chat.completion")
    assert error.value.type == "invalid_request_error"


async def test_each_sample_of_each_problem_has_seeds_of_its_own() -> None:
    settings = EvalSettings(samples=4, temperature=0.6)
    with serving(ChatStandIn(lambda body: "hi")) as server:
        async with (
            aclosing(ServerChat(server.url, None, RetryPolicy(TIMEOUT_S), TIMEOUT_S)) as chat,
            Gateway(chat, settings) as gateway,
        ):
            for problem, sample in (("a", 0), ("a", 1), ("b", 0), ("a", 0)):
                async with gateway.conversation(problem, sample) as conversation:
                    await post(conversation.url)
    *seeds, repeated_seed = [request["seed"] for request in server.requests]
    assert len(set(seeds)) == 3
    assert repeated_seed == seeds[0]


class OneRequestProcess:
    """A harness's program that sends one request and then cannot read the reply."""

    async def ask(self, action: str, **arguments: Any) -> Any:
        answer = await post(arguments["url"])
        raise Refused(f"HTTP {answer.status_code}")


async def record_of_sample(url: str, wait_s: float = TIMEOUT_S) -> dict[str, Any]:
    problem = Problem("simple_0", "?", "[]")
    async with (
        aclosing(ServerChat(url, "scripted", RetryPolicy(wait_s), TIMEOUT_S)) as chat,
        Gateway(chat, SETTINGS) as gateway,
    ):
        method = BFCLMethod(OneRequestProcess(), gateway, SETTINGS, {})  # type: ignore[arg-type]
        trace = await method.sample(problem, 0)
    return {"extracted": trace.extracted, "text": trace.final_text}


async def test_a_server_that_is_away_or_refuses_is_no_wrong_answer() -> None:
    with pytest.raises(ServiceGone):
        await record_of_sample(f"http://127.0.0.1:{free_port()}", wait_s=0.5)
    with serving(ChatStandIn(lambda body: "hi")) as server, pytest.raises(EngineError, match="HTTP 404"):
        await record_of_sample(f"{server.url}/elsewhere")


async def test_a_reply_that_the_harness_cannot_read_is_recorded_as_the_harness_does() -> None:
    with serving(ChatStandIn(lambda body: "hi")) as server:
        assert await record_of_sample(server.url) == {
            "extracted": '{"id": "simple_0", "result": "Error during inference: HTTP 200"}',
            "text": "hi",
        }
