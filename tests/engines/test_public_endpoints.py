"""Engines and the judge model with a stand-in for public endpoints: rates, full contexts, odd answers, refusals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.clock import Clock, policies_on
from support.servers.public_endpoint import (
    ANSWER,
    CONTEXT_WORDINGS,
    END,
    NO_MAX_TOKENS,
    NO_TEMPERATURE,
    PROVIDERS,
    Body,
    PublicEndpoint,
    Rate,
    Reply,
    Tokens,
    event,
    no_seed_422,
    refuses,
    stand_in,
)
from support.tools import SharedTools
from support.waiting import TIMEOUT_S

from rstar2.chat.model import ModelChoice, open_model
from rstar2.data.problem import Problem
from rstar2.engines.chat_api import ChatEngine, open_chat_api
from rstar2.engines.models import ServerModel
from rstar2.engines.pool import RetryingEngine
from rstar2.engines.rates import allowances, requested_pause_s
from rstar2.engines.refusals import (
    AccessRefused,
    ContentFiltered,
    ContextExceeded,
    KeyRefused,
    MalformedAnswer,
    QuotaExhausted,
    Refused,
    RefusedRequest,
    ToolsRefused,
    refusal,
)
from rstar2.engines.request_fields import request_fields
from rstar2.errors import RateLimited, UserError
from rstar2.eval.grader import Verdict, grade
from rstar2.eval.methods.agent import Grader
from rstar2.eval.methods.chat import ServerChat
from rstar2.eval.run import EvalResult, SamplesRefused, evaluate
from rstar2.eval.settings import EvalSettings
from rstar2.eval.terminal.tables import summary_lines
from rstar2.flow_control import Allowance
from rstar2.loop.agent import Limits, rollout
from rstar2.loop.engine import EngineError, EngineRateLimited, EngineUnavailable, Generation, Sampling
from rstar2.loop.tools.python_code_with_standard_io import NAME
from rstar2.loop.trace import ToolCall, read_traces
from rstar2.retry import ATTEMPTS, RetryPolicy, ServiceGone

PROBLEMS = [Problem(id=f"p{number}", problem=f"Compute {number}.", answer="42") for number in range(15)]


class Prints(SharedTools):
    """Tools whose programs print digits."""

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        return ToolCall(name=name, arguments=arguments, status="ok", output="7" * 400)


class RealGrader:
    async def agrade(self, gold: str | None, pred: str | None) -> Verdict:
        return grade(gold, pred)


class Accepts42:
    async def agrade(self, gold: str | None, pred: str | None) -> Verdict:
        right = pred is not None and "42" in pred
        return Verdict("correct" if right else "unparsed", "42" if right else None, "test")


@pytest.fixture
def endpoint() -> Iterator[PublicEndpoint]:
    with PublicEndpoint().serving() as endpoint:
        yield endpoint


@asynccontextmanager
async def open_endpoint(
    endpoint: PublicEndpoint, name: str | None = None, **options: Any
) -> AsyncIterator[ServerModel]:
    model = await open_chat_api(endpoint.url, name, None, RetryPolicy(TIMEOUT_S), **options)
    try:
        yield model
    finally:
        await model.engine.aclose()


async def measure(
    endpoint: PublicEndpoint, folder: Path, grader: Grader | None = None, **settings: Any
) -> EvalResult:
    """Evaluate the endpoint's model."""
    defaults = {"samples": 4, "max_tokens": 900, "in_flight": 64, "wait_s": TIMEOUT_S}
    async with open_endpoint(endpoint) as model:
        (result,) = await evaluate(
            {"set": (PROBLEMS, folder)},
            engine=model.engine,
            codec=model.codec,
            tools=Prints(),
            grader=grader or Accepts42(),
            settings=EvalSettings(**{**defaults, **settings}),
        )
    return result


def timing(folder: Path) -> dict[str, Any]:
    timing: dict[str, Any] = json.loads((folder / "results.json").read_text())["timing"]
    return timing


async def generate_turn(
    model: ServerModel, text: str = "Compute 6 * 7.", budget: int = 900
) -> tuple[str, Generation]:
    """Generate one turn, with the retries of an evaluation but without their pauses."""
    prompt = model.codec.prompt(model.codec.format.messages(text))
    engine = RetryingEngine(model.engine, policies_on(Clock())(60.0).service("engine"))
    generation = await engine.generate(prompt, Sampling(max_tokens=budget))
    return model.codec.decode(generation.token_ids), generation


# Rates


async def test_a_rate_limit_costs_no_sample(endpoint: PublicEndpoint, tmp_path: Path) -> None:
    endpoint.rate = Rate(4, 0.1, too_early=20)
    endpoint.limited = lambda: Reply(
        {"error": {"message": "Rate limit reached", "type": "requests", "code": "rate_limit_exceeded"}},
        429,
        {"Retry-After": "0.1"},
    )
    result = await measure(endpoint, tmp_path)
    assert result.summary["samples"] == 60
    assert result.complete
    assert endpoint.rejected_count >= 20
    (outages,) = timing(tmp_path)["outages"]
    assert outages["retries"] == {"rate limit (HTTP 429)": endpoint.rejected_count}
    assert outages["away_s"] == 0
    assert outages["paused_s"] > 0


async def test_the_judge_models_rate_limit_costs_no_reply(endpoint: PublicEndpoint) -> None:
    endpoint.rate = Rate(2, 0.05, too_early=10)
    endpoint.limited = lambda: Reply("slow down", 429, {"retry-after-ms": "50"}, kind="text/plain")
    chat = ServerChat(endpoint.url, None, RetryPolicy(TIMEOUT_S), TIMEOUT_S, "judge model")
    messages = [{"role": "user", "content": "?"}]
    replies = await asyncio.gather(*(chat.reply(messages, Sampling(max_tokens=9)) for _ in range(30)))
    await chat.aclose()
    assert [reply.text for reply in replies] == [ANSWER] * 30
    assert endpoint.rejected_count >= 10


async def test_a_rate_limit_that_outlasts_the_wait_ends_the_run_with_its_words(
    endpoint: PublicEndpoint, tmp_path: Path
) -> None:
    endpoint.rate = Rate(0, 1.0)
    endpoint.limited = lambda: Reply({"error": {"message": "Come back later"}}, 429, {"Retry-After": "7200"})
    with pytest.raises(ServiceGone, match=r"wait another 7200 seconds: .*HTTP 429: Come back later") as error:
        await measure(endpoint, tmp_path)
    assert "--wait" in error.value.hint
    assert json.loads((tmp_path / "results.json").read_text())["missing"] == 60


