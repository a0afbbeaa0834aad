"""A worker whose sandbox misbehaves."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from rstar2.judge import link, queue
from rstar2.judge.embedded import EmbeddedRedis
from rstar2.judge.schema import RunRequest

HANGS = """
import sys, time
import redis
from rstar2.judge import link, worker

class Hangs:
    isolation = "none"
    def start(self): pass
    def warm(self): pass
    def sit(self, seat): pass
    def close(self): pass
    def exceptions(self): return []
    def abort(self, run_id): pass
    def run(self, request, run_id): time.sleep(600)

link.WEDGED_S = 0.5
client = redis.Redis.from_url(sys.argv[1], decode_responses=True)
worker.work("hangs", client, Hangs(), link.Desk())
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    found = EmbeddedRedis(tmp_path / "queue", tmp_path / "queue.log")
    found.start()
    yield found
    found.stop()


def test_a_worker_whose_sandbox_hangs_ends_and_loses_nothing(server: EmbeddedRedis) -> None:
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    body = RunRequest(code="print(1)", timeout_s=0.2).model_dump_json()
    client.eval(*queue.enqueue_args([("a", body)]))
    worker = subprocess.Popen([sys.executable, "-c", HANGS, server.url])
    try:
        assert worker.wait(30) == 1
    finally:
        worker.kill()
        worker.wait(10)
    assert client.eval(*queue.reap_args("hangs")) == 1
    [[_, [[_, fields]]]] = client.xreadgroup(queue.GROUP, "next", {queue.RETURNED: ">"})
    assert (fields["id"], fields["tries"]) == ("a", "1")
    client.close()


def test_programs_are_fetched_ahead_only_while_they_have_to_wait() -> None:
    def task(waited_s: float) -> queue.Task:
        return queue.Task(queue.TASKS, "1-1", "a", "{}", 0, time.time() - waited_s)

    desk = link.Desk()
    assert desk.wants() == 1
    desk.got(1, [task(0.0)], 0.0)
    assert desk.next(0.0) is not None
    assert desk.wants() == 0
    desk.current = None
    assert desk.wants() == 1
    desk.got(1, [task(1.0)], 0.0)
    assert desk.next(0.0) is not None
    assert desk.wants() == 2
    desk.got(2, [task(0.0), task(0.0)], 0.0)
    assert (desk.ahead, desk.wants()) == (4, 2)
    desk.got(2, [], 0.0)
    assert (desk.ahead, desk.wants()) == (0, 0)


def test_programs_of_one_request_go_to_all_workers_that_wait(server: EmbeddedRedis) -> None:
    client: Any = redis.Redis.from_url(server.url, decode_responses=True)
    client.xgroup_create(queue.TASKS, queue.GROUP, id="0", mkstream=True)
    asked = link.Desk().wants()

    def wait(name: str) -> int:
        with redis.Redis.from_url(server.url, decode_responses=True) as own:
            streams: Any = {queue.TASKS: ">"}
            found: Any = own.xreadgroup(queue.GROUP, name, streams, count=asked, block=5000)
            return len(found[0][1])

    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(wait, name) for name in "ab"]
        while client.info("clients")["blocked_clients"] < 2:
            time.sleep(0.01)
        client.eval(*queue.enqueue_args([("p", "{}"), ("q", "{}")]))
        assert [each.result(10) for each in waiting] == [1, 1]
    client.close()
