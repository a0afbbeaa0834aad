"""Injecting faults into a judge under load, and counting what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from rstar2.judge.client import SyncJudgeClient
from rstar2.judge.schema import RunRequest
from rstar2.judge.service.start import JudgeHandle

RECOVERY_S = 5.0
"""On a machine that has nothing else to do."""
PROGRAM = "import time; time.sleep(0.02); print({})"


def recovery_bound() -> float:
    """RECOVERY_S, longer by as much as the machine is slowed down by others at present."""
    wall, cpu = time.monotonic(), time.process_time()
    while time.process_time() - cpu < 0.2:
        pass
    return RECOVERY_S * max(1.0, (time.monotonic() - wall) / 0.2)


def descendants(pid: int) -> list[int]:
    """All processes that came from one, nearest first."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(child) for child in task.read_text().split()]
        except OSError:
            continue
        for child in children:
            found += [child, *descendants(child)]
    return found


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def parts(judge: JudgeHandle, name: str) -> list[int]:
    """The processes of one judge whose command line holds `name`."""
    return [pid for pid in descendants(judge.pid) if name in command(pid)]


def alive(pids: list[int]) -> list[int]:
    left = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if state != "Z":
            left.append(pid)
    return left


def wait_gone(pids: list[int], seconds: float) -> list[int]:
    """The processes that are still there after so long."""
    deadline = time.monotonic() + seconds
    while (left := alive(pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def status(judge: JudgeHandle) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{judge.url}/status", timeout=10.0, trust_env=False).json()
    return found


def status_when(
    judge: JudgeHandle, condition: Callable[[dict[str, Any]], bool], within_s: float = 20.0
) -> dict[str, Any]:
    """What the judge says of itself once this is true of it."""
    deadline = time.monotonic() + within_s
    while not condition(found := status(judge)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def done_by(found: dict[str, Any]) -> list[int]:
    """How many programs each worker of a status has done; they say it twice a second."""
    return [worker["done"] for worker in found["workers"]]


def unfinished(found: dict[str, Any]) -> int:
    """How many programs of a status wait or run."""
    return int(found["queue"] + found["running"])


def run_through(judge: JudgeHandle, count: int, fault: Callable[[], None]) -> float:
    """Run `count` programs, do `fault` while they run, and see that each is answered once and rightly.

    → seconds from the end of the fault until a program sent after it was answered.
    """
    requests = [RunRequest(code=PROGRAM.format(i)) for i in range(count)]
    with SyncJudgeClient(judge.url, patience_s=60) as client, ThreadPoolExecutor(1) as pool:
        load = pool.submit(client.run_many, requests)
        time.sleep(0.3)
        assert not load.done()
        # In this thread: a server started by another would end with it.
        fault()
        ended = time.monotonic()
        with SyncJudgeClient(judge.url) as other:
            assert other.run(RunRequest(code="print('after')")).stdout == "after\n"
        took = time.monotonic() - ended
        results = load.result(90)
    assert [result.outcome for result in results] == ["ok"] * count
    assert [result.stdout for result in results] == [f"{i}\n" for i in range(count)]
    assert len({result.id for result in results}) == count
    found = status(judge)
    assert found["outcomes"] == {"ok": count + 1}
    assert (found["queue"], found["running"]) == (0, 0)
    return took