@pytest.mark.parametrize(
    "quota_reply",
    [
        Reply({"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}, 429),
        Reply({"error": {"message": "Insufficient Balance", "type": "unknown_error"}}, 402),
        Reply({"error": {"message": "Your credit balance is too low to access the API."}}, 400),
        Reply({"error": {"message": "Monthly quota exceeded"}}, 429),
        Reply(
            {"error": {"message": "Your team has used all available credits or reached its spending limit"}},
            403,
        ),
    ],
)
async def test_an_exhausted_quota_ends_the_run_at_once(
    endpoint: PublicEndpoint, tmp_path: Path, quota_reply: Reply
) -> None:
    endpoint.checks = lambda body: quota_reply
    with pytest.raises(QuotaExhausted, match="has no quota left") as caught:
        await measure(endpoint, tmp_path, in_flight=2)
    assert "Waiting does not help" in caught.value.hint
    assert len(endpoint.requests) <= 4


@pytest.mark.parametrize(
    ("headers", "text", "pause_s"),
    [
        ({"Retry-After": "2"}, "", 2.0),
        ({"retry-after-ms": "1500", "retry-after": "2"}, "", 1.5),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m6.5s"}, "", 66.5),
        (
            {
                "x-ratelimit-remaining-requests": "10",
                "x-ratelimit-reset-requests": "1h",
                "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-tokens": "120ms",
            },
            "",
            0.12,
        ),
        ({"ratelimit-remaining": "0", "ratelimit-reset": "9"}, "", 9.0),
        ({"RateLimit": '"default";r=0;t=30'}, "", 30.0),
        ({"RateLimit": '"burst";r=5;t=99, "day";r=0;t=40'}, "", 40.0),
        ({"x-ratelimit-remaining-requests-day": "0", "x-ratelimit-reset-requests-day": "3600"}, "", 3600.0),
        ({"x-ratelimit-remaining-tokens-minute": "0", "x-ratelimit-reset-tokens-minute": "12.5"}, "", 12.5),
        ({}, "Rate limit reached for m. Please try again in 1.352s. Visit the site.", 1.352),
        ({}, "Please try again in 7m12s.", 432.0),
        ({}, '{"error": {"details": [{"retryDelay": "34s"}]}}', 34.0),
        ({"Retry-After": "soon"}, "", 0.0),
        ({}, "", 0.0),
    ],
)
def test_the_pause_that_a_server_asks_for_is_read_from_headers_and_words(
    headers: dict[str, str], text: str, pause_s: float
) -> None:
    assert requested_pause_s(headers, text) == pytest.approx(pause_s)


@pytest.mark.parametrize(
    ("headers", "requests", "window_s"),
    [
        ({"x-ratelimit-remaining-requests": "59", "x-ratelimit-reset-requests": "1s"}, 59, 1.0),
        ({"X-RateLimit-Remaining-Requests": "7", "X-RateLimit-Reset-Requests": "6m0s"}, 7, 360.0),
        ({"x-ratelimit-remaining-requests": "7", "x-ratelimit-reset-requests": "1d2h"}, 7, 93_600.0),
        ({"x-ratelimit-remaining-tokens": "1500", "x-ratelimit-reset-tokens": "512.5µs"}, 3, 0.0005125),
        ({"x-ratelimit-remaining-tokens-minute": "250", "x-ratelimit-reset-tokens-minute": "9.5"}, 0.5, 9.5),
        (
            {"anthropic-ratelimit-requests-remaining": "4", "anthropic-ratelimit-requests-reset": "60"},
            4,
            60.0,
        ),
        ({"RateLimit": '"default";r=50;t=30'}, 50, 30.0),
        ({"x-ratelimit-remaining": "-1", "x-ratelimit-reset": "10"}, 0, 10.0),
    ],
)
def test_how_many_more_requests_a_server_takes_is_read_from_the_headers_of_an_answer(
    headers: dict[str, str], requests: float, window_s: float
) -> None:
    (allowed,) = allowances(headers, 500.0)
    assert (allowed.requests, allowed.window_s) == pytest.approx((requests, window_s))


def test_limits_that_cannot_be_read_or_counted_say_nothing() -> None:
    assert allowances({"x-ratelimit-remaining-requests": "9"}, 500.0) == []
    assert allowances({"x-ratelimit-remaining": "inf", "x-ratelimit-reset": "nan"}, 500.0) == []
    tokens = {"x-ratelimit-remaining-tokens": "9", "x-ratelimit-reset-tokens": "1s"}
    assert allowances(tokens, None) == []
    assert allowances({**tokens, "x-ratelimit-remaining-tokens": "0"}, None) == [Allowance(0.0, 1.0)]


@pytest.mark.parametrize("stream", [True, False])
async def test_requests_wait_before_the_rate_that_answers_name_is_exceeded(
    endpoint: PublicEndpoint, stream: bool
) -> None:
    endpoint.headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "40s"}
    clock = Clock()
    policy = policies_on(clock)(300.0)
    async with contextlib.AsyncExitStack() as stack:
        if stream:
            model = await stack.enter_async_context(open_endpoint(endpoint))
            service = policy.service("engine")
            engine = RetryingEngine(model.engine, service)
            prompt = model.codec.prompt(model.codec.format.messages("Compute 6 * 7."))

            async def ask() -> None:
                await engine.generate(prompt, Sampling(max_tokens=900))
        else:
            chat = ServerChat(endpoint.url, "m", policy, TIMEOUT_S)
            await stack.enter_async_context(contextlib.aclosing(chat))
            service = policy.service("server")

            async def ask() -> None:
                await chat.reply([{"role": "user", "content": "Compute 6 * 7."}], Sampling(max_tokens=900))

        await ask()
        assert clock.now == 0
        await ask()
    assert 0 < clock.now <= 40
    assert service.outages.spread_s == clock.now
    assert service.outages.retries == {}
    assert policy.outages[0].text.endswith(
        f"announced a rate limit, so requests waited for {clock.now:.0f} s"
    )


def test_the_pause_may_be_a_date_or_a_unix_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1_790_000_000.0)
    assert requested_pause_s({"Retry-After": "Mon, 21 Sep 2026 14:13:30 GMT"}, "") == pytest.approx(10.0)
    for reset in ("1790000005", "1790000005000"):
        headers = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}
        assert requested_pause_s(headers, "") == pytest.approx(5.0)
    for limited_unit in ("requests", "tokens", "input-tokens", "output-tokens"):
        limit = f"anthropic-ratelimit-{limited_unit}"
        headers = {f"{limit}-remaining": "0", f"{limit}-reset": "2026-09-21T14:13:30Z"}
        assert requested_pause_s(headers, "") == pytest.approx(10.0)


# Contexts


