"""Tests of a worker: the tasks that it fetches, its work between programs, and a sandbox that hangs."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis
from support.judge.judge_faults import status_when
from support.waiting import TIMEOUT_S, wait_until

from rstar2.errors import UserError
from rstar2.judge.queue import requirements
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.queue.redis_connection import SyncRedisConnection
from rstar2.judge.queue.tasks import Task
from rstar2.judge.schema import Isolation, RunRequest, RunResult
from rstar2.judge.service.settings import JudgeHandle
from rstar2.judge.worker import consumer, local_queue
from rstar2.judge.worker import main as worker
from rstar2.judge.worker.local_queue import LocalQueue
from rstar2.judge.worker.sessions import WorkerSessions
from rstar2.judge.worker.settings import WorkerSettings

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "judge_slow_link.py"
FAULTS = """
import sys, time
from rstar2.judge.worker import consumer
from rstar2.judge.worker import main as worker

class Sandbox:
    isolation = "none"
    def __init__(self, *args, **options): pass
    def start(self): pass
    def start_zygotes(self): pass
    def close(self): pass
    def exceptions(self): return ["nothing is"]
    def abort(self, run_id): raise ValueError("abort is broken")
    def profile_next_zygote(self):
        if FAULT == "hangs between programs": hang()
        if FAULT == "raises between programs": raise ValueError("profiling is broken")
        return False
    def run(self, request, run_id):
        if FAULT == "raises": raise ValueError("the sandbox is broken")
        if FAULT == "hangs": hang()
        time.sleep(3600)

def hang():
    # Only now: before, a slow machine must not be taken for a thread that hangs.
    consumer.HUNG_S = 0.5
    time.sleep(3600)

