"""A worker whose sandbox misbehaves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from rstar2.judge import queue
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