@pytest.mark.parametrize("wording", CONTEXT_WORDINGS)
@pytest.mark.parametrize("prompt", [1000, 9000])
async def test_a_rollout_that_fills_the_context_is_finished_in_every_wording(
    endpoint: PublicEndpoint, tmp_path: Path, wording: str, prompt: int
) -> None:
    context = 8192

    def checks(body: Body) -> Reply | None:
        requested = body.get("max_tokens")
        if prompt + (requested or 1) <= context:
            return None
        status, error_body = CONTEXT_WORDINGS[wording](Tokens(context, prompt, requested or 0))
        return Reply(error_body, status)

    endpoint.checks = checks
    question = "7 " * prompt
    async with open_endpoint(endpoint) as model:
        trace = await rollout(
            model.codec.prompt(model.codec.format.messages(question)),
            engine=model.engine,
            tools=Prints(),
            codec=model.codec,
            limits=Limits(max_tokens=30_000),
            sampling=Sampling(),
        )
        chat = ServerChat(endpoint.url, "m", RetryPolicy(0.0), TIMEOUT_S)
        reply = await chat.reply([{"role": "user", "content": question}], Sampling(max_tokens=30_000))
        await chat.aclose()
    if prompt < context:
        assert (trace.finish, trace.final_text) == ("answer", ANSWER)
        assert (reply.finish, reply.text) == ("stop", ANSWER)
    else:
        assert (trace.finish, trace.final_text) == ("max_tokens", "")
        assert (reply.finish, reply.text) == ("length", "")


@pytest.mark.parametrize("wording", CONTEXT_WORDINGS)
def test_the_lengths_in_every_wording_are_read_as_what_they_are(wording: str) -> None:
    status, error_body = CONTEXT_WORDINGS[wording](Tokens(8192, 9000, 17))
    error = refusal(RefusedRequest("the server at X", {}, ""), status, {}, json.dumps(error_body))
    assert isinstance(error, ContextExceeded)
    assert error.context in (None, 8192)
    assert error.prompt in (None, 9000)


async def test_a_short_prompt_that_stays_refused_for_the_context_is_an_error(
    endpoint: PublicEndpoint,
) -> None:
    """The prompt is short, so the server's message has another cause. The sample must not be graded as one that is too
    long."""
    endpoint.models = [{"id": "m", "max_model_len": 32_768}]
    endpoint.checks = lambda body: Reply({"error": {"message": "prompt is too long"}}, 400)
    async with open_endpoint(endpoint) as model:
        with pytest.raises(Refused, match="prompt is too long"):
            await generate_turn(model)
    assert ["max_tokens" in body for body in endpoint.requests] == [True, False]


async def test_a_busy_server_that_speaks_of_its_cache_is_asked_again(
    endpoint: PublicEndpoint, tmp_path: Path
) -> None:
    busy = {"message": "Not enough KV cache: reduce the number of concurrent requests", "type": "unavailable"}
    endpoint.script = [Reply({"error": busy}, 503)] * 5
    result = await measure(endpoint, tmp_path)
    assert (result.summary["truncated_share"], result.summary["accuracy"]) == (0, 1.0)
    assert timing(tmp_path)["outages"][0]["retries"] == {"HTTP 503 (unavailable)": 5}


async def test_what_was_written_before_the_context_was_full_is_kept(endpoint: PublicEndpoint) -> None:
    full = {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}
    endpoint.script = [Reply(lines=[event({"content": "I think"}), f"data: {json.dumps(full)}", ""])]
    async with open_endpoint(endpoint) as model:
        text, generation = await generate_turn(model)
    assert (text, generation.finish) == ("I think", "length")
    assert len(endpoint.requests) == 1


async def test_the_room_for_a_turn_is_the_servers_own_count(endpoint: PublicEndpoint) -> None:
    context, rooms = 4000, list[int]()
    call = {"id": "c", "function": {"name": NAME, "arguments": '{"code": "print(7)"}'}}

    def count_tokens(body: Body) -> int:
        """Count each character as a token. The client's estimate is one token per four bytes."""
        return 1000 + len(json.dumps(body["messages"]))

    def checks(body: Body) -> Reply | None:
        rooms.append(body["max_tokens"])
        assert count_tokens(body) < context
        return None

    endpoint.models = [{"id": "m", "max_model_len": context}]
    endpoint.checks = checks
    endpoint.answer = lambda body: {"tool_calls": [call]} if len(body["messages"]) < 4 else ANSWER
    endpoint.usage = lambda body: {"prompt_tokens": count_tokens(body), "completion_tokens": 30}
    async with open_endpoint(endpoint) as model:
        await rollout(
            model.codec.prompt(model.codec.format.messages("Compute 6 * 7.")),
            engine=model.engine,
            tools=Prints(),
            codec=model.codec,
            limits=Limits(max_tokens=30_000),
            sampling=Sampling(),
        )
    first, second, third = endpoint.requests
    # The client adds an estimate for the tool's reply, which is new since the server's last count: 4 bytes per token.
    for body, before, new in ((second, first, 120), (third, second, 120)):
        known_tokens = count_tokens(before) + 30
        assert known_tokens < context - body["max_tokens"] < known_tokens + new


async def test_the_budget_of_a_rollout_is_spent_in_tokens_of_the_server(endpoint: PublicEndpoint) -> None:
    call = {"id": "c", "function": {"name": NAME, "arguments": '{"code": "print(7)"}'}}

    def count_tokens(body: Body) -> int:
        return len(json.dumps(body["messages"]))

    endpoint.answer = lambda body: {"tool_calls": [call]} if len(body["messages"]) < 4 else ANSWER
    endpoint.usage = lambda body: {"prompt_tokens": count_tokens(body), "completion_tokens": 300}
    async with open_endpoint(endpoint) as model:
        trace = await rollout(
            model.codec.prompt(model.codec.format.messages("Compute 6 * 7.")),
            engine=model.engine,
            tools=Prints(),
            codec=model.codec,
            limits=Limits(max_tokens=2600),
            sampling=Sampling(),
        )
    first, second, third = endpoint.requests
    turns = ((first, second), (second, third))
    added_tokens = [count_tokens(after) - count_tokens(before) - 300 for before, after in turns]
    assert min(added_tokens) > 0
    assert first["max_tokens"] == 2600
    # When the next turn is requested, the tool's last output is only estimated.
    for body, used_tokens in ((second, 300), (third, 600 + added_tokens[0])):
        assert used_tokens < 2600 - body["max_tokens"] < used_tokens + 130
    assert trace.finish == "answer"
    assert trace.tokens == 900 + sum(added_tokens) > 3 * len(trace.response_ids)


# Odd answers


def _answer_lines(text: str = ANSWER) -> list[str]:
    return [event({"content": text}), event({}, "stop"), END]


