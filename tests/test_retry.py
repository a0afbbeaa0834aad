"""Tests of the retry policy, with a simulated clock and with real sockets, and of the pauses between attempts."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from fastapi import Request
from support.clock import Clock, policies_on
from support.servers.vllm_standin import StandIn, serving

from rstar2.engines.models import ask_served, open_server
from rstar2.engines.vllm import VLLMEngine
from rstar2.errors import Unavailable, UnusableAnswer
from rstar2.processes import free_port
from rstar2.retry import ATTEMPTS, FIRST_ANSWER_S, Backoff, RetryPolicy, Service, ServiceGone


class Server:
    """Answers or rejects requests, and counts them. Each request takes `takes_s` simulated seconds."""

    def __init__(self, clock: Clock, takes_s: float = 0.0) -> None:
        self.clock = clock
        self.takes_s = takes_s
        self.down = False
        self.requests = 0

    async def request(self) -> str:
        self.requests += 1
        self.clock.now += self.takes_s
        if self.down:
            raise Unavailable("connection refused", "Start it.", timed_out=self.takes_s > 0)
        return "answer"


@pytest.fixture
def clock() -> Clock:
    return Clock()


def _policy(clock: Clock, wait_s: float) -> Service:
    return policies_on(clock)(wait_s).service("engine")


async def _gone(policy: Service, request: Callable[[], Awaitable[str]]) -> str:
    with pytest.raises(ServiceGone) as gone:
        await policy.call(request)
    return gone.value.message


@pytest.mark.parametrize("wait_s", [5.0, 60.0])
async def test_a_server_that_went_away_is_given_up_after_the_wait_and_not_later(
    clock: Clock, wait_s: float
) -> None:
    policy, server = _policy(clock, wait_s), Server(clock)
    await policy.call(server.request)
    server.down = True
    message = await _gone(policy, server.request)
    assert message == f"the engine has not answered for {wait_s:g} seconds: connection refused"
    assert clock.now == pytest.approx(wait_s)
    assert server.requests > ATTEMPTS


async def test_attempts_that_take_long_do_not_lengthen_the_wait_by_more_than_one(clock: Clock) -> None:
    policy, server = _policy(clock, 5.0), Server(clock)
    await policy.call(server.request)
    server.down, server.takes_s = True, 4.0
    await _gone(policy, server.request)
    assert clock.now <= 5.0 + 4.0


async def test_a_server_that_never_answered_is_waited_for_briefly(clock: Clock) -> None:
    policy, server = _policy(clock, 300.0), Server(clock)
    server.down = True
    assert await _gone(policy, server.request) == "connection refused"
    assert clock.now == pytest.approx(FIRST_ANSWER_S)


async def test_without_a_wait_the_first_failure_is_the_last(clock: Clock) -> None:
    policy, server = _policy(clock, 0.0), Server(clock)
    server.down = True
    await _gone(policy, server.request)
    assert (server.requests, clock.now) == (1, 0.0)


async def test_the_wait_begins_again_with_every_answer(clock: Clock) -> None:
    policy, server = _policy(clock, 5.0), Server(clock)

    async def away_for_a_while() -> str:
        if clock.now < back_at:
            raise Unavailable("connection refused")
        return await server.request()

    await policy.call(server.request)
    for _ in range(10):
        back_at = clock.now + 3.0
        assert await policy.call(away_for_a_while) == "answer"
        assert policy.trouble is None
    assert clock.now >= 30.0


async def test_a_request_that_fails_while_others_are_answered_is_given_up_alone(clock: Clock) -> None:
    policy, server, failures = _policy(clock, 60.0), Server(clock), 0

    async def refused() -> str:
        nonlocal failures
        failures += 1
        await policy.call(server.request)
        raise Unavailable("this one is too large")

    with pytest.raises(Unavailable, match="this one is too large"):
        await policy.call(refused)
    assert failures == ATTEMPTS
    assert await policy.call(server.request) == "answer"


@pytest.mark.parametrize("generation_s", [1.0, 3600.0])
async def test_answers_from_before_an_outage_do_not_count_against_the_requests_it_breaks_off(
    clock: Clock, generation_s: float
) -> None:
    policy, server, attempts = _policy(clock, 300.0), Server(clock), 0

    async def broken_off() -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            await policy.call(server.request)
            clock.now += generation_s
            raise Unavailable("connection reset")
        if clock.now < generation_s + 250.0:
            raise Unavailable("connection refused")
        return await server.request()

    assert await policy.call(broken_off) == "answer"
    assert attempts > 2 * ATTEMPTS


async def test_a_request_that_alone_is_broken_off_after_longer_than_the_wait_is_sent_again(
    clock: Clock,
) -> None:
    policy, server, attempts = _policy(clock, 300.0), Server(clock), 0
    await policy.call(server.request)

    async def broken_off() -> str:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            clock.now += 3600.0
        if clock.now < 3600.0 + 250.0:
            raise Unavailable("connection reset")
        return await server.request()

    assert await policy.call(broken_off) == "answer"
    server.down = True
    since = clock.now
    await _gone(policy, server.request)
    assert clock.now - since == pytest.approx(300.0)


@pytest.mark.parametrize("seed", range(20))
async def test_a_wait_ends_though_what_is_left_of_it_is_too_little_to_move_the_clock(
    clock: Clock, seed: int
) -> None:
    random.seed(seed)
    policy, server = _policy(clock, 300.0), Server(clock)
    clock.now = 3850.0 + random.random()  # from 4096 on, the clock's numbers are less fine
    await policy.call(server.request)

    async def refused() -> str:
        assert server.requests < 1000, f"asked again and again at {clock.now!r}"
        server.down = True
        return await server.request()

    await _gone(policy, refused)


async def test_a_request_that_ends_every_server_it_is_sent_to_is_given_up(clock: Clock) -> None:
    policy, server, ends = _policy(clock, 300.0), Server(clock), 0

    async def fatal() -> str:
        nonlocal ends
        if clock.now < back_at:
            raise Unavailable("connection refused")
        await policy.call(server.request)
        ends += 1
        fall()
        raise Unavailable("connection reset")

    back_at = 0.0

    def fall() -> None:
        nonlocal back_at
        back_at = clock.now + 30.0

    with pytest.raises(Unavailable, match="connection reset"):
        await policy.call(fatal)
    assert ends == ATTEMPTS


async def test_a_service_whose_answers_cannot_be_used_is_not_waited_for(clock: Clock) -> None:
    policy, attempts = _policy(clock, 300.0), 0

    async def nonsense() -> str:
        nonlocal attempts
        attempts += 1
        raise UnusableAnswer("it sent a poem")

    with pytest.raises(UnusableAnswer, match="it sent a poem"):
        await policy.call(nonsense)
    assert attempts == ATTEMPTS
    assert clock.now < 10.0
    assert policy.outages.away_s == 0


async def test_a_policy_may_set_no_limit(clock: Clock) -> None:
    unlimited = float("inf")
    policy = RetryPolicy(
        unlimited, attempts=unlimited, first_answer_s=unlimited, clock=clock, sleep=clock.sleep
    )
    service, server, failures = policy.service("judge"), Server(clock), 0

    async def full_for_long() -> str:
        nonlocal failures
        failures += 1
        if clock.now < 3600.0:
            raise Unavailable("it is full")
        return await service.call(server.request)

    assert await service.call(full_for_long) == "answer"
    assert failures > 10 * ATTEMPTS
    clock.now = 0.0
    assert await service.call(full_for_long) == "answer"


async def test_a_service_that_says_when_to_ask_again_is_not_asked_earlier(clock: Clock) -> None:
    policy, asked_at = _policy(clock, 300.0), list[float]()

    async def busy() -> str:
        asked_at.append(clock.now)
        if len(asked_at) < 3:
            raise Unavailable("it is full", retry_after_s=2.0)
        return "answer"

    assert await policy.call(busy) == "answer"
    assert asked_at == [0.0, 2.0, 4.0]


async def test_a_slow_request_that_fails_while_others_are_answered_is_not_repeated(clock: Clock) -> None:
    policy, server, attempts = _policy(clock, 60.0), Server(clock), 0

    async def slow() -> str:
        nonlocal attempts
        attempts += 1
        await policy.call(server.request)
        clock.now += 3600.0
        raise Unavailable("no answer within an hour", timed_out=True)

    with pytest.raises(Unavailable, match="no answer within an hour"):
        await policy.call(slow)
    assert attempts == 1


async def test_nothing_is_given_up_while_an_earlier_request_is_under_way(clock: Clock) -> None:
    policy, server, answer = _policy(clock, 5.0), Server(clock), asyncio.Event()

    async def long() -> str:
        await answer.wait()
        return "answer"

    earlier = asyncio.create_task(policy.call(long))
    await asyncio.sleep(0)
    clock.now += 1.0
    server.down = True
    later = asyncio.create_task(policy.call(server.request))
    await clock.passes(100)
    assert not later.done()
    answer.set()
    assert await earlier == "answer"
    with pytest.raises(ServiceGone, match="connection refused"):
        await later


async def test_every_outage_is_counted_by_cause_with_its_length(clock: Clock) -> None:
    policy: RetryPolicy = policies_on(clock)(60.0)
    engine, judge, server = policy.service("engine"), policy.service("judge"), Server(clock)
    assert policy.service("engine") is engine
    for service in (engine, judge):
        await service.call(server.request)
    assert policy.outages == []

    async def away_for_a_while() -> str:
        if clock.now < back_at:
            raise Unavailable(
                "connection refused" if len(waits) < 2 else "HTTP 503: warming up\nSee the log."
            )
        return await server.request()

    waits: list[str] = []
    back_at = 12.0
    await engine.call(away_for_a_while, waits.append)
    (outages,) = policy.outages
    assert (outages.service, outages.away_s) == ("engine", pytest.approx(clock.now))
    assert outages.retries == {
        "connection refused": waits.count("connection refused"),
        "HTTP 503: warming up": len(waits) - waits.count("connection refused"),
    }
    assert all(outages.retries.values())
    ended_s, back_at = outages.away_s, clock.now + 1.0
    await judge.call(away_for_a_while)
    assert [(each.service, each.away_s >= 1.0) for each in policy.outages] == [
        ("engine", True),
        ("judge", True),
    ]
    assert policy.outages[0].away_s == ended_s
    assert "the engine did not answer for" in outages.text


async def test_the_causes_that_are_counted_apart_are_few(clock: Clock) -> None:
    policy: RetryPolicy = policies_on(clock)(60.0)
    service, server, failures = policy.service("engine"), Server(clock), 0
    await service.call(server.request)

    async def refused() -> str:
        nonlocal failures
        failures += 1
        if failures % 2:
            raise Unavailable(f"request {failures} was too early")
        return "answer"

    for _ in range(100):
        await service.call(refused)
    (outages,) = policy.outages
    assert sum(outages.retries.values()) == 100
    assert len(outages.retries) < 30


async def test_a_service_may_have_a_shorter_wait_than_its_run(clock: Clock) -> None:
    policy: RetryPolicy = policies_on(clock)(300.0)
    one_of_several, server = policy.service("engine a", 60.0), Server(clock)
    await one_of_several.call(server.request)
    server.down = True
    await _gone(one_of_several, server.request)
    assert clock.now == pytest.approx(60.0)
    assert policy.trouble == "connection refused"
    one_of_several.retire()
    assert policy.trouble is None


async def test_a_closed_port_is_given_up_after_the_wait_and_named_in_plain_words(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServiceGone) as gone:
        await open_server(url, retries=policies_on(clock)(300.0))
    assert gone.value.message == f"nothing answers at {url}: connection refused"
    assert "rstar2 serve MODEL" in gone.value.hint
    assert clock.now == pytest.approx(FIRST_ANSWER_S)


async def test_a_server_that_accepts_and_never_answers_is_given_up_after_the_wait() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ServiceGone, match=f"the server at {url} accepts requests but does not answer"):
            await open_server(url, retries=RetryPolicy(0.5))


async def test_a_server_that_takes_connections_has_longer_for_its_first_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop, late_s = asyncio.get_running_loop(), 0.0
    time = loop.time

    class Late(StandIn):
        """On the client's clock, each list of models takes longer than the client waits for a server that does not
        listen."""

        async def _models(self, request: Request) -> Any:
            nonlocal late_s
            late_s += 2 * FIRST_ANSWER_S
            return await super()._models(request)

    monkeypatch.setattr(loop, "time", lambda: time() + late_s)
    with serving(Late(lambda prompt: [])) as server:
        engine = VLLMEngine(server.url)
        assert (await ask_served(engine)).model == "scripted"
        await engine.aclose()


def test_waits_double_up_to_the_longest_and_begin_again_once_it_worked() -> None:
    backoff = Backoff(0.5, 3.0)
    assert [backoff.next_s() for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_s() == 0.5
    backoff.reset(at_once=True)
    assert [backoff.next_s() for _ in range(3)] == [0.0, 0.5, 1.0]


def test_jitter_shortens_a_wait_and_not_those_that_follow() -> None:
    backoff = Backoff(1.0, 4.0, jitter=0.5)
    waits = [backoff.next_s() for _ in range(3)]
    assert all(0.5 <= wait / longest <= 1.0 for wait, longest in zip(waits, (1.0, 2.0, 4.0), strict=True))
    assert len({Backoff(1.0, 4.0, jitter=0.5).next_s() for _ in range(20)}) > 1