FAULT = sys.argv[1]
worker.Sandbox = Sandbox
worker.main()
"""
"""A worker whose sandbox hangs or raises an exception."""


@contextmanager
def faulty_worker(server: EmbeddedRedis, fault: str) -> Iterator[subprocess.Popen[str]]:
    settings = WorkerSettings(name="faulty", redis_url=server.url, folder="unused", isolation="none")
    command = [sys.executable, "-c", FAULTS, fault]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        try:
            print(settings.model_dump_json(), file=process.stdin, flush=True)
            yield process
        finally:
            process.kill()


def logged_at_its_end(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    logged = process.stderr.read()
    assert process.wait(TIMEOUT_S) == 1, logged
    return logged


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "log_line"),
    [
        ("raises", "ValueError: the sandbox is broken"),
        ("hangs", "the sandbox hangs in program a, so this worker ends"),
    ],
)
def test_a_worker_that_fails_with_a_program_ends_and_loses_nothing(
    server: EmbeddedRedis, fault: str, log_line: str
) -> None:
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    body = RunRequest(code="print(1)", timeout_s=0.2).model_dump_json()
    client.execute_command(*queue.enqueue({"a": body}))
    with faulty_worker(server, fault) as process:
        assert log_line in logged_at_its_end(process)
    assert client.execute_command(*queue.remove_worker("faulty")) == 1
    reply = SyncRedisConnection(client).execute({"claim": queue.claim_returned("next", [], 1)})["claim"]
    assert [(task.id, task.tries) for task in Task.from_reply(reply)] == [("a", 1)]
    client.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "log_line"),
    [
        ("raises between programs", "ValueError: profiling is broken"),
        ("hangs between programs", "the sandbox hangs between two programs, so this worker ends"),
    ],
)
def test_a_worker_that_fails_between_programs_ends(server: EmbeddedRedis, fault: str, log_line: str) -> None:
    with faulty_worker(server, fault) as process:
        assert log_line in logged_at_its_end(process)


@pytest.mark.slow
def test_a_worker_whose_other_thread_fails_ends_and_does_not_finish_its_program(
    server: EmbeddedRedis,
) -> None:
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    client.execute_command(*queue.make_groups((queue.TASKS,)))
    body = RunRequest(code="print(1)", timeout_s=TIMEOUT_S).model_dump_json()
    client.execute_command(*queue.enqueue({"a": body}))
    with faulty_worker(server, "abort is called") as process:
        wait_until(lambda: client.xpending(queue.TASKS, queue.GROUP)["pending"])
        client.execute_command(*queue.cancel("a"))
        logged = logged_at_its_end(process)
    assert "unexpected exception in the thread consumer: this process ends" in logged
    assert "ValueError: abort is broken" in logged
    client.close()


@pytest.mark.slow
def test_a_worker_logs_its_start_its_tier_and_what_that_does_not_enforce(server: EmbeddedRedis) -> None:
    with faulty_worker(server, "raises between programs") as process:
        logged = logged_at_its_end(process)
    assert "worker faulty starts" in logged
    assert "isolation none; not enforced: nothing is" in logged


def test_the_number_of_a_heartbeat_stays_while_the_worker_cannot_do_its_work(server: EmbeddedRedis) -> None:
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    local = LocalQueue()
    worker = consumer.Consumer("w", client, local, {"isolation": "none"}, lambda run_id: None)
    worker._register()
    local.results.append((Task("no stream", "1-1", "a", "{}", 0, 0.0), RunResult(id="a", outcome="ok")))

    def beat() -> int:
        return int(json.loads(client.hget(queue.WORKERS, "w"))["beat"])

    # Redis refuses this result and accepts everything else.
    client.set("no stream", "but a text")
    beats = []
    for _ in range(3):
        worker.next_beat = 0.0
        with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
            worker._exchange(waits=False)
        beats.append(beat())
    assert len(set(beats)) == 1
    client.delete("no stream")
    worker.next_beat = 0.0
    worker._exchange(waits=False)
    worker.next_beat = 0.0
    worker._exchange(waits=False)
    assert beat() > beats[0]
    client.close()


@pytest.mark.slow
def test_a_worker_whose_clock_is_wrong_counts(judge: JudgeHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox, local, clock = Quick(), LocalQueue(), time.time
    sandbox.isolation = judge.isolation
    monkeypatch.setattr(time, "time", lambda: clock() - 60)
    with redis.Redis.from_url(judge.redis_url, decode_responses=True, socket_timeout=TIMEOUT_S) as connection:
        working = threading.Thread(target=worker.work, args=("behind", connection, sandbox, local, True))
        working.start()
        try:
            status = status_when(judge, lambda status: status["num_workers"] == 3)
            [behind] = [worker for worker in status["workers"] if worker["name"] == "behind"]
            assert abs(clock() - behind["at"]) < TIMEOUT_S
        finally:
            local.stop()
            working.join(TIMEOUT_S)


class Quick:
    """A stand-in for the sandbox of a worker. It runs no programs."""

    def __init__(self) -> None:
        self.isolation: Isolation = "none"
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
    """Whether the run's result was already stored, at each time that the worker did other work after the run."""

    def note_whether_stored(*_: object) -> None:
        if sandbox.runs:
            stored.append(queue.is_result(client.execute_command(*queue.get_state("a"))))

    monkeypatch.setattr(WorkerSessions, "end_overdue", note_whether_stored)
    monkeypatch.setattr(worker, "PROFILE_EVERY", 1)
    body = RunRequest(code="print(1)").model_dump_json()
    client.execute_command(*queue.enqueue({"a": body}))
    with redis.Redis.from_url(
        server.local_url, decode_responses=True, socket_timeout=TIMEOUT_S
    ) as connection:
        working = threading.Thread(target=worker.work, args=("w", connection, sandbox, local, preload))
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
    [[_, entries]] = client.xreadgroup(queue.GROUP, "returns", streams)
    client.execute_command(*queue.enqueue({"late": body}))
    tasks = [
        queue.Task(queue.TASKS, entry, fields["id"], fields["body"], 0, float(fields["at"]))
        for entry, fields in entries
    ]
    for number in (4, 1, 5, 0):
        client.execute_command(*queue.return_task(tasks[number], "returns"))
    client.execute_command(*queue.remove_worker("returns"))
    sandbox, local = Quick(), LocalQueue()
    with redis.Redis.from_url(
        server.local_url, decode_responses=True, socket_timeout=TIMEOUT_S
    ) as connection:
        working = threading.Thread(target=worker.work, args=("w", connection, sandbox, local, True))
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
    with redis.Redis.from_url(
        server.local_url, decode_responses=True, socket_timeout=TIMEOUT_S
    ) as connection:
        connection.execute_command(*requirements.require("judge", "strict"))
        with pytest.raises(UserError, match="none is weaker than strict"):
            worker.work("w", connection, sandbox, LocalQueue(), preload=True)
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
    fetch_count = LocalQueue().tasks_to_fetch()

    def wait(name: str) -> int:
        with redis.Redis.from_url(server.url, decode_responses=True) as connection:
            streams: Any = {queue.TASKS: ">"}
            reply: Any = connection.xreadgroup(queue.GROUP, name, streams, count=fetch_count, block=300_000)
            return len(reply[0][1])

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
    disconnected = consumer.Consumer("w", client, local, {"isolation": "none"}, lambda run_id: None)
    tries: list[float] = []
    monkeypatch.setattr(consumer, "REMIND_S", 1e9)
    monkeypatch.setattr(consumer.time, "sleep", lambda wait_s: local.stop() if len(tries) > 20 else None)
    register = disconnected._register
    monkeypatch.setattr(disconnected, "_register", lambda: (tries.append(0.0), register()))
    disconnected.run()
    assert len(tries) > 20
    assert len(caplog.messages) == 1
    assert "127.0.0.1:1" in caplog.text
    disconnected.next_warning = 0.0
    disconnected._disconnected(redis.ConnectionError("still away"))
    assert "still away" in caplog.messages[-1]
    # A queue that accepts the worker and refuses the next command still counts as disconnected.
    for _ in range(20):
        local.set_connected(True)
        disconnected.connected_at = time.monotonic()
        disconnected._disconnected(redis.OutOfMemoryError("full"))
    assert "full" not in caplog.text
    local.set_connected(True)
    disconnected.connected_at -= 2 * consumer.STABLE_S
    disconnected._disconnected(redis.OutOfMemoryError("full"))
    assert "full" in caplog.messages[-1]