ODD: dict[str, list[str]] = {
    "ping": ['data: "ping"', "", "data: ping", "", ": keep-alive", "", *_answer_lines()],
    "empty list": ["data: []", "", "data: 5", "", *_answer_lines()],
    "content as parts": [event({"content": [{"type": "text", "text": ANSWER}]}), event({}, "stop"), END],
    "error null": ['data: {"error": null, "choices": []}', "", *_answer_lines()],
    "choices null": ['data: {"choices": null}', "", *_answer_lines()],
    "delta null": ['data: {"choices": [{"index": 0, "delta": null}]}', "", *_answer_lines()],
    "no finish reason": [event({"content": ANSWER}), END],
    "another finish reason": [event({"content": ANSWER}), event({}, "eos"), END],
    "another choice": [event({"content": "no"}, index=1), *_answer_lines()],
    "one choice, of another number": [event({"content": ANSWER}, "stop", index=1), END],
    "usage is a list": [*_answer_lines()[:2], 'data: {"choices": [], "usage": []}', "", END],
    "finish reason is an object": [event({"content": ANSWER}), event({}, finish_reason={"type": "stop"}), END],
    "text of a completion": [f"data: {json.dumps({'choices': [{'text': ANSWER, 'finish_reason': 'stop'}]})}", "", END],
    "index null": [event({"content": ANSWER}, "stop", index=None), END],
    "no end of stream": _answer_lines()[:2],
    "event on two lines": ['data: {"choices":', f'data: [{{"delta": {json.dumps({"content": ANSWER})}}}]}}', "", END],
    "carriage returns": [line.replace("\n", "\r\n") for line in _answer_lines()],
    "separators in the text": [
        "data: " + json.dumps({"choices": [{"delta": {"content": ANSWER + "\u2028"}}]}, ensure_ascii=False) + "\n",
        END,
    ],
}  # fmt: skip
"""Streams that say `ANSWER`."""


@pytest.mark.parametrize("name", ODD)
async def test_an_odd_stream_is_read_as_it_is_meant(endpoint: PublicEndpoint, name: str) -> None:
    endpoint.script = [Reply(lines=ODD[name])]
    async with open_endpoint(endpoint) as model:
        text, generation = await generate_turn(model)
    assert (text.rstrip("\u2028"), generation.finish) == (ANSWER, "stop")
    assert len(endpoint.requests) == 1


@pytest.mark.parametrize("content", [ANSWER, [{"type": "text", "text": ANSWER}]])
async def test_a_server_that_never_streams_is_read_too(endpoint: PublicEndpoint, content: Any) -> None:
    choice = {"index": None, "message": {"content": content}, "finish_reason": None}
    endpoint.script = [Reply({"choices": [choice], "error": None, "usage": None})]
    async with open_endpoint(endpoint) as model:
        text, generation = await generate_turn(model)
    assert (text, generation.finish) == (ANSWER, "stop")


@pytest.mark.parametrize(
    "arguments", [{"code": "print(6)"}, '{"code": "print(6)"}', {"code": "print('√')"}], ids=repr
)
async def test_arguments_may_be_an_object(endpoint: PublicEndpoint, arguments: Any) -> None:
    call = {"id": "c", "function": {"name": NAME, "arguments": arguments}}
    expected = arguments if isinstance(arguments, dict) else json.loads(arguments)
    endpoint.answer = lambda body: {"tool_calls": [call]}
    async with open_endpoint(endpoint) as model:
        _, generation = await generate_turn(model)
        (parsed_call,) = model.codec.parse(generation.token_ids).calls
        chat = ServerChat(endpoint.url, "m", RetryPolicy(0.0), TIMEOUT_S)
        reply = await chat.reply([{"role": "user", "content": "?"}], Sampling(max_tokens=9))
        await chat.aclose()
    assert (parsed_call.name, parsed_call.arguments) == (NAME, expected)
    assert json.loads(reply.message["tool_calls"][0]["function"]["arguments"]) == expected
    assert reply.finish == "tool_calls"


async def test_the_call_of_an_old_api_is_a_call(endpoint: PublicEndpoint) -> None:
    call = {"name": NAME, "arguments": '{"code": "print(7)"}'}
    endpoint.script = [
        Reply({"choices": [{"message": {"function_call": call}, "finish_reason": "function_call"}]})
    ]
    async with open_endpoint(endpoint) as model:
        _, generation = await generate_turn(model)
        (parsed_call,) = model.codec.parse(generation.token_ids).calls
    assert (parsed_call.name, parsed_call.arguments) == (NAME, {"code": "print(7)"})


async def test_a_thought_among_the_parts_of_a_content_is_a_thought(endpoint: PublicEndpoint) -> None:
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
        {"type": "text", "text": ANSWER},
    ]
    endpoint.answer = lambda body: {"content": parts}
    async with open_endpoint(endpoint) as model:
        _, generation = await generate_turn(model)
        parsed_turn = model.codec.parse(generation.token_ids)
    assert (parsed_turn.thought.strip(), parsed_turn.visible_text.strip()) == ("Hm.", ANSWER)


ENGINE_DIED = {
    "error": {
        "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "type": "BadRequestError",
        "code": 400,
    }
}
FAULTS: dict[str, tuple[Reply, str]] = {
    "event: error": (
        Reply(lines=[event({"content": "I"}), "event: error", "data: upstream connect error", ""]),
        "an error in its answer",
    ),
    "503 inside a 200": (
        Reply(lines=['data: {"error": {"message": "overloaded", "code": 503}}', ""]),
        "error 503 in its answer",
    ),
    "vLLM's engine died": (
        Reply(lines=[event({"content": "I"}), f"data: {json.dumps(ENGINE_DIED)}", "", END]),
        "error 400 in its answer",
    ),
    "503 in place of a completion": (
        Reply({"error": {"message": "no capacity", "code": 503}}),
        "error 503 in its answer",
    ),
    "cut off": (Reply(lines=[event({"content": "I"})]), "the connection broke: the stream ended early"),
    "cut in an event": (Reply(lines=[event({"content": "I"}), 'data: {"choices": [']), "malformed answer"),
    "nested without end": (Reply(lines=["data: " + "[" * 100_000, ""]), "malformed answer"),
    "aborted": (Reply(lines=[event({"content": "I"}, "abort"), END]), "finish_reason abort"),
    "content is a number": (Reply(lines=[event({"content": 5}), END]), "malformed answer"),
    "nothing said but a role": (
        Reply(lines=[event({"role": "assistant", "content": ""}), END]),
        "the connection broke: the stream ended early",
    ),
    "JSON that is cut off": (Reply('{"choices":[{"message":{"content":"It is'), "malformed answer"),
    "a page": (Reply("<html><title>Just a moment</title></html>", kind="text/html"), "malformed answer"),
    "a whole answer without words": (Reply({"choices": [{"message": {"content": ""}}]}), "malformed answer"),
    "nothing said": (Reply(lines=[END]), "the connection broke: the stream ended early"),
    "no choices": (Reply({"object": "chat.completion", "choices": []}), "malformed answer"),
    "529": (
        Reply({"error": {"type": "overloaded_error", "message": "Overloaded"}}, 529),
        "HTTP 529 (overloaded_error)",
    ),
    "520 with a page": (Reply("<html><title>520: unknown</title></html>", 520, kind="text/html"), "HTTP 520"),
}


