"""The dispatcher fetches results if it missed the notices about them, for example while its process was paused."""

from __future__ import annotations

import asyncio
import time

import pytest
import redis
from support.waiting import wait_until

from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.schema import RunResult
from rstar2.judge.server import dispatcher as dispatcher_module
from rstar2.judge.server.dispatcher import (
    RESULTS_PER_COMMAND,
    Dispatcher,
    IdReused,
    PendingRun,
    QueueFull,
    QueueRefuses,
)


async def test_missed_results_are_fetched_the_long_ones_a_few_at_a_time(
    server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher = Dispatcher(server.url, max_queued=1000, max_queued_bytes=1 << 30)
    names = [f"run{number}" for number in range(5 * RESULTS_PER_COMMAND)]
    runs = [dispatcher.submit(PendingRun(name, "{}", timeout_s=10.0)) for name in names]
    states = {
        name: RunResult(id=name, outcome="ok", stdout="x" * (number % 2 * 3000)).model_dump_json()
        for number, name in enumerate(names)
    }
    states[names[0]] = f"@{queue.TASKS} 1-1"
    del states[names[1]]
    fetched: list[int] = []
    mget = dispatcher.client.mget

    async def count(keys: list[str]) -> object:
        fetched.append(len(keys))
        return await mget(keys)

    monkeypatch.setattr(dispatcher.client, "mget", count)
    dispatcher.unsent.clear()
    for run in runs:
        run.sent_at = time.monotonic()
    with redis.Redis.from_url(server.url) as client:
        for name, state in states.items():
            client.set(queue.state_key(name), queue.NO_FINGERPRINT + state)
    await dispatcher._check_states(runs)
    assert [run.result.done() for run in runs[:2]] == [False, False]
    assert [run.id for run in dispatcher.unsent] == [names[1]]
    assert [run.result.result() for run in runs[2:]] == [states[name] for name in names[2:]]
    assert max(fetched) <= RESULTS_PER_COMMAND
    await dispatcher.close()


async def test_more_bytes_than_the_queue_may_hold_are_refused(
    server: EmbeddedRedis,
) -> None:
    dispatcher = Dispatcher(server.url, max_queued=1000, max_queued_bytes=2 << 20)
    body = f'"{"x" * (1 << 20)}"'
    dispatcher.check_capacity(1)
    for name in ("one", "two"):
        dispatcher.submit(PendingRun(name, body, timeout_s=10.0))
    with pytest.raises(QueueFull, match="programs and results take 2 MiB, 2 are allowed"):
        dispatcher.check_capacity(1)
    await dispatcher.close()


async def test_a_notice_that_comes_before_redis_knows_the_program_answers_no_other(
    server: EmbeddedRedis,
) -> None:
    dispatcher = Dispatcher(server.url, max_queued=1000, max_queued_bytes=1 << 30)
    earlier = RunResult(id="reused", outcome="ok", stdout="earlier").model_dump_json()
    mine = RunResult(id="mine", outcome="ok").model_dump_json()
    with redis.Redis.from_url(server.url) as client:
        client.set(queue.state_key("reused"), queue.fingerprint("earlier") + earlier)
    reused, quick = (dispatcher.submit(PendingRun(name, "{}", timeout_s=10.0)) for name in ("reused", "mine"))
    await dispatcher._handle_notices(f"reused 0 0 {earlier}\nmine 0 0 {mine}")
    await dispatcher._send_batch()
    assert isinstance(reused.result.exception(), IdReused)
    assert quick.result.result() == mine
    await dispatcher.close()


async def test_what_was_to_be_cancelled_is_so_where_another_program_under_its_id_is_refused(
    server: EmbeddedRedis,
) -> None:
    dispatcher = Dispatcher(server.url, max_queued=1000, max_queued_bytes=1 << 30)
    first = dispatcher.submit(PendingRun("a", "{}", timeout_s=10.0))
    await dispatcher._send_batch()
    dispatcher.release(first)
    second = dispatcher.submit(PendingRun("a", "[]", timeout_s=10.0))
    await dispatcher._send_batch()
    assert isinstance(second.result.exception(), IdReused)
    await dispatcher._send_batch()
    assert await dispatcher.client.execute_command(*queue.get_state("a")) == queue.CANCELLED
    await dispatcher.close()


async def test_what_redis_never_takes_is_not_tried_for_ever(server: EmbeddedRedis) -> None:
    dispatcher = Dispatcher(server.url, max_queued=1000, max_queued_bytes=1 << 30)
    with redis.Redis.from_url(server.url) as client:
        for name in ("cancelled", "sent"):
            client.hset(queue.state_key(name), "no", "state")
    sent_run = dispatcher.submit(PendingRun("sent", "{}", timeout_s=10.0))
    sent_run.may_be_stored = True
    dispatcher.cancelled.append("cancelled")
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        await dispatcher._send_batch()
    assert isinstance(sent_run.result.exception(), QueueRefuses)
    assert (dispatcher.unsent, dispatcher.cancelled) == ([], [])
    await dispatcher.close()


@pytest.mark.parametrize(
    "error", [ValueError("broken"), asyncio.CancelledError()], ids=["raises", "is cancelled"]
)
async def test_a_loop_that_ends_unexpectedly_ends_the_process(
    server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    class ProcessEnded(Exception): ...

    def end_process(problem: str, error: BaseException) -> None:
        raise ProcessEnded(problem) from error

    async def broken_loop() -> None:
        raise error

    monkeypatch.setattr(dispatcher_module, "end_process", end_process)
    dispatcher = Dispatcher(server.url, max_queued=1, max_queued_bytes=1 << 20)
    with pytest.raises(ProcessEnded, match="unexpected exception in broken_loop"):
        await dispatcher._keep_running(broken_loop)
    await dispatcher.close()


async def test_loops_that_are_closed_end_without_the_process(
    server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []
    monkeypatch.setattr(dispatcher_module, "end_process", lambda problem, error: ends.append(problem))
    dispatcher = Dispatcher(server.url, max_queued=1, max_queued_bytes=1 << 20)
    await dispatcher.start()
    await asyncio.to_thread(wait_until, lambda: dispatcher.stored_bytes)
    await dispatcher.close()
    assert (ends, [task.cancelled() for task in dispatcher.loops]) == ([], [True] * 4)