def test_over_a_slow_link_a_worker_holds_what_it_runs_during_two_exchanges() -> None:
    task = queue.Task(queue.TASKS, "1-1", "a", "{}", 0, time.time())

    def share(mean_s: float, exchange_s: float, unfinished: int = 100_000) -> int:
        local = LocalQueue()
        local.mean_s = mean_s
        local.record_exchange(exchange_s)
        local.update_share(unfinished, 1)
        return local.share

    # The programs of recipes take 0.3 s. On a fast link the worker fetches no second one while the first runs.
    assert [share(mean_s, 0.0005) for mean_s in (0.002, 0.02, 0.3)] == [16, 5, 1]
    assert [share(mean_s, 0.1) for mean_s in (0.002, 0.02, 0.3, 3.0)] == [116, 15, 2, 1]
    assert share(0.0001, 1.0) == local_queue.MAX_PREFETCH + local_queue.MAX_AHEAD
    assert share(0.002, 0.1, unfinished=7) == 7
    local = LocalQueue()
    local.record_exchange(0.1)
    local.add_fetched([task, task], 2, 0.0)
    local.start_next()
    local.started_at = time.monotonic() - 2 * local_queue.LONG_S
    # If the task were returned now, it would take longer to run elsewhere than it waits here.
    assert local.remove_returnable() == []
    local.started_at -= TIMEOUT_S
    assert local.remove_returnable() == [task]


def test_few_exchanges_serve_many_programs_over_a_slow_link(server: EmbeddedRedis) -> None:
    """An exchange with Redis takes 0.5 s and a program takes no time, so the machine's speed does not matter."""
    names = [f"p{number}" for number in range(800)]
    sandbox, local = Quick(), LocalQueue()
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    client.execute_command(*queue.enqueue(dict.fromkeys(names, RunRequest(code="1").model_dump_json())))
    client.config_resetstat()
    link = runpy.run_path(str(BENCHMARK))["slow_link"]
    with link(server.port, 0.25) as port:
        url = f"redis://:{server.password}@127.0.0.1:{port}/0"
        with redis.Redis.from_url(url, decode_responses=True, socket_timeout=TIMEOUT_S) as connection:
            working = threading.Thread(target=worker.work, args=("w", connection, sandbox, local, False))
            working.start()
            try:
                wait_until(lambda: client.hget(queue.OUTCOMES, "ok") == "800")
                exchanges = client.info("commandstats")["cmdstat_xreadgroup"]["calls"]
            finally:
                local.stop()
                working.join(TIMEOUT_S)
    assert sandbox.runs == names
    assert exchanges < len(names) / (2 * local_queue.MAX_PREFETCH)
    client.close()