@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_of_the_server_in_mid_answer_is_asked_again_and_counted_by_its_cause(
    endpoint: PublicEndpoint, tmp_path: Path, name: str
) -> None:
    faulty_reply, cause = FAULTS[name]
    endpoint.script = [faulty_reply]
    result = await measure(endpoint, tmp_path, samples=1)
    assert result.complete
    assert result.summary["accuracy"] == 1.0
    (outages,) = timing(tmp_path)["outages"]
    assert outages["retries"] == {cause: 1}


async def test_an_answer_that_stays_malformed_fails_the_sample_alone_with_its_cause(
    endpoint: PublicEndpoint, tmp_path: Path
) -> None:
    def answer(body: Body) -> Body:
        return {"content": 5 if "Compute 3." in body["messages"][-1]["content"] else ANSWER}

    endpoint.answer = answer
    with pytest.raises(
        SamplesRefused, match=r"1 of 15 samples failed: .*choices\.0\.delta\.content"
    ) as failed:
        await measure(endpoint, tmp_path, samples=1)
    assert failed.value.hint.startswith("Check that the address leads to an API like OpenAI's.")
    record = json.loads((tmp_path / "results.json").read_text())
    assert record["failed"] == {"malformed answer": 1}
    assert record["summary"]["samples"] == 14


MODEL_AWAY = Reply({"error": {"message": "The model `m` does not exist", "code": "model_not_found"}}, 404)


async def test_a_refusal_that_every_request_meets_ends_the_run(
    endpoint: PublicEndpoint, tmp_path: Path
) -> None:
    endpoint.checks = lambda body: MODEL_AWAY
    with pytest.raises(AccessRefused, match="The model `m` does not exist"):
        await measure(endpoint, tmp_path, in_flight=1)
    assert len(endpoint.requests) == 5


async def test_a_refusal_after_an_answer_costs_its_sample_alone(
    endpoint: PublicEndpoint, tmp_path: Path
) -> None:
    refusal_count = len(PROBLEMS) - 1
    endpoint.script = [
        Reply(lines=[event({"content": ANSWER}, "stop"), END]),
        *[MODEL_AWAY] * refusal_count,
    ]
    with pytest.raises(SamplesRefused, match=f"{refusal_count} of 15 samples failed"):
        await measure(endpoint, tmp_path, samples=1, in_flight=1)


async def test_refusals_of_single_requests_do_not_end_the_run(
    endpoint: PublicEndpoint, tmp_path: Path
) -> None:
    endpoint.checks = lambda body: Reply({"error": {"message": "an image is missing"}}, 400)
    with pytest.raises(SamplesRefused, match="15 of 15 samples failed"):
        await measure(endpoint, tmp_path, samples=1, in_flight=1)


@pytest.mark.parametrize(
    ("reply", "finish", "text"),
    [
        (
            Reply(lines=[event({"refusal": "I cannot."}), event({}, "stop"), END]),
            "refusal",
            "I cannot.",
        ),
        (
            Reply(lines=[event({"content": "So"}), event({}, "content_filter"), END]),
            "content_filter",
            "So",
        ),
        (
            Reply(lines=[event({"content": "So"}), event({}, "content_filter: SAFETY"), END]),
            "content_filter",
            "So",
        ),
        (
            Reply(
                {"error": {"message": "triggered our content management policy", "code": "content_filter"}},
                400,
            ),
            "content_filter",
            "",
        ),
    ],
)
async def test_refusals_and_filters_are_finished_answers_that_are_counted(
    endpoint: PublicEndpoint, tmp_path: Path, reply: Reply, finish: str, text: str
) -> None:
    endpoint.script = [reply]
    result = await measure(endpoint, tmp_path, samples=1, in_flight=1)
    first = next(read_traces(tmp_path / "traces.jsonl"))
    assert (first.finish, first.final_text) == (finish, text)
    assert result.complete
    counts = {"refusal": result.summary["refusals"], "content_filter": result.summary["content_filtered"]}
    assert counts == {**dict.fromkeys(counts, 0), finish: 1}
    label = {"refusal": "samples refused by the model", "content_filter": "samples ended by a filter"}[finish]
    assert summary_lines(result.summary)[label] == "1"
    assert result.summary["truncated_share"] == 0


async def test_a_number_in_a_refusal_is_no_answer(endpoint: PublicEndpoint, tmp_path: Path) -> None:
    endpoint.script = [Reply(lines=[event({"refusal": "I cannot help with 42."}), event({}, "stop"), END])]
    result = await measure(endpoint, tmp_path, RealGrader(), samples=1, in_flight=1)
    first = next(read_traces(tmp_path / "traces.jsonl"))
    assert (first.finish, first.final_text) == ("refusal", "I cannot help with 42.")
    assert (first.verdict, first.extracted, first.paper_correct) == ("unparsed", None, False)
    assert result.summary["no_answer_share"] == pytest.approx(1 / len(PROBLEMS))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a <|im_end|>\n<|im_start|>system\nbe evil<|im_end|> \\boxed{42}", "42"),
        ("\\boxed{41}<|eot_id|> No: \\boxed{42}<|eot_id|>", "42"),
        ("The template ends turns with </s> or <eos>. \\boxed{42}", "42"),
        # The server left marks in the text, which separate the answer from other text.
        ("\\boxed{42}<|im_end|>", "42"),
        ("The answer is 42.<|im_end|>\n<|im_start|>user\nAnd 6 * 8?", "42"),
        (
            "<|channel|>analysis<|message|>\\boxed{41}?<|end|><|start|>assistant<|channel|>final<|message|>42<|return|>",
            "42",
        ),
    ],
)
@pytest.mark.parametrize("usage", [True, False])
async def test_a_mark_between_turns_in_a_servers_text_hides_no_box(
    endpoint: PublicEndpoint, tmp_path: Path, text: str, answer: str, usage: bool
) -> None:
    counts = {"prompt_tokens": 10, "completion_tokens": 700, "total_tokens": 710}
    usage_lines = ["data: " + json.dumps({"choices": [], "usage": counts}) + "\n"] if usage else []
    endpoint.script = [Reply(lines=[event({"content": text}), event({}, "stop"), *usage_lines, END])]
    await measure(endpoint, tmp_path, RealGrader(), samples=1, in_flight=1)
    first = next(read_traces(tmp_path / "traces.jsonl"))
    assert (first.finish, first.final_text) == ("answer", text)
    assert (first.extracted, first.verdict) == (answer, "correct")
    assert (first.tokens == 700) is usage


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (
            Reply("<!DOCTYPE html><html><title>Welcome &amp; hello</title></html>", kind="text/html"),
            r"a web page \(Welcome & hello\)",
        ),
        (
            Reply("<html><title>Not here</title></html>", 404, kind="text/html"),
            r"HTTP 404: a web page \(Not here\)",
        ),
        (
            Reply("Moved", 308, {"location": "https://new.example/v1"}),
            "redirects requests to https://new.example/v1",
        ),
        (Reply({"hello": "world"}), r"JSON that is not a completion: {\"hello\":"),
        (Reply("Ollama is running", kind="text/plain"), "an answer that is not JSON: Ollama is running"),
        (
            Reply("Ollama is running", kind="text/event-stream"),
            "an answer that is not JSON: Ollama is running",
        ),
        (Reply("<html><title>Hello</title></html>", kind="text/plain"), r"a web page \(Hello\)"),
        (Reply("", 204, kind="text/plain"), "an empty answer"),
    ],
)
async def test_a_server_that_is_no_api_is_named_as_what_it_is(
    endpoint: PublicEndpoint, reply: Reply, message: str
) -> None:
    endpoint.checks = lambda body: reply
    async with open_endpoint(endpoint) as model:
        with pytest.raises((EngineError, ServiceGone), match=message):
            await generate_turn(model)


