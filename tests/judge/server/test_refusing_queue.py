"""A queue that answers but refuses to store anything, because its memory or its disk is full."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from support.judge.next_version import this_version
from support.judge.parts import Parts
from support.small_disk import small_disk
from support.waiting import TIMEOUT_S, wait_until
from websockets.sync.client import connect

from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.schema import RunResult
from rstar2.judge.server.dispatcher import Dispatcher, PendingRun, QueueRefuses

DISK_BYTES = 4 << 20
Full = Callable[[], contextlib.AbstractContextManager[None]]


@pytest.fixture(params=["memory", "disk"])
def refusing(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[EmbeddedRedis, Full]]:
    """A queue, and a context manager that makes it refuse writes during a `with` block."""
    with contextlib.ExitStack() as stack:
        disk = tmp_path / "disk"
        if request.param == "disk":
            stack.enter_context(small_disk(disk, DISK_BYTES))
        server = EmbeddedRedis(disk / "data" if request.param == "disk" else tmp_path, tmp_path / "redis.log")
        server.start()
        stack.callback(server.stop)
        client = stack.enter_context(redis.Redis.from_url(server.url))

        @contextlib.contextmanager
        def memory_is_full() -> Iterator[None]:
            client.config_set("maxmemory", 1)
            yield
            client.config_set("maxmemory", 0)

        @contextlib.contextmanager
        def disk_is_full() -> Iterator[None]:
            ballast = disk / "ballast"
            with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * os.sysconf("SC_PAGE_SIZE"))

            def refuses() -> bool:
                """The first writes may still succeed, because the last page of the file has space."""
                with contextlib.suppress(redis.ResponseError):
                    client.set("filler", "x" * 9000)
                return bool(client.info("persistence")["aof_last_write_status"] == "err")

            wait_until(refuses)
            yield
            ballast.unlink()
            wait_until(lambda: client.info("persistence")["aof_last_write_status"] == "ok")

        yield server, memory_is_full if request.param == "memory" else disk_is_full


async def test_a_refused_program_is_answered_and_one_that_may_be_stored_waits(
    refusing: tuple[EmbeddedRedis, Full],
) -> None:
    server, full = refusing
    dispatcher = Dispatcher(server.url, max_queued=1000, max_queued_bytes=1 << 30)
    with full():
        new = dispatcher.submit(PendingRun("new", "{}", timeout_s=10.0))
        cell = dispatcher.submit(PendingRun("cell", "{}", timeout_s=10.0, worker="w"))
        earlier = dispatcher.submit(PendingRun("sent", "{}", timeout_s=10.0))
        earlier.may_be_stored = True
        dispatcher.cancelled.append("stored")
        with pytest.raises(redis.ResponseError):
            await dispatcher._send_batch()
        assert isinstance(new.result.exception(), QueueRefuses)
        # The cell's worker does not exist. Redis can report this even if it cannot store anything.
        assert cell.result.done()
        assert not earlier.result.done()
        assert dispatcher.unsent == [earlier]
        dispatcher.release(new)
        dispatcher.release(cell)
    await dispatcher._send_batch()
    assert (dispatcher.unsent, dispatcher.cancelled) == ([], [])
    assert await dispatcher.client.xlen(queue.TASKS) == 1
    assert (await dispatcher.client.execute_command(*queue.get_state("sent"))).startswith("@")
    await dispatcher.close()


@pytest.mark.slow
def test_clients_are_told_at_once_and_nothing_is_stored(
    refusing: tuple[EmbeddedRedis, Full], tmp_path: Path
) -> None:
    server, full = refusing
    parts = Parts(server.url, tmp_path)
    listener, url = parts.listen()
    try:
        parts.serve(this_version(), listener)

        def ask(path: str, body: dict[str, Any]) -> httpx.Response:
            return httpx.post(url + path, json=body, timeout=TIMEOUT_S, trust_env=False)

        with httpx.Client(timeout=TIMEOUT_S, trust_env=False) as http:
            wait_until(lambda: http.get(f"{url}/health").json()["status"] == "no workers")
        with full():
            batch = {"runs": [{"code": "1"}] * 600}
            requests = [("/v1/runs", {"code": "1"}), ("/v1/runs/batch", batch)]
            requests += [
                ("/run", {"type": "python", "solution": "1"}),
                ("/run_code", {"code": "1", "language": "python"}),
            ]
            for path, body in requests:
                answer = ask(path, body)
                # The status is 429 if the judge has already measured that the memory is full.
                assert answer.status_code in (429, 503), path
                assert float(answer.headers["Retry-After"]) >= 1
                assert answer.json()["error"].startswith("the queue ")
            with connect(url.replace("http", "ws", 1) + "/v1/runs/stream", proxy=None) as stream:
                stream.send(json.dumps([{"id": name, "run": {"code": "1"}} for name in "ab"]))
                answers: list[Any] = []
                while len(answers) < 2:
                    answers += json.loads(stream.recv(timeout=TIMEOUT_S))
                assert [set(answer) for answer in answers] == [{"id", "retry_after_s"}] * 2
        assert parts.client.xlen(queue.TASKS) == 0
        assert not parts.client.keys(queue.state_key("*"))
    finally:
        parts.close()


async def test_delivered_results_make_room_if_the_queue_needs_it(server: EmbeddedRedis) -> None:
    dispatcher = Dispatcher(server.url, max_queued=1000, max_queued_bytes=64 << 20)
    text = RunResult(id="a", outcome="ok", stdout="x" * (1 << 20)).model_dump_json()
    names = ["early", "asked again", "queued again", "just delivered", "not delivered"]
    states = dict.fromkeys(names, queue.NO_FINGERPRINT + text)
    states["queued again"] = f"{queue.NO_FINGERPRINT}@{queue.TASKS} 1-1"
    with redis.Redis.from_url(server.url) as client:

        def stored_names() -> set[str]:
            return {name for name in names if client.exists(queue.state_key(name))}

        for name, state in states.items():
            client.set(queue.state_key(name), state)
        dispatcher.waiting["asked again"] = PendingRun("asked again", "{}", timeout_s=10.0)
        long_ago = time.monotonic() - 10.0
        dispatcher.stored_delivered.extend((long_ago, name) for name in names[:3])
        dispatcher.stored_delivered.append((time.monotonic() + TIMEOUT_S, "just delivered"))
        await dispatcher._measure_queue()
        await dispatcher._drop_delivered()
        assert stored_names() == set(names)
        client.config_set("maxmemory", 8 << 20)
        await dispatcher._measure_queue()
        client.config_set("maxmemory", 0)
        await dispatcher._drop_delivered()
        assert stored_names() == set(names) - {"early"}
    await dispatcher.close()
