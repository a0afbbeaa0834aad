"""Injecting faults into a judge under load, and counting what comes of it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from support.process_table import descendants, running
from support.waiting import TIMEOUT_S

from rstar2.judge.client import SyncJudgeClient
from rstar2.judge.schema import RunRequest, RunResult
from rstar2.judge.service.start import JudgeHandle

AT_ONCE = 40
PROGRAM = "import time; time.sleep(0.02); print({})"
RECOVERS_S = TIMEOUT_S
"""Generous: how fast a judge recovers is for benchmarks, here it only has to."""


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def parts(judge: JudgeHandle, name: str) -> list[int]:
    """The processes of one judge whose command line holds `name`."""
    found = [pid for pid in descendants(judge.pid) if name in command(pid)]
    # What one of them has forked bears its name until it becomes another program.
    forked = {child for pid in found for child in descendants(pid)}
    return [pid for pid in found if pid not in forked]


def wait_gone(pids: Iterable[int], seconds: float) -> list[int]:
    """The processes that are still there after so long."""
    deadline = time.monotonic() + seconds
    while (left := running(pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def status(judge: JudgeHandle) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {judge.token}"} if judge.token else {}
    # Loading CA certificates would be most of the work, many times a second.
    options: dict[str, Any] = {"timeout": TIMEOUT_S, "trust_env": False, "verify": False}
    answer = httpx.get(f"{judge.url}/status", headers=headers, **options)
    found: dict[str, Any] = answer.raise_for_status().json()
    return found


def status_when(
    judge: JudgeHandle, condition: Callable[[dict[str, Any]], bool], within_s: float = RECOVERS_S
) -> dict[str, Any]:
    """What the judge says of itself once this is true of it; it may be away for a while."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            found = status(judge)
        except httpx.HTTPError:
            assert time.monotonic() < deadline, "it does not answer"
        else:
            if condition(found):
                return found
            assert time.monotonic() < deadline, found
        time.sleep(0.05)


def done_by(found: dict[str, Any]) -> list[int]:
    """How many programs each worker of a status has done; they say it twice a second."""
    return [worker["done"] for worker in found["workers"]]


def unfinished(found: dict[str, Any]) -> int:
    """How many programs of a status wait or run."""
    return int(found["queue"] + found["running"])


def wait_heartbeats(judge: JudgeHandle, count: int = 2) -> dict[str, Any]:
    """Wait until every worker has sent so many more heartbeats. → what the judge says of itself then."""
    before = {worker["name"]: worker["beat"] for worker in status(judge)["workers"]}
    return status_when(
        judge,
        lambda found: all(
            worker["beat"] >= before.get(worker["name"], 0) + count for worker in found["workers"]
        ),
    )


def run_during(
    judge: JudgeHandle, fault: Callable[[], None], programs: int = 0, at_once: int = AT_ONCE
) -> list[RunResult]:
    """Run programs while a fault happens and after it, and check that each answer is right.

    Args:
        judge: to run them.
        fault: called while programs run.
        programs: the smallest number of programs to run.
        at_once: how many programs are sent together.

    Returns:
        The results, in the order of the programs.
    """
    over = threading.Event()

    def load() -> list[RunResult]:
        results: list[RunResult] = []
        while True:
            is_last = over.is_set() and len(results) + at_once >= programs
            numbers = range(len(results), len(results) + at_once)
            codes = [PROGRAM.format(number) for number in numbers]
            # Their limit counts on while a worker is frozen.
            results += client.run_many([RunRequest(code=code, timeout_s=TIMEOUT_S) for code in codes])
            if is_last:
                return results

    with SyncJudgeClient(judge.url, wait_s=RECOVERS_S) as client, ThreadPoolExecutor(1) as pool:
        running = pool.submit(load)
        status_when(judge, lambda found: unfinished(found) > 0)
        # In this thread: a server started by another would end with it.
        try:
            fault()
        finally:
            over.set()
        results = running.result(3 * RECOVERS_S)
    assert {result.outcome for result in results} == {"ok"}
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(len(results))]
    assert len({result.id for result in results}) == len(results)
    return results


def run_through(
    judge: JudgeHandle, fault: Callable[[], None], programs: int = 0, at_once: int = AT_ONCE
) -> int:
    """Do what `run_during` does, and check that the judge counted each program once.

    Returns:
        The number of programs.
    """
    outcomes = Counter(status_when(judge, lambda found: not unfinished(found))["outcomes"])
    results = run_during(judge, fault, programs, at_once)
    found = status_when(judge, lambda found: not unfinished(found))
    assert Counter(found["outcomes"]) - outcomes == {"ok": len(results)}
    return len(results)