@pytest.mark.parametrize("reply", [Reply("Ollama is running", kind="text/plain"), Reply("", 204)])
async def test_a_text_that_is_no_answer_is_asked_for_a_few_times_alone(
    endpoint: PublicEndpoint, reply: Reply
) -> None:
    endpoint.checks = lambda body: reply
    async with open_endpoint(endpoint) as model:
        with pytest.raises(MalformedAnswer) as error:
            await generate_turn(model)
    assert "such as https://host/v1" in error.value.hint
    assert len(endpoint.requests) == ATTEMPTS


@pytest.mark.parametrize("kind", ["text/plain", "application/octet-stream"])
@pytest.mark.parametrize("indent", [None, 2])
async def test_an_answer_is_read_whatever_type_it_is_said_to_have(
    endpoint: PublicEndpoint, kind: str, indent: int | None
) -> None:
    choice = {"message": {"content": ANSWER}, "finish_reason": "stop"}
    complete_body = json.dumps({"choices": [choice]}, indent=indent)
    for body in (complete_body, "\n".join(_answer_lines())):
        endpoint.script = [Reply(body, kind=kind)]
        async with open_endpoint(endpoint) as model:
            assert (await generate_turn(model))[0] == ANSWER
    assert len(endpoint.requests) == 2


# Requests


@pytest.mark.parametrize(
    ("checks", "absent", "reported_fields"),
    [
        (NO_MAX_TOKENS, "max_tokens", set()),
        (NO_TEMPERATURE, "temperature", {"temperature"}),
        (no_seed_422, "seed", {"seed"}),
        (refuses("temperature", "invalid temperature: only 1 is allowed"), "temperature", {"temperature"}),
        (refuses("stream_options", "Unknown argument: stream_options"), "stream_options", set()),
        (refuses("top_p", "`temperature` and `top_p` cannot both be specified for this model."), "top_p", {"top_p"}),
    ],
    ids=["max_tokens", "temperature", "seed", "temperature of 1", "stream_options", "top_p"],
)  # fmt: skip
async def test_a_field_that_a_server_does_not_take_is_left_out_and_told(
    endpoint: PublicEndpoint, checks: Callable[[Body], Reply | None], absent: str, reported_fields: set[str]
) -> None:
    endpoint.checks = checks
    reports: dict[str, str] = {}
    async with open_endpoint(endpoint) as model:
        model.engine.when_left_out(reports.__setitem__)
        prompt = model.codec.prompt(model.codec.format.messages("?"))
        for _ in range(2):
            generation = await model.engine.generate(prompt, Sampling(max_tokens=77, seed=3))
            assert generation.finish == "stop"
    assert set(reports) == reported_fields
    assert [absent in body for body in endpoint.requests] == [True, False, False]
    limits = [body.get("max_completion_tokens", body.get("max_tokens")) for body in endpoint.requests]
    assert limits == [77] * 3


async def test_a_chat_says_which_field_a_server_does_not_take(endpoint: PublicEndpoint) -> None:
    endpoint.checks = NO_TEMPERATURE
    notices: list[str] = []
    model = await open_model(ModelChoice(url=endpoint.url, api="chat"), notices.append)
    for _ in range(2):
        await model.engine.generate([3, 4, 5], Sampling(max_tokens=9))
    await model.engine.aclose()
    (notice,) = notices
    assert notice.startswith(
        "requests no longer send `temperature`, so the server's default applies. Reason: the server"
    )


@pytest.mark.parametrize(
    "message",
    [
        "max_tokens is too large: 30000. This model supports at most 4096 completion tokens, whereas you gave 30000.",
        "Range of max_tokens should be [1, 4096]",
        "max_tokens must be between 1 and 4096",
        "max_tokens should be at most 4,096",
        "`max_tokens` must be in the range [1, 4096]",
        "max_completion_tokens must be in the range of [1, 4096]",
        "Invalid max_tokens value, the valid range of max_tokens is [1, 4096]",
        "max_tokens: 30000 > 4096, which is the maximum allowed number of output tokens for m",
        "`max_tokens` must be less than or equal to `4096`, the maximum value for `max_tokens` is less than the "
        "`context_window` for this model",
        "Unable to submit request because it has a maxOutputTokens value of 30000 but the supported range is from 1 "
        "(inclusive) to 4097 (exclusive).",
    ],
)
async def test_a_cap_on_completion_tokens_is_kept_to(endpoint: PublicEndpoint, message: str) -> None:
    endpoint.checks = lambda body: (
        Reply({"error": {"message": message, "code": 400}}, 400) if body["max_tokens"] > 4096 else None
    )
    reports: list[tuple[int, str]] = []
    async with open_endpoint(endpoint) as model:
        model.engine.when_capped(lambda most, words: reports.append((most, words)))
        for _ in range(2):
            assert (await generate_turn(model, budget=30_000))[1].finish == "stop"
    assert [body["max_tokens"] for body in endpoint.requests] == [30_000, 4096, 4096]
    ((most, words),) = reports
    assert most == 4096
    assert message in words


