"""Injects faults into a judge under load, and checks the results."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from support.process_table import descendants, parents_first, running
from support.waiting import TIMEOUT_S

from rstar2.judge.client import SyncJudgeClient
from rstar2.judge.schema import RunRequest, RunResult
from rstar2.judge.service.start import JudgeHandle

AT_ONCE = 40
PROGRAM = "import time; time.sleep(0.02); print({})"
RECOVERS_S = TIMEOUT_S
"""Time limit for a judge to recover. It is long, because benchmarks measure the speed of recovery."""


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def parts(judge: JudgeHandle, name: str) -> list[int]:
    """Return the processes of a judge whose command line contains `name`."""
    named = [pid for pid in descendants(judge.pid) if name in command(pid)]
    # A forked child has the name of its parent until it executes another program.
    forked = {child for pid in named for child in descendants(pid)}
    return [pid for pid in named if pid not in forked]


def kill_jails(workers: Iterable[int]) -> None:
    """Kill all processes that the workers have started: zygotes, their helpers and programs.

    Each zygote is killed before its programs. Otherwise the zygote would report that its program was killed by a
    signal. The judge would accept this as the result, because a program that kills itself has the same result.
    """
    for pid in [pid for worker in workers for pid in parents_first(worker)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_gone(pids: Iterable[int], seconds: float) -> list[int]:
    """Wait until the processes have ended. Returns those that still run after `seconds`."""
    deadline = time.monotonic() + seconds
    while (left := running(pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def status(judge: JudgeHandle) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {judge.token}"} if judge.token else {}
    # No CA certificates: loading them many times a second would take most of the time.
    options: dict[str, Any] = {"timeout": TIMEOUT_S, "trust_env": False, "verify": False}
    answer = httpx.get(f"{judge.url}/status", headers=headers, **options)
    status_now: dict[str, Any] = answer.raise_for_status().json()
    return status_now


def status_when(
    judge: JudgeHandle, condition: Callable[[dict[str, Any]], bool], within_s: float = RECOVERS_S
) -> dict[str, Any]:
    """Wait until the judge's status meets a condition, and return the status. The judge may be down for a while."""
    deadline = time.monotonic() + within_s
    while True:
        try:
            status_now = status(judge)
        except httpx.HTTPError:
            assert time.monotonic() < deadline, "it does not answer"
        else:
            if condition(status_now):
                return status_now
            assert time.monotonic() < deadline, status_now
        time.sleep(0.05)


def done_by(status_now: dict[str, Any]) -> list[int]:
    """Return how many programs each worker in a status has run. Workers report it twice a second."""
    return [worker["done"] for worker in status_now["workers"]]


def unfinished(status_now: dict[str, Any]) -> int:
    """Return the number of waiting and running programs, from a status."""
    return int(status_now["queue"] + status_now["running"])


def wait_heartbeats(judge: JudgeHandle, count: int = 2) -> dict[str, Any]:
    """Wait until every worker has sent `count` more heartbeats. Returns the judge's status."""
    before = {worker["name"]: worker["beat"] for worker in status(judge)["workers"]}
    return status_when(
        judge,
        lambda status_now: all(
            worker["beat"] >= before.get(worker["name"], 0) + count for worker in status_now["workers"]
        ),
    )


def run_during(
    judge: JudgeHandle, fault: Callable[[], None], programs: int = 0, at_once: int = AT_ONCE
) -> list[RunResult]:
    """Run programs while a fault happens and after it, and check that each answer is right.

    Args:
        judge: to run them.
        fault: Called while programs run.
        programs: the smallest number of programs to run.
        at_once: the number of programs per batch.

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
            # The time limit of programs runs on while a worker is frozen.
            results += client.run_many([RunRequest(code=code, timeout_s=TIMEOUT_S) for code in codes])
            if is_last:
                return results

    with SyncJudgeClient(judge.url, wait_s=RECOVERS_S) as client, ThreadPoolExecutor(1) as pool:
        running = pool.submit(load)
        status_when(judge, lambda status_now: unfinished(status_now) > 0)
        # The fault happens in this thread, because a server that another thread started would end with that thread.
        try:
            fault()
        finally:
            over.set()
        results = running.result(3 * RECOVERS_S)
    failed = [result for result in results if result.outcome != "ok"]
    # pytest does not explain the assertions of this module.
    assert not failed, f"{Counter(result.outcome for result in results)}, for example {failed[0]!r}"
    wrong = [(number, result) for number, result in enumerate(results) if result.stdout != f"{number}\n"]
    assert not wrong, f"{len(wrong)} of {len(results)} outputs are wrong, for example {wrong[0]!r}"
    ids = Counter(result.id for result in results)
    assert len(ids) == len(results), f"ids of more than one result: {ids - Counter(set(ids))}"
    return results


def run_through(
    judge: JudgeHandle, fault: Callable[[], None], programs: int = 0, at_once: int = AT_ONCE
) -> int:
    """Do what `run_during` does, and check that the judge counted each program once.

    Returns:
        The number of programs.
    """
    outcomes = Counter(status_when(judge, lambda status_now: not unfinished(status_now))["outcomes"])
    results = run_during(judge, fault, programs, at_once)
    status_now = status_when(judge, lambda status_now: not unfinished(status_now))
    counted = Counter(status_now["outcomes"]) - outcomes
    assert counted == {"ok": len(results)}, f"{len(results)} programs were ok; the judge counted {counted}"
    return len(results)
