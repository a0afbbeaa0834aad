"""Under faults, every program is answered once and rightly, and the service is back within 5 s."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from support.judge_faults import (
    descendants,
    done_by,
    parts,
    recovery_bound,
    run_through,
    status,
    status_when,
    unfinished,
)

from rstar2.judge.client import JudgeClient, SyncJudgeClient
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.schema import RunRequest
from rstar2.judge.service.settings import ServiceSettings
from rstar2.judge.service.start import JudgeHandle, running_judge, start_service, stop_service


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[JudgeHandle]:
    with running_judge(tmp_path) as handle:
        yield handle


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    found = EmbeddedRedis(tmp_path / "queue", tmp_path / "queue.log")
    found.start()
    yield found
    found.stop()


def test_a_worker_is_killed(judge: JudgeHandle) -> None:
    [victim, _] = parts(judge, "rstar2.judge.worker.main")
    assert run_through(judge, 100, lambda: os.kill(victim, signal.SIGKILL)) < recovery_bound()
    found = status_when(judge, lambda found: len(found["workers"]) == 2, recovery_bound())
    assert found["restarts"] == {"worker": 1}


def test_a_frozen_worker_is_taken_for_dead_and_its_late_results_do_not_count(judge: JudgeHandle) -> None:
    [victim, _] = parts(judge, "rstar2.judge.worker.main")

    def freeze() -> None:
        os.kill(victim, signal.SIGSTOP)
        time.sleep(4.5)
        os.kill(victim, signal.SIGCONT)

    assert run_through(judge, 100, freeze) < recovery_bound()


def test_zygotes_are_killed(judge: JudgeHandle) -> None:
    [victim, _] = parts(judge, "rstar2.judge.worker.main")

    def kill() -> None:
        for pid in descendants(victim):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue

    assert run_through(judge, 100, kill) < recovery_bound()
    assert status(judge)["restarts"] == {}


def test_the_http_process_is_killed_and_nothing_runs_twice(judge: JudgeHandle) -> None:
    [victim] = parts(judge, "rstar2.judge.server.app")
    assert run_through(judge, 100, lambda: os.kill(victim, signal.SIGKILL)) < recovery_bound()
    status_when(judge, lambda found: sum(done_by(found)) >= 101)
    time.sleep(0.6)
    assert sum(done_by(status(judge))) == 101


async def test_what_is_cancelled_while_the_http_process_is_away_does_not_go_on(judge: JudgeHandle) -> None:
    endless = RunRequest(code="while True: pass", timeout_s=300)
    async with JudgeClient(judge.url) as client:
        calls = [asyncio.create_task(client.run(endless)) for _ in range(10)]
        await asyncio.to_thread(status_when, judge, lambda found: unfinished(found) == len(calls))
        [front] = parts(judge, "rstar2.judge.server.app")
        os.kill(front, signal.SIGKILL)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert (await asyncio.wait_for(client.run(RunRequest(code="7")), 30)).value == "7"


def test_the_embedded_queue_is_killed(judge: JudgeHandle) -> None:
    [victim] = parts(judge, "valkey-server") or parts(judge, "redis-server")
    assert run_through(judge, 100, lambda: os.kill(victim, signal.SIGKILL)) < recovery_bound()


def test_the_queue_is_away_for_two_seconds(tmp_path: Path, server: EmbeddedRedis) -> None:
    def restart() -> None:
        assert server.process is not None
        server.process.kill()
        server.process.wait(10)
        time.sleep(2)
        server.restart()

    with running_judge(tmp_path, redis_url=server.url) as judge:
        assert run_through(judge, 100, restart) < recovery_bound()


def test_the_queue_is_frozen_for_five_seconds(tmp_path: Path, server: EmbeddedRedis) -> None:
    def freeze() -> None:
        assert server.process is not None
        os.kill(server.process.pid, signal.SIGSTOP)
        time.sleep(5)
        os.kill(server.process.pid, signal.SIGCONT)

    with running_judge(tmp_path, redis_url=server.url) as judge:
        assert run_through(judge, 100, freeze) < recovery_bound()


def test_the_front_loses_touch_with_what_is_finished(tmp_path: Path, server: EmbeddedRedis) -> None:
    def cut() -> None:
        with redis.Redis.from_url(server.url) as client:
            assert client.client_kill_filter(_type="pubsub") == 1

    with running_judge(tmp_path, redis_url=server.url) as judge:
        assert run_through(judge, 100, cut) < recovery_bound()


def test_the_queue_loses_all_it_held(tmp_path: Path, server: EmbeddedRedis) -> None:
    def forget() -> None:
        assert server.process is not None
        server.process.kill()
        server.process.wait(10)
        shutil.rmtree(server.folder)
        server.folder.mkdir()
        server.restart()

    program = RunRequest(code="import time; time.sleep(0.05); print(1)")
    with (
        running_judge(tmp_path, redis_url=server.url) as judge,
        SyncJudgeClient(judge.url) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        load = pool.submit(client.run_many, [program] * 60)
        time.sleep(0.3)
        forget()
        assert [result.stdout for result in load.result(60)] == ["1\n"] * 60


def test_a_worker_that_is_asked_to_leave_finishes_what_it_is_at_and_gives_the_rest_back(
    tmp_path: Path, server: EmbeddedRedis
) -> None:
    with running_judge(tmp_path / "stays", workers=1, redis_url=server.url) as judge:
        settings = ServiceSettings(
            folder=str(tmp_path / "leaves"), workers=1, redis_url=server.url, api=False
        )
        process, _ = start_service(settings)

        def leave() -> None:
            status_when(judge, lambda found: len(found["workers"]) == 2 and min(done_by(found)) > 0)
            stop_service(process)

        assert run_through(judge, 100, leave) < recovery_bound()
        time.sleep(0.6)
        [left] = done_by(status_when(judge, lambda found: len(found["workers"]) == 1))
        assert 0 < left < 101


def test_what_was_given_to_nobody_known_is_run_by_others(judge: JudgeHandle) -> None:
    def steal() -> None:
        with redis.Redis.from_url(judge.redis_url) as client:
            stolen: Any = client.xreadgroup(queue.GROUP, "ghost", {queue.TASKS: ">"}, count=20, block=5000)
        assert sum(len(entries) for _, entries in stolen) > 0

    assert run_through(judge, 150, steal) < recovery_bound()


def test_a_client_that_hangs_up_has_its_queued_programs_dropped(judge: JudgeHandle) -> None:
    runs = [{"code": "import time; time.sleep(0.3); print(1)"}] * 200
    body = json.dumps({"runs": runs}).encode()
    head = f"POST /v1/runs/batch HTTP/1.1\r\nHost: judge\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    address = httpx.URL(judge.url)
    with socket.create_connection((address.host, address.port or 80)) as connection:
        connection.sendall(head + body)
        status_when(judge, lambda found: found["queue"] > 100)
    status_when(judge, lambda found: not unfinished(found), recovery_bound())
    time.sleep(0.6)
    assert sum(done_by(status(judge))) < 20


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=16m", "judge-test", str(folder)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small disk here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_the_disk_of_the_work_area_is_full_for_a_while(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    writes: set[str] = set()

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 9, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue
        ends = time.monotonic() + 2
        with redis.Redis.from_url(judge.redis_url, decode_responses=True) as client:
            while time.monotonic() < ends:
                info: Any = client.info("persistence")
                writes.add(info["aof_last_write_status"])
                time.sleep(0.1)
        ballast.unlink()

    with running_judge(small_disk / "judge") as judge:
        assert run_through(judge, 100, fill) < recovery_bound()
    # The queue did want to write, and could not.
    assert "err" in writes