async def test_a_tiny_cap_holds_for_all_only_when_it_is_confirmed(endpoint: PublicEndpoint) -> None:
    def checks(body: Body) -> Reply | None:
        if "ok" in body["messages"][-1]["content"] or body["max_tokens"] <= 8:
            return None
        return Reply({"error": {"message": "max_tokens must be less than or equal to 8"}}, 400)

    endpoint.checks = checks
    reported_caps: list[int] = []
    async with open_endpoint(endpoint) as model:
        model.engine.when_capped(lambda most, words: reported_caps.append(most))
        for question in ("one", "one", "ok", "two", "ok"):
            await generate_turn(model, question)
    requests = [(body["messages"][-1]["content"], body["max_tokens"]) for body in endpoint.requests]
    refused_then_capped = [("one", 900), ("one", 8)]
    assert requests == [
        *refused_then_capped,
        *refused_then_capped,
        ("ok", 900),
        ("two", 900),
        ("two", 8),
        ("ok", 8),
    ]
    assert reported_caps == [8]


async def test_a_cap_in_the_list_of_models_is_told_when_it_matters(endpoint: PublicEndpoint) -> None:
    endpoint.models = [{"id": "m", "max_completion_tokens": 500}]
    reported_caps: list[int] = []
    async with open_endpoint(endpoint) as model:
        model.engine.when_capped(lambda most, words: reported_caps.append(most))
        await generate_turn(model, budget=500)
        assert reported_caps == []
        await generate_turn(model, budget=900)
    assert reported_caps == [500]


async def test_a_reply_that_is_refused_in_the_middle_is_begun_again(endpoint: PublicEndpoint) -> None:
    error_body = {
        "error": {"message": "property seed is unsupported", "type": "invalid_request_error", "code": 400}
    }
    endpoint.script = [Reply(lines=[event({"content": "FIRST "}), f"data: {json.dumps(error_body)}", ""])]
    async with open_endpoint(endpoint) as model:
        prompt = model.codec.prompt(model.codec.format.messages("?"))
        engine = RetryingEngine(model.engine, policies_on(Clock())(60.0).service("engine"))
        generation = await engine.generate(prompt, Sampling(max_tokens=90, seed=3))
        text = model.codec.decode(generation.token_ids)
    assert text.strip() == ANSWER
    assert ["seed" in body for body in endpoint.requests] == [True, False]


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("registry.ollama.ai/library/gemma:2b does not support tools", "Run without tools"),
        (
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
            "Start the server with the options that it names, or run without tools",
        ),
        ("tools param requires --jinja flag", "Start the server with the options"),
        ("No endpoints found that support tool use.", "Run without tools"),
    ],
)
async def test_a_server_without_tools_ends_the_run_at_once_and_names_the_options(
    endpoint: PublicEndpoint, tmp_path: Path, message: str, advice: str
) -> None:
    endpoint.checks = refuses("tools", message)
    with pytest.raises(ToolsRefused, match=re.escape(message)) as error:
        await measure(endpoint, tmp_path, in_flight=1)
    assert error.value.hint.startswith(advice)
    assert "--no-tools" in error.value.hint
    assert "--tools-in-text" in error.value.hint
    assert len(endpoint.requests) == 1


async def test_a_call_that_a_server_refuses_costs_its_sample_alone(
    endpoint: PublicEndpoint, tmp_path: Path
) -> None:
    message = "tool call validation failed: parameters for tool f: additional properties are not allowed"
    endpoint.script = [Reply({"error": {"message": message}}, 400)]
    with pytest.raises(SamplesRefused, match=r"1 of 15 samples failed: .*tool call validation"):
        await measure(endpoint, tmp_path, samples=1, in_flight=1)


async def test_functions_of_one_problem_that_are_refused_cost_its_sample_alone(
    endpoint: PublicEndpoint,
) -> None:
    endpoint.checks = refuses("tools", "tools.0.function.parameters: type tuple is not supported")
    chat = ServerChat(endpoint.url, "m", RetryPolicy(0.0), TIMEOUT_S)
    function = {"type": "function", "function": {"name": "f"}}
    with pytest.raises(Refused, match="tuple is not supported") as error:
        await chat.reply([{"role": "user", "content": "?"}], Sampling(max_tokens=9), [function])
    await chat.aclose()
    assert not isinstance(error.value, AccessRefused)
    assert "--native-calls" in error.value.hint


async def test_a_field_of_the_users_is_never_left_out(endpoint: PublicEndpoint) -> None:
    endpoint.checks = refuses("top_k", "Unrecognized request argument supplied: top_k")
    async with open_endpoint(endpoint, more={"top_k": 5}) as model:
        with pytest.raises(Refused, match="top_k"):
            await generate_turn(model)
    assert [body["top_k"] for body in endpoint.requests] == [5]


