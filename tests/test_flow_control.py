"""Tests of flow control: the number of concurrent requests after a service has rejected some. Time is simulated."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Protocol

import pytest
from support.clock import Clock

from rstar2.errors import RateLimited, Unavailable
from rstar2.flow_control import Allowance, FlowControl
from rstar2.retry import RetryPolicy, ServiceGone


async def _yield_often() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_refusal_halves_the_requests_at_once_and_answers_raise_them_again() -> None:
    clock = Clock()
    flow = FlowControl(clock, clock.sleep)
    rounds = [await flow.enter() for _ in range(8)]
    assert flow.limit == float("inf")
    for began_in in rounds:
        flow.refused(began_in, 2.0)  # all of one round: the limit is halved once
        flow.leave()
    assert flow.limit == 4
    entering = [asyncio.create_task(flow.enter()) for _ in range(8)]
    await _yield_often()
    assert sum(task.done() for task in entering) == 4
    assert clock.now >= 2.0
    for _ in range(5):
        flow.answered()
    assert 5 <= flow.limit < 6
    await _yield_often()
    assert sum(task.done() for task in entering) == 5
    for task in entering:
        task.cancel()
    assert flow.paused_s == 2.0


async def test_at_least_one_request_is_always_let_through_and_in_order() -> None:
    clock = Clock()
    flow = FlowControl(clock, clock.sleep)
    for _ in range(6):
        flow.refused(await flow.enter(), 0.0)
        flow.leave()
    assert flow.limit == 1
    order: list[int] = []

    async def request(number: int) -> None:
        await flow.enter()
        order.append(number)
        await asyncio.sleep(0)
        flow.leave()

    await asyncio.gather(*map(request, range(5)))
    assert order == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("admitted", [False, True])
async def test_a_request_that_is_cancelled_while_it_waits_takes_no_place(admitted: bool) -> None:
    clock = Clock()
    flow = FlowControl(clock, clock.sleep)
    flow.refused(await flow.enter(), 0.0)
    waiting = asyncio.create_task(flow.enter())
    await _yield_often()
    if admitted:
        flow.leave()  # gives the place to the one that waits, which does not run before it is cancelled
    waiting.cancel()
    await _yield_often()
    if not admitted:
        flow.leave()
    await asyncio.wait_for(flow.enter(), timeout=60)


async def test_a_request_is_sent_again_as_often_as_it_is_refused_for_its_rate_while_others_are_answered() -> (
    None
):
    clock = Clock()
    service = RetryPolicy(10.0, clock=clock, sleep=clock.sleep).service("engine")
    refusals = 0

    async def answered() -> str:
        return "answer"

    async def limited() -> str:
        nonlocal refusals
        if refusals < 50:
            refusals += 1
            raise RateLimited("slow down", retry_after_s=3.0, cause="rate limit")
        return "answer"

    async def others() -> None:
        while refusals < 50:
            await service.call(answered)
            await clock.sleep(1.0)

    result, _ = await asyncio.gather(service.call(limited), others())
    assert result == "answer"
    assert service.outages.retries == {"rate limit": 50}
    assert service.outages.away_s == 0
    assert "limited the rate of requests" in service.outages.text


async def test_a_service_that_refuses_everything_for_its_rate_is_given_up_by_the_wait_alone() -> None:
    clock = Clock()
    service = RetryPolicy(60.0, clock=clock, sleep=clock.sleep).service("engine")
    attempts = 0

    async def limited() -> str:
        nonlocal attempts
        attempts += 1
        raise RateLimited("slow down", retry_after_s=2.0)

    with pytest.raises(
        ServiceGone, match=r"has answered no request for .* seconds and asks to wait another 2"
    ):
        await service.call(limited)
    assert 55 <= clock.now <= 60
    assert attempts > 25


async def test_a_pause_that_outlasts_the_wait_is_not_begun() -> None:
    clock = Clock()
    service = RetryPolicy(60.0, clock=clock, sleep=clock.sleep).service("engine")

    async def limited() -> str:
        raise RateLimited("come back tomorrow", retry_after_s=86_400.0)

    with pytest.raises(ServiceGone, match="come back tomorrow"):
        await service.call(limited)
    assert clock.now == 0


async def test_a_pause_that_outlasts_the_wait_ends_when_what_was_sent_earlier_is_answered() -> None:
    clock = Clock()
    service = RetryPolicy(20.0, clock=clock, sleep=clock.sleep).service("engine")
    finish = asyncio.Event()

    async def earlier() -> str:
        await finish.wait()
        return "answer"

    async def limited() -> str:
        raise RateLimited("daily limit", retry_after_s=9000.0)

    first = asyncio.create_task(service.call(earlier))
    await _yield_often()
    clock.now += 1.0
    second = asyncio.create_task(service.call(limited))
    await clock.passes(5.0)
    assert not second.done()
    finish.set()
    assert await first == "answer"
    assert service.trouble == "daily limit"  # nothing is sent until the pause ends
    with pytest.raises(ServiceGone, match="daily limit"):
        await second
    assert clock.now < 100


async def test_without_a_pause_of_the_service_the_pauses_double() -> None:
    clock = Clock()
    service = RetryPolicy(300.0, clock=clock, sleep=clock.sleep).service("engine")
    asked_at: list[float] = []

    async def limited() -> str:
        asked_at.append(clock.now)
        if len(asked_at) < 5:
            raise RateLimited("slow down")
        return "answer"

    await service.call(limited)
    pauses = [later - earlier for earlier, later in itertools.pairwise(asked_at)]
    assert all(
        0.5 * longest <= pause <= longest for pause, longest in zip(pauses, (0.5, 1, 2, 4), strict=True)
    )


async def test_an_outage_beside_a_rate_limit_is_told_apart() -> None:
    clock = Clock()
    service = RetryPolicy(300.0, clock=clock, sleep=clock.sleep).service("engine")
    errors = [
        RateLimited("slow", retry_after_s=2.0, cause="rate limit"),
        Unavailable("gone", cause="HTTP 503"),
    ]

    async def attempt() -> str:
        if errors:
            raise errors.pop(0)
        return "answer"

    await service.call(attempt)
    assert service.outages.retries == {"rate limit": 1, "HTTP 503": 1}
    assert service.outages.paused_s == 2.0
    assert 0 < service.outages.away_s < 2.0


class _Timeline:
    """A simulated clock for concurrent tasks: when all tasks wait, it advances to the earliest wake-up time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = itertools.count()
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self.now + seconds, next(self._order), woken))
        await woken

    async def run(self, *work: asyncio.Task[None]) -> None:
        while not all(task.done() for task in work):
            await _yield_often()
            if self._sleepers:
                self.now, _, woken = heapq.heappop(self._sleepers)
                woken.set_result(None)
        await asyncio.gather(*work)


