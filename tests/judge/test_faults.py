"""Under faults, every program is answered once and correctly, and the judge recovers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis
from support.judge.judge_faults import (
    RECOVERS_S,
    done_by,
    kill_jails,
    parts,
    run_during,
    run_through,
    status,
    status_when,
    unfinished,
    wait_heartbeats,
)
from support.waiting import TIMEOUT_S, wait_until

from rstar2.errors import Failure
from rstar2.judge.client import JudgeClient, SyncJudgeClient
from rstar2.judge.client import connection as connection_module
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.schema import Isolation, RunRequest
from rstar2.judge.service.settings import ServiceSettings
from rstar2.judge.service.start import JudgeHandle, running_judge, start_service, stop_service

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeHandle]:
    """A judge for all tests with faults that it survives."""
    with running_judge(tmp_path_factory.mktemp("judge"), preload=False) as handle:
        yield handle


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A queue that no supervisor restarts."""
    folder = tmp_path_factory.mktemp("queue")
    found = EmbeddedRedis(folder / "data", folder / "log")
    found.start()
    yield found
    found.stop()


@pytest.fixture(scope="module")
def judge_elsewhere(server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeHandle]:
    """A judge with an external queue."""
    with running_judge(tmp_path_factory.mktemp("elsewhere"), redis_url=server.url, preload=False) as handle:
        yield handle


def living(found: dict[str, Any]) -> bool:
    """Returns whether a status shows two living workers."""
    return bool(found["num_workers"] == 2 == len(found["workers"]))


def test_a_worker_is_killed(judge: JudgeHandle) -> None:
    before = status_when(judge, living)["restarts"].get("worker", 0)
    [victim, _] = parts(judge, "rstar2.judge.worker.main")
    run_through(judge, lambda: os.kill(victim, signal.SIGKILL))
    assert status_when(judge, living)["restarts"]["worker"] == before + 1


def test_a_frozen_worker_is_taken_for_dead_and_its_late_results_do_not_count(judge: JudgeHandle) -> None:
    status_when(judge, living)
    [victim, _] = parts(judge, "rstar2.judge.worker.main")

    def freeze() -> None:
        os.kill(victim, signal.SIGSTOP)
        try:
            status_when(judge, lambda found: len(found["workers"]) == 1)
        finally:
            os.kill(victim, signal.SIGCONT)

    run_through(judge, freeze)
    status_when(judge, living)


def test_zygotes_are_killed(judge: JudgeHandle) -> None:
    before = status_when(judge, living)["restarts"]
    [victim, _] = parts(judge, "rstar2.judge.worker.main")
    run_through(judge, lambda: kill_jails([victim]))
    assert status(judge)["restarts"] == before


def test_the_work_folder_is_removed_and_zygotes_are_killed(judge: JudgeHandle) -> None:
    """A cleaner of temporary files may remove the work folder."""
    before = status_when(judge, living)["restarts"].get("worker", 0)
    workers = parts(judge, "rstar2.judge.worker.main")

    def remove() -> None:
        # Moved first: a worker that is restarted while the folder is emptied needs the same path.
        shutil.rmtree((Path(judge.folder) / "work").rename(Path(judge.folder) / "removed"))
        kill_jails(workers)
        status_when(judge, lambda found: found["restarts"].get("worker", 0) >= before + 2)

    run_through(judge, remove)
    assert not set(workers) & set(parts(judge, "rstar2.judge.worker.main"))
    status_when(judge, living)
    for number in range(2):
        logged = (Path(judge.folder) / "logs" / f"worker-{number}.log").read_text()
        assert "unexpected exception: this process ends" in logged
        assert "FileNotFoundError" in logged
    assert (Path(judge.folder) / "work").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("tier", ["strict", "landlock"])
def test_a_program_that_no_worker_can_read_is_lost_and_ends_no_worker(
    tmp_path: Path, tier: Isolation
) -> None:
    with (
        running_judge(tmp_path, workers=1, isolation=tier, preload=False) as judge,
        redis.Redis.from_url(judge.redis_url, decode_responses=True) as client,
    ):
        unreadable = json.dumps({"code": "1", "timeout_s": "long"})
        client.execute_command(*queue.enqueue({"a": unreadable}))
        wait_until(lambda: queue.is_result(client.execute_command(*queue.get_state("a"))))
        result = json.loads(client.execute_command(*queue.get_state("a")))
        found = status_when(judge, lambda found: found["num_workers"] == 1)
        with SyncJudgeClient(judge.url) as asking:
            assert asking.run(RunRequest(code="7", timeout_s=TIMEOUT_S)).value == "7"
    assert (result["outcome"], result["stderr"]) == ("lost", queue.UNREADABLE)
    assert found["restarts"] == {}
    logged = (tmp_path / "logs" / "worker-0.log").read_text()
    assert "task 'a' is not a program" in logged
    assert f"isolation {tier}; not enforced:" in logged