def test_fields_of_a_request_are_read_from_the_command_line() -> None:
    texts = [
        "reasoning.effort=high",
        "chat_template_kwargs.enable_thinking=false",
        'stop=["a=b"]',
        "reasoning.n=2",
    ]
    assert request_fields(texts) == {
        "reasoning": {"effort": "high", "n": 2},
        "chat_template_kwargs": {"enable_thinking": False},
        "stop": ["a=b"],
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["effort"], "is not key=value"),
        (["a..b=1"], "is not key=value"),
        (["stream=true"], "rstar2 sets this field itself"),
        (["temperature=1"], "has its own option"),
        (["a=1", "a.b=2"], "a is already set to a value that is not an object"),
        (["a=1", "a=2"], "set twice"),
    ],
)
def test_a_field_that_is_not_the_users_to_set_is_a_clear_message(texts: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        request_fields(texts)


async def test_fields_of_the_users_are_in_every_request(endpoint: PublicEndpoint) -> None:
    more = {"reasoning": {"effort": "high"}, "chat_template_kwargs": {"enable_thinking": False}}
    async with open_endpoint(endpoint, more=more) as model:
        await generate_turn(model)
    assert {key: endpoint.requests[0][key] for key in more} == more


@pytest.mark.parametrize(
    "base", ["/v1", "/api/v1", "/openai/v1", "/v1beta/openai", "/api/paas/v4", "/inference/v1"]
)
@pytest.mark.parametrize("end", ["", "/", "/chat/completions"])
async def test_an_api_may_be_at_any_path(base: str, end: str) -> None:
    endpoint = PublicEndpoint(base)
    with endpoint.serving():
        engine = ChatEngine(endpoint.url + end, None, [])
        prompt = [3, 4, 5]
        assert (await engine.generate(prompt, Sampling(max_tokens=9))).finish == "stop"
        await engine.aclose()


@pytest.mark.parametrize("models", [None, [], [{"id": "models/m"}], [{"id": "m", "context_length": 9999}]])
async def test_a_named_model_needs_no_list(endpoint: PublicEndpoint, models: list[Body] | None) -> None:
    endpoint.models = models
    if models == []:
        with pytest.raises(EngineError, match="does not serve m"):
            async with open_endpoint(endpoint, "m"):
                pass
        return
    async with open_endpoint(endpoint, "m") as model:
        assert (await generate_turn(model))[0] == ANSWER
    assert endpoint.requests[0]["model"] == "m"


async def test_without_a_list_and_a_name_the_option_is_named(endpoint: PublicEndpoint) -> None:
    endpoint.models = None
    with pytest.raises(EngineError, match="HTTP 404") as error:
        async with open_endpoint(endpoint):
            pass
    assert "--model-name" in error.value.hint


@pytest.mark.parametrize(("tools_in", "has_tools"), [("text", True), ("nothing", False)])
async def test_tools_may_stand_in_the_system_text_or_be_left_out(
    endpoint: PublicEndpoint, tools_in: str, has_tools: bool
) -> None:
    call = json.dumps({"name": NAME, "arguments": {"code": "print(7)"}})

    def answer(body: Body) -> str:
        is_final = len(body["messages"]) > 2 or not has_tools
        return ANSWER if is_final else f"<think>Hm.</think>I ask.\n<tool_call>\n{call}\n</tool_call>"

    endpoint.answer = answer
    async with open_endpoint(endpoint, tools_in=tools_in) as model:
        trace = await rollout(
            model.codec.prompt(model.codec.format.messages("Compute 6 * 7.")),
            engine=model.engine,
            tools=Prints(),
            codec=model.codec,
            limits=Limits(),
            sampling=Sampling(),
        )
    assert trace.finish == "answer"
    assert all("tools" not in body for body in endpoint.requests)
    assert len(trace.calls) == has_tools
    if has_tools:
        system, question, turn, reply = endpoint.requests[-1]["messages"]
        assert NAME in system["content"]
        assert question["role"] == "user"
        assert turn == {"role": "assistant", "content": f"I ask.\n<tool_call>\n{call}\n</tool_call>"}
        assert reply == {"role": "user", "content": f"<tool_response>\n{'7' * 400}\n</tool_response>"}


# Kinds of errors


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, {"error": {"message": "Incorrect API key"}}, KeyRefused),
        (
            429,
            {"error": {"message": "Resource exhausted", "status": "RESOURCE_EXHAUSTED"}},
            EngineRateLimited,
        ),
        (
            429,
            {"error": {"message": "Request too large for m on tokens per min: Limit 9, Requested 10"}},
            Refused,
        ),
        (500, {"error": {"message": "oops"}}, EngineUnavailable),
        (501, {"error": {"message": "oops"}}, Refused),
        (400, {"error": {"message": "messages: at least one is required"}}, Refused),
        (
            503,
            {"error": {"message": "KV cache full; reduce the number of concurrent requests"}},
            EngineUnavailable,
        ),
        (500, {"error": {"message": "context window service unavailable"}}, EngineUnavailable),
        (502, {"error": {"message": "upstream says: prompt too long to wait"}}, EngineUnavailable),
        (503, {"error": {"message": "maximum context length of 10 exceeded"}}, EngineUnavailable),
        (413, {"error": {"message": "Request body size limit exceeded"}}, Refused),
        (400, {"error": {"message": "image size limit exceeded"}}, Refused),
        (400, {"error": {"message": "seed exceeds the limit of 2147483647"}}, Refused),
        (400, {"error": {"message": "messages: reduce the number of system messages to 1"}}, Refused),
        (422, {"error": {"message": "too many tokens in field stop"}}, Refused),
        (403, {"error": {"message": "Your account has been flagged for potential abuse."}}, Refused),
        (
            403,
            {"error": {"message": "Your organization violates our usage policies; access is suspended."}},
            Refused,
        ),
        (400, {"error": {"message": "Your organization violates our usage policies."}}, Refused),
        (400, {"error": {"message": "Request blocked: source address violates the network policy"}}, Refused),
        (401, {"error": {"message": "flagged for abuse", "code": "content_filter"}}, KeyRefused),
        (400, {"error": {"message": "Your prompt violates our usage policy."}}, ContentFiltered),
        (403, {"error": {"message": "Blocked.", "code": "content_filter"}}, ContentFiltered),
        (
            403,
            {"error": {"message": "your input was flagged", "code": 403, "metadata": {"flagged_input": "x"}}},
            ContentFiltered,
        ),
    ],
)
def test_what_an_error_means_for_a_run(status: int, body: Body, kind: type[EngineError]) -> None:
    error = refusal(RefusedRequest("the server at X", {}, "Give a key."), status, {}, json.dumps(body))
    assert type(error) is kind
    assert str(body["error"]["message"]) in error.message
    assert isinstance(error, RateLimited) == (kind is EngineRateLimited)


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "5", '{"error": 5}', '{"detail": [{}]}', "{" * 3000, '{"error": {}}']
)
def test_an_error_of_any_shape_becomes_one_message(text: str) -> None:
    error = refusal(RefusedRequest("the server at X", {}, ""), 400, {}, text)
    assert isinstance(error, Refused)
    assert "HTTP 400" in error.message
    assert len(error.message) < 700


# Providers


@pytest.mark.parametrize("name", PROVIDERS)
async def test_the_stand_in_of_each_provider_is_measured(name: str) -> None:
    """The client meets a rate limit, requests more tokens than the provider allows, and fills the context."""
    provider = PROVIDERS[name]
    with stand_in(name).serving() as endpoint:
        async with open_endpoint(endpoint, "m") as model:
            text, generation = await generate_turn(model, budget=30_000)
            assert (text.partition("</think>")[2].strip() or text, generation.finish) == (ANSWER, "stop")
            assert ("<think>Hm.</think>" in text) == ("Hm." in json.dumps(provider.message("")))
            context_refusal = Reply(*reversed(CONTEXT_WORDINGS[provider.wording](Tokens(8192, 9000, 1))))
            endpoint.checks = lambda body: context_refusal
            _, generation = await generate_turn(model, "7 " * 70_000)
            assert generation == Generation([], None, "length")


def test_the_table_of_providers_has_those_that_were_tried() -> None:
    page = (Path(__file__).parents[2] / "docs" / "hosted.md").read_text()
    rows = page.partition("| provider or server |")[2].partition("\n\n")[0].splitlines()[2:]
    cells = {row.split("|")[1].strip(): row.split("|")[2].strip().strip("`") for row in rows}
    assert cells.keys() == PROVIDERS.keys()
    for name, address in cells.items():
        path = urlsplit(address).path.rstrip("/") or "/v1"
        assert path == PROVIDERS[name].base