class _Limit(Protocol):
    """How a service limits requests."""

    def takes_one(self, now: float) -> bool: ...

    def left(self, now: float) -> Allowance:
        """Return the allowance that the service announces in a response."""


class _Windows:
    """60 requests in each minute."""

    def __init__(self) -> None:
        self._minute, self._taken = 0, 0

    def takes_one(self, now: float) -> bool:
        if now // 60 != self._minute:
            self._minute, self._taken = int(now // 60), 0
        takes = self._taken < 60
        self._taken += takes
        return takes

    def left(self, now: float) -> Allowance:
        return Allowance(60 - self._taken, 60 - now % 60)


class _Bucket:
    """A token bucket: one request per second, and up to 60 at once after a minute without requests."""

    def __init__(self) -> None:
        self._left, self._at = 60.0, 0.0

    def takes_one(self, now: float) -> bool:
        self._left, self._at = min(60.0, self._left + now - self._at), now
        takes = self._left >= 1
        self._left -= takes
        return takes

    def left(self, now: float) -> Allowance:
        return Allowance(int(self._left), 60 - self._left)


@pytest.mark.parametrize("limit", [_Windows, _Bucket])
@pytest.mark.parametrize("at_once", [4, 24])
@pytest.mark.parametrize(("answer_s", "late"), [(0.5, False), (8.0, False), (8.0, True)])
async def test_a_service_that_says_how_many_requests_it_takes_refuses_none_and_is_used_as_it_allows(
    limit: Callable[[], _Limit], at_once: int, answer_s: float, late: bool
) -> None:
    """If `late`, the service sends its headers only when the answer is complete, as it does without streaming."""
    clock, service, count = _Timeline(), limit(), 300
    flow = FlowControl(clock, clock.sleep)
    refused = 0
    to_send = iter(range(count))

    async def client() -> None:
        nonlocal refused
        for _ in to_send:
            began_in = await flow.enter()
            sent_at = clock.now
            if not service.takes_one(clock.now):
                refused += 1
                flow.refused(began_in, 1.0)
            said = service.left(clock.now)
            if late:
                await clock.sleep(answer_s)
            flow.announced([said], clock.now - sent_at)
            if not late:
                await clock.sleep(answer_s)
            flow.answered()
            flow.leave()

    await clock.run(*(asyncio.create_task(client()) for _ in range(at_once)))
    assert refused == 0
    assert clock.now <= max(count * 1.0, count * answer_s / at_once) + answer_s + 1.0


async def test_a_limit_of_a_day_is_used_up_and_one_that_is_far_away_costs_nothing() -> None:
    clock = Clock()
    flow = FlowControl(clock, clock.sleep)
    for said in (Allowance(1.0, 80_000.0), Allowance(100.0, 60.0)):
        await flow.enter()
        flow.announced([said])
        flow.leave()
    await flow.enter()
    assert clock.now == flow.spread_s == 0


async def test_a_request_waits_no_longer_than_the_newest_answer_says() -> None:
    clock = _Timeline()
    flow = FlowControl(clock, clock.sleep)
    await flow.enter()
    flow.announced([Allowance(0.0, 60.0)])

    async def more_is_free() -> None:
        await clock.sleep(5.0)
        flow.announced([Allowance(50.0, 10.0)])

    async def next_one() -> None:
        await flow.enter()

    await clock.run(asyncio.create_task(more_is_free()), asyncio.create_task(next_one()))
    assert 5.0 <= clock.now <= 6.0
    assert flow.spread_s == clock.now