def test_the_http_process_is_killed_and_nothing_runs_twice(judge: JudgeHandle) -> None:
    status_when(judge, living)
    before = sum(done_by(wait_heartbeats(judge)))
    [victim] = parts(judge, "rstar2.judge.server.app")
    count = run_through(judge, lambda: os.kill(victim, signal.SIGKILL))
    assert sum(done_by(wait_heartbeats(judge))) == before + count


async def test_what_is_cancelled_while_the_http_process_is_away_does_not_run_on(
    judge: JudgeHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long the process takes to start again.
    monkeypatch.setattr(connection_module, "CANCEL_S", RECOVERS_S)
    endless = RunRequest(code="while True: pass", timeout_s=TIMEOUT_S)
    async with JudgeClient(judge.url) as client:
        calls = [asyncio.create_task(client.run(endless)) for _ in range(10)]
        await asyncio.to_thread(status_when, judge, lambda found: unfinished(found) == len(calls))
        [victim] = parts(judge, "rstar2.judge.server.app")
        os.kill(victim, signal.SIGKILL)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert (
            await asyncio.wait_for(client.run(RunRequest(code="7", timeout_s=TIMEOUT_S)), RECOVERS_S)
        ).value == "7"
    await asyncio.to_thread(status_when, judge, lambda found: not unfinished(found))


def test_the_embedded_queue_is_killed(judge: JudgeHandle) -> None:
    [victim] = parts(judge, "valkey-server") or parts(judge, "redis-server")
    run_through(judge, lambda: os.kill(victim, signal.SIGKILL))


def test_the_queue_is_frozen_for_five_seconds(judge: JudgeHandle) -> None:
    [victim] = parts(judge, "valkey-server") or parts(judge, "redis-server")

    def freeze() -> None:
        os.kill(victim, signal.SIGSTOP)
        time.sleep(5)
        os.kill(victim, signal.SIGCONT)

    run_through(judge, freeze)


def test_the_subscription_to_results_breaks(judge: JudgeHandle) -> None:
    def cut() -> None:
        with redis.Redis.from_url(judge.redis_url) as client:
            # Where it has just broken by itself, it is made again.
            wait_until(lambda: client.client_kill_filter(_type="pubsub"))

    run_through(judge, cut)


def test_what_was_given_to_nobody_known_is_run_by_others(judge: JudgeHandle) -> None:
    def steal() -> None:
        with redis.Redis.from_url(judge.redis_url) as client:
            wait_until(
                lambda: client.xreadgroup(queue.GROUP, "ghost", {queue.TASKS: ">"}, count=20, block=10_000)
            )

    run_through(judge, steal)


def test_a_client_that_disconnects_has_its_queued_programs_dropped(judge: JudgeHandle) -> None:
    before = sum(done_by(wait_heartbeats(judge)))
    runs = [{"code": "while True: pass", "timeout_s": TIMEOUT_S}] * 200
    body = json.dumps({"runs": runs}).encode()
    head = f"POST /v1/runs/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    address = httpx.URL(judge.url)
    with socket.create_connection((address.host, address.port or 80)) as connection:
        connection.sendall(head + body)
        status_when(judge, lambda found: found["queue"] > 100)
    status_when(judge, lambda found: not unfinished(found))
    # Those that ran were ended; the others were still queued when the client left.
    assert sum(done_by(wait_heartbeats(judge))) - before < 100


def restart(server: EmbeddedRedis) -> None:
    """Start a queue again on its port. Retries, because another connection may be using the port."""

    def is_back() -> bool:
        with contextlib.suppress(Failure):
            server.restart()
            return True
        return False

    wait_until(is_back)


def kill(server: EmbeddedRedis) -> None:
    assert server.process is not None
    server.process.kill()
    server.process.wait(TIMEOUT_S)


@pytest.mark.long
def test_the_queue_is_away_for_two_seconds(judge_elsewhere: JudgeHandle, server: EmbeddedRedis) -> None:
    def away() -> None:
        kill(server)
        time.sleep(2)
        restart(server)

    run_through(judge_elsewhere, away)


@pytest.mark.long
def test_a_worker_that_is_asked_to_leave_finishes_what_it_runs_and_returns_the_rest(
    tmp_path: Path, judge_elsewhere: JudgeHandle, server: EmbeddedRedis
) -> None:
    judge = judge_elsewhere
    before = sum(done_by(wait_heartbeats(judge)))
    settings = ServiceSettings(
        folder=str(tmp_path), workers=1, redis_url=server.url, api=False, preload=False
    )
    process, _ = start_service(settings)
    names = {worker["name"] for worker in status(judge)["workers"]}
    left: list[int] = []

    def leave() -> None:
        found = status_when(judge, lambda found: len(found["workers"]) == 3 and min(done_by(found)) > 0)
        left.extend(w["done"] for w in found["workers"] if w["name"].split("-")[-3] == str(process.pid))
        stop_service(process)

    count = run_through(judge, leave)
    found = wait_heartbeats(judge)
    assert len(found["workers"]) == 2 < len(names)
    stayed = sum(done_by(found)) - before
    assert left
    # What the one that left did, to which its last heartbeat did not count everything, and the others the rest.
    assert left[0] <= count - stayed < count


@pytest.mark.long
def test_the_queue_loses_all_it_held(judge_elsewhere: JudgeHandle, server: EmbeddedRedis) -> None:
    def forget() -> None:
        kill(server)
        shutil.rmtree(server.folder)
        server.folder.mkdir()
        restart(server)

    # What it counted is lost, too.
    run_during(judge_elsewhere, forget)


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


@pytest.mark.long
def test_the_disk_of_the_work_area_is_full_for_a_while(small_disk: Path) -> None:
    ballast = small_disk / "ballast"

    def fill() -> None:
        with ballast.open("wb", buffering=0) as file:
            for size in (1 << 16, 1 << 9, 1):
                try:
                    while True:
                        file.write(b"x" * size)
                except OSError:
                    continue
        with redis.Redis.from_url(judge.redis_url) as client:
            # The queue wants to write, and cannot.
            wait_until(lambda: client.info("persistence")["aof_last_write_status"] == "err")
        time.sleep(2)
        ballast.unlink()

    with running_judge(small_disk / "judge", preload=False) as judge:
        run_through(judge, fill)


def test_what_no_part_of_a_judge_wrote_ends_no_part_and_does_not_stay_in_the_queue(
    judge: JudgeHandle,
) -> None:
    before = status(judge)["restarts"]
    with redis.Redis.from_url(judge.redis_url, decode_responses=True) as client:
        [worker, *_] = client.hkeys(queue.WORKERS)
        cells = queue.cells_stream(worker)
        for number, text in enumerate(
            ("no JSON", "[]", '{"at": 1}', '{"at": 1, "beat": "x", "isolation": "none"}')
        ):
            client.hset(queue.WORKERS, f"broken{number}", text)
        program = RunRequest(code="1").model_dump_json()
        for stream, fields in (
            (queue.TASKS, {"id": "no-body", "at": "1"}),
            (queue.TASKS, {"body": program, "at": "1"}),
            (queue.TASKS, {"id": "no-time", "body": "no JSON"}),
            (queue.TASKS, {"id": "no-number", "body": "[]", "at": "x", "tries": "x"}),
            (queue.TASKS, {"id": "no-program", "body": '{"code": 1, "cell": 1}', "at": "inf"}),
            (queue.TASKS, {"something": "else"}),
            (cells, {"id": "no-command", "body": "no JSON", "at": "1"}),
            (cells, {"id": "no-cell", "body": '{"action": "cell", "session": "s"}', "at": "1"}),
        ):
            client.xadd(stream, fields)
        client.publish(queue.DONE, "no notice\nrun with spaces 0 0 {}")
        wait_until(lambda: not client.xlen(queue.TASKS) and not client.xlen(cells))
        wait_until(lambda: not any(name.startswith("broken") for name in client.hkeys(queue.WORKERS)))
        for name in ("no-body", "no-time", "no-number", "no-program", "no-command", "no-cell"):
            state = client.get(queue.state_key(name))[queue.FINGERPRINT_CHARS :]
            assert json.loads(state)["outcome"] == "lost"
    with SyncJudgeClient(judge.url, judge.token) as calls:
        assert calls.run(RunRequest(code="print(1)", timeout_s=TIMEOUT_S)).stdout == "1\n"
    assert status(judge)["restarts"] == before
