"""A worker: what it fetches, what it does between programs, and a sandbox that hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
from support.waiting import TIMEOUT_S, wait_until

from rstar2.errors import UserError
from rstar2.judge.queue import required_isolation
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.queue.redis_connection import SyncRedisConnection
from rstar2.judge.queue.tasks import Task
from rstar2.judge.schema import RunRequest, RunResult
from rstar2.judge.worker import consumer, local_queue
from rstar2.judge.worker import main as worker
from rstar2.judge.worker.local_queue import LocalQueue
from rstar2.judge.worker.sessions import WorkerSessions

HANGS = """
import sys, time
import redis
from rstar2.judge.worker import consumer
from rstar2.judge.worker import main as worker
from rstar2.judge.worker.local_queue import LocalQueue

class Hangs:
    isolation = "none"
    def start(self): pass
    def start_zygotes(self): pass
    def close(self): pass
    def exceptions(self): return []
    def abort(self, run_id): pass
    def profile_next_zygote(self): return False
    def run(self, request, run_id): time.sleep(600)

consumer.HUNG_S = 0.5
client = redis.Redis.from_url(sys.argv[1], decode_responses=True)
worker.work("hangs", client, Hangs(), LocalQueue(), preload=True)
"""


@pytest.mark.slow
def test_a_worker_whose_sandbox_hangs_ends_and_loses_nothing(server: EmbeddedRedis) -> None:
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    body = RunRequest(code="print(1)", timeout_s=0.2).model_dump_json()
    client.execute_command(*queue.enqueue({"a": body}))
    process = subprocess.Popen([sys.executable, "-c", HANGS, server.url])
    try:
        assert process.wait(600) == 1
    finally:
        process.kill()
        process.wait(10)
    assert client.execute_command(*queue.remove_worker("hangs")) == 1
    reply = SyncRedisConnection(client).execute({"claim": queue.claim_returned("next", [], 1)})["claim"]
    assert [(task.id, task.tries) for task in Task.from_reply(reply)] == [("a", 1)]
    client.close()


class Quick:
    """What a worker uses here in place of a sandbox; it runs nothing."""

    isolation = "none"

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.profiled = self.loaded = 0

    def start(self) -> None: ...
    def start_zygotes(self) -> None:
        self.loaded += 1

    def close(self) -> None: ...
    def abort(self, run_id: str) -> None: ...
    def exceptions(self) -> list[str]:
        return []

    def run(self, request: RunRequest, run_id: str) -> RunResult:
        self.runs.append(run_id)
        return RunResult(id=run_id, outcome="ok")

    def profile_next_zygote(self) -> bool:
        self.profiled += 1
        return False


@pytest.mark.parametrize("preload", [True, False])
def test_a_result_waits_for_nothing_else_the_worker_does(
    server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, preload: bool
) -> None:
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    sandbox, local = Quick(), LocalQueue()
    stored: list[bool] = []
    """Whether there was a result whenever the worker did something else after the run."""

    def look(*_: object) -> None:
        if sandbox.runs:
            stored.append(queue.is_result(client.execute_command(*queue.get_state("a"))))

    monkeypatch.setattr(WorkerSessions, "end_overdue", look)
    monkeypatch.setattr(worker, "PROFILE_EVERY", 1)
    body = RunRequest(code="print(1)").model_dump_json()
    client.execute_command(*queue.enqueue({"a": body}))
    with redis.Redis.from_url(server.local_url, decode_responses=True, socket_timeout=TIMEOUT_S) as own:
        working = threading.Thread(target=worker.work, args=("w", own, sandbox, local, preload))
        working.start()
        try:
            wait_until(lambda: len(stored) >= 2)
        finally:
            local.stop()
            working.join(TIMEOUT_S)
    assert not working.is_alive()
    assert all(stored)
    assert sandbox.profiled
    assert bool(sandbox.loaded) is preload
    client.close()


def test_returned_programs_are_run_first_the_oldest_before_the_others(server: EmbeddedRedis) -> None:
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    names = [f"p{number}" for number in range(6)]
    body = RunRequest(code="1").model_dump_json()
    client.execute_command(*queue.make_groups((queue.TASKS, queue.RETURNED)))
    client.execute_command(*queue.enqueue(dict.fromkeys(names, body)))
    streams: Any = {queue.TASKS: ">"}
    [[_, taken]] = client.xreadgroup(queue.GROUP, "returns", streams)
    client.execute_command(*queue.enqueue({"late": body}))
    tasks = [queue.Task(queue.TASKS, entry, of["id"], of["body"], 0, float(of["at"])) for entry, of in taken]
    for number in (4, 1, 5, 0):
        client.execute_command(*queue.return_task(tasks[number], "returns"))
    client.execute_command(*queue.remove_worker("returns"))
    sandbox, local = Quick(), LocalQueue()
    with redis.Redis.from_url(server.local_url, decode_responses=True, socket_timeout=TIMEOUT_S) as own:
        working = threading.Thread(target=worker.work, args=("w", own, sandbox, local, True))
        working.start()
        try:
            wait_until(lambda: len(sandbox.runs) >= 7)
        finally:
            local.stop()
            working.join(TIMEOUT_S)
    assert sandbox.runs == [*names, "late"]
    client.close()


def test_a_worker_that_is_refused_loads_no_libraries(server: EmbeddedRedis) -> None:
    sandbox = Quick()
    with redis.Redis.from_url(server.local_url, decode_responses=True, socket_timeout=TIMEOUT_S) as own:
        own.execute_command(*required_isolation.require("judge", "strict"))
        with pytest.raises(UserError, match="none is below the strict"):
            worker.work("w", own, sandbox, LocalQueue(), preload=True)
    assert sandbox.loaded == 0


def test_a_worker_holds_no_more_than_its_share_of_the_queue() -> None:
    task = queue.Task(queue.TASKS, "1-1", "a", "{}", 0, time.time())
    local = LocalQueue()
    local.mean_s = 0.001

    def asks(unfinished: int, workers: int) -> int:
        local.update_share(unfinished, workers)
        return local.tasks_to_fetch()

    assert [asks(*queued) for queued in ((0, 0), (1, 2), (3, 2), (4, 2), (9, 2))] == [1, 1, 1, 2, 4]
    local.add_fetched([task, task, task], 3, 0.0)
    assert local.start_next() is not None
    local.add_fetched([], 4, 0.0)
    assert local.share == 1
    assert [asks(*queued) for queued in ((5, 2), (12, 2), (16, 2))] == [0, 3, 5]
    assert asks(100_000, 2) <= local_queue.MAX_PREFETCH
    local.mean_s = local_queue.MAX_PREFETCH_S / 4
    assert asks(100_000, 2) == 0
    local.tasks.clear()
    assert asks(100_000, 2) == 3
    local.mean_s = local_queue.LONG_S
    assert asks(100_000, 2) == 0


def test_programs_of_one_request_go_to_all_workers_that_wait(server: EmbeddedRedis) -> None:
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    client.xgroup_create(queue.TASKS, queue.GROUP, id="0", mkstream=True)
    asked = LocalQueue().tasks_to_fetch()

    def wait(name: str) -> int:
        with redis.Redis.from_url(server.url, decode_responses=True) as own:
            streams: Any = {queue.TASKS: ">"}
            found: Any = own.xreadgroup(queue.GROUP, name, streams, count=asked, block=300_000)
            return len(found[0][1])

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(wait, name) for name in "ab"]
        wait_until(lambda: client.info("clients")["blocked_clients"] == 2)
        client.execute_command(*queue.enqueue({"p": "{}", "q": "{}"}))
        assert [each.result(TIMEOUT_S) for each in waiting] == [1, 1]
    client.close()


def test_a_lost_queue_is_logged_once_and_then_now_and_then(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = redis.Redis.from_url("redis://127.0.0.1:1/0", decode_responses=True)
    local = LocalQueue()
    lost = consumer.Consumer("w", client, local, {"isolation": "none"}, lambda run_id: None)
    tries: list[float] = []
    monkeypatch.setattr(consumer, "REMIND_S", 1e9)
    monkeypatch.setattr(consumer.time, "sleep", lambda wait_s: local.stop() if len(tries) > 20 else None)
    register = lost._register
    monkeypatch.setattr(lost, "_register", lambda: (tries.append(0.0), register()))
    lost.run()
    assert len(tries) > 20
    assert len(caplog.messages) == 1
    assert "127.0.0.1:1" in caplog.text
    lost.next_warning = 0.0
    lost._disconnected(redis.ConnectionError("still away"))
    assert "still away" in caplog.messages[-1]
