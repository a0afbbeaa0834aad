"""Each kind of fault, under a load of 2,000 programs: none is lost, and none is counted or answered twice.

`test_faults.py` tests single faults in detail. Run this module after a change to the queue, the workers or the
supervisor. It prints the version of the machine's control groups, because the sandbox kills programs in another way if
there are none.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

import pytest
import redis
from support.judge.judge_faults import done_by, parts, run_during, run_through, status_when
from support.process_table import parents_first, running
from support.small_disk import small_disk
from support.waiting import wait_until

from rstar2.judge.queue import tasks
from rstar2.judge.service.settings import JudgeHandle, ServiceSettings
from rstar2.judge.service.start import start_service, stop_service

pytestmark = pytest.mark.long

PROGRAMS, CONCURRENCY = 2000, 200
FROZEN_S = 7.0
"""Longer than `liveness.DEAD_AFTER_S`. A worker whose heartbeat does not change for that long counts as dead."""


@pytest.fixture(scope="module", params=["strict", "landlock"])
def judge(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeHandle]:
    folder = tmp_path_factory.mktemp(f"judge-{request.param}")
    settings = ServiceSettings(folder=str(folder), isolation=request.param, preload=False)
    process, handle = start_service(settings)
    version = "2" if Path("/sys/fs/cgroup/cgroup.controllers").exists() else "1"
    print(f"isolation {handle.isolation}, control groups version {version}")
    yield handle
    stop_service(process)


def workers(judge: JudgeHandle) -> list[int]:
    return parts(judge, "rstar2.judge.worker.main")


def zygotes(judge: JudgeHandle) -> list[int]:
    """Returns all processes that the workers have started. Each zygote comes before its programs (`kill_jails`)."""
    return [pid for worker in workers(judge) for pid in parents_first(worker)]


def server(judge: JudgeHandle) -> list[int]:
    return parts(judge, "rstar2.judge.server.app")


def queue(judge: JudgeHandle) -> list[int]:
    return parts(judge, "valkey-server") or parts(judge, "redis-server")


def everything(judge: JudgeHandle) -> list[int]:
    return [*workers(judge), *zygotes(judge), *server(judge), *queue(judge)]


def first_worker(judge: JudgeHandle) -> list[int]:
    return workers(judge)[:1]


def send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def all_gone(pids: Iterable[int]) -> bool:
    return not running(pids)


def returned_have_run(judge: JudgeHandle) -> bool:
    """Returns whether all programs of dead workers have been run again. Returns False if the queue does not answer."""
    with contextlib.suppress(redis.RedisError), redis.Redis.from_url(judge.redis_url) as client:
        unfinished = {entry for entry, _ in client.xrange(tasks.TASKS)}
        return unfinished.isdisjoint(client.hkeys(tasks.TRIES))
    return False


def wait_for_both_workers(judge: JudgeHandle) -> None:
    status_when(judge, lambda state: state["num_workers"] == 2 == len(state["workers"]))


def killed(which: Callable[[JudgeHandle], list[int]], times: int = 1) -> Callable[[JudgeHandle], None]:
    def fault(judge: JudgeHandle) -> None:
        for _ in range(times):
            wait_until(lambda: which(judge))
            victims = which(judge)
            send(signal.SIGKILL, victims)
            wait_until(partial(all_gone, victims))
            wait_for_both_workers(judge)
            status_when(judge, lambda state: min(done_by(state)) > 0)
            # The judge gives up a program if three workers died while they had it.
            wait_until(partial(returned_have_run, judge))

    return fault


def frozen(which: Callable[[JudgeHandle], list[int]]) -> Callable[[JudgeHandle], None]:
    def fault(judge: JudgeHandle) -> None:
        pids = which(judge)
        send(signal.SIGSTOP, pids)
        try:
            time.sleep(FROZEN_S)
        finally:
            send(signal.SIGCONT, pids)

    return fault


def in_queue(act: Callable[[redis.Redis], object]) -> Callable[[JudgeHandle], None]:
    def fault(judge: JudgeHandle) -> None:
        with redis.Redis.from_url(judge.redis_url) as client:
            act(client)

    return fault


FAULTS: dict[str, Callable[[JudgeHandle], None]] = {
    "a worker is killed": killed(first_worker),
    "both workers are killed": killed(workers),
    "the zygotes are killed": killed(zygotes),
    "the server is killed": killed(server),
    "the queue is killed": killed(queue),
    "all are killed at once": killed(everything),
    "a worker is killed ten times": killed(first_worker, times=10),
    "the queue is killed three times": killed(queue, times=3),
    "a worker is frozen": frozen(first_worker),
    "both workers are frozen": frozen(workers),
    "the zygotes are frozen": frozen(zygotes),
    "the server is frozen": frozen(server),
    "the queue is frozen": frozen(queue),
    "all are frozen": frozen(everything),
    "the queue is paused": in_queue(lambda client: client.client_pause(int(FROZEN_S * 1000))),
    "the queue's clients are killed": in_queue(lambda client: client.client_kill_filter(_type="normal")),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_programs_survive(judge: JudgeHandle, kind: str) -> None:
    wait_for_both_workers(judge)
    assert run_through(judge, lambda: FAULTS[kind](judge), PROGRAMS, CONCURRENCY) >= PROGRAMS


def test_programs_survive_that_the_queue_is_flushed(judge: JudgeHandle) -> None:
    # The flush also clears the judge's counts, so the test can only check the answers.
    wait_for_both_workers(judge)
    results = run_during(
        judge, lambda: in_queue(lambda client: client.flushall())(judge), PROGRAMS, CONCURRENCY
    )
    assert len(results) >= PROGRAMS


def test_programs_survive_that_the_supervisor_is_killed_and_started_again(tmp_path: Path) -> None:
    settings = ServiceSettings(folder=str(tmp_path / "first"), preload=False)
    process, handle = start_service(settings)
    restarted: list[subprocess.Popen[bytes]] = []

    def fault() -> None:
        send(signal.SIGKILL, [process.pid])
        process.wait()
        port = int(handle.url.rpartition(":")[2])
        restarted.append(start_service(settings.model_copy(update={"port": port}))[0])

    try:
        assert len(run_during(handle, fault, PROGRAMS, CONCURRENCY)) >= PROGRAMS
    finally:
        for restarted_process in restarted:
            stop_service(restarted_process)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MiB."""
    with small_disk(tmp_path / "disk", 64 << 20) as folder:
        yield folder


def test_programs_survive_that_the_disk_of_the_queue_is_full_for_ten_seconds(disk: Path) -> None:
    process, handle = start_service(ServiceSettings(folder=str(disk / "judge"), preload=False))
    ballast = disk / "ballast"

    def fault() -> None:
        with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 12))
        time.sleep(10)
        ballast.unlink()

    try:
        assert run_through(handle, fault, PROGRAMS, CONCURRENCY) >= PROGRAMS
    finally:
        stop_service(process)
