"""Tests the judge under many concurrent programs: each must be answered correctly, exactly once, and at a steady rate.

    python benchmarks/judge_scale.py                    # 1,000, then 30,000, then 1,000 programs on 512 connections
    python benchmarks/judge_scale.py --programs 3000

One program in 300 is an endless loop with a time limit of one second. Every program is a separate request.

For each of the three loads, prints the programs per second, the number of wrong answers, and the memory of each process
over time. Then prints the rate of the large load divided by the mean rate of the two small ones. At 200 programs a
second the large load takes two and a half minutes. The exit code is 1 if any answer was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rstar2.judge.client import SyncJudgeClient
from rstar2.judge.schema import RunRequest
from rstar2.judge.service.settings import JudgeHandle
from rstar2.judge.service.start import running_judge

LOOP_EVERY = 300


@dataclass
class Outcome:
    """The result of one load."""

    programs: int
    seconds: float
    wrong: list[str] = field(default_factory=list)
    """Descriptions of the wrong answers."""
    resident_mb: dict[str, list[float]] = field(default_factory=dict)
    """Resident memory of each process in MiB, sampled once a second. The keys are those of `processes_of`."""

    @property
    def rate(self) -> float:
        return self.programs / self.seconds


class Connection:
    """A persistent HTTP/1.1 connection. A full HTTP client would cost more CPU time than what is measured."""

    def __init__(self, url: str) -> None:
        self.address = urlsplit(url)
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def open(self) -> None:
        assert self.address.hostname is not None
        self.reader, self.writer = await asyncio.open_connection(self.address.hostname, self.address.port)

    async def post(self, path: str, body: bytes) -> Any:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        lines = (await self.reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
        length = next(
            int(line.split(b":")[1]) for line in lines if line.lower().startswith(b"content-length")
        )
        answer = json.loads(await self.reader.readexactly(length))
        if b" 200 " not in lines[0]:
            raise RuntimeError(f"the judge answered {lines[0].decode()!r}: {answer}")
        return answer


def is_loop(number: int) -> bool:
    return number % LOOP_EVERY == LOOP_EVERY // 2


async def load(url: str, programs: int, connections: int) -> Outcome:
    """Send all programs over `connections` connections, and check every answer."""
    numbers = iter(range(programs))
    seen: set[str] = set()
    outcome = Outcome(programs, 0.0)

    def check(number: int, result: dict[str, Any]) -> None:
        expected = ("timeout", "") if is_loop(number) else ("ok", f"{number}\n")
        if (result["outcome"], result["stdout"]) != expected or result["id"] in seen:
            outcome.wrong.append(f"{number}: {result}")
        seen.add(result["id"])

    async def work() -> None:
        connection = Connection(url)
        await connection.open()
        for number in numbers:
            code, limit = ("while True: pass", 1.0) if is_loop(number) else (f"print({number})", 30.0)
            body = json.dumps({"code": code, "timeout_s": limit}).encode()
            check(number, await connection.post("/v1/runs", body))
        connection.writer.close()

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(connections):
            group.create_task(work())
    outcome.seconds = time.perf_counter() - started
    if len(seen) != programs:
        outcome.wrong.append(f"{len(seen)} different answers for {programs} programs")
    return outcome


def processes_of(judge: JudgeHandle) -> dict[str, int]:
    """Return a dict from short names to the process ids of a judge."""
    processes = {"supervisor": judge.pid}
    for pid in Path(f"/proc/{judge.pid}/task/{judge.pid}/children").read_text().split():
        command = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        name = next(
            (word.rpartition(".")[2] for word in command if word.startswith("rstar2.judge.")), "redis"
        )
        processes[f"{name} {pid}"] = int(pid)
    return processes


def resident_mb(pid: int) -> float:
    """Return the resident memory of a process in MiB, 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / (1 << 20)
    except OSError:
        return 0.0


async def watched(judge: JudgeHandle, programs: int, connections: int) -> Outcome:
    """Run one load, and sample the memory of the judge's processes while it runs."""
    pids = processes_of(judge)
    samples: dict[str, list[float]] = {name: [] for name in pids}

    async def watch() -> None:
        while True:
            for name, pid in pids.items():
                samples[name].append(resident_mb(pid))
            await asyncio.sleep(1.0)

    watcher = asyncio.create_task(watch())
    try:
        outcome = await load(judge.url, programs, connections)
    finally:
        watcher.cancel()
    outcome.resident_mb = samples
    return outcome


def show(outcome: Outcome) -> None:
    print(
        f"{outcome.programs} programs in {outcome.seconds:.1f} s: {outcome.rate:.0f} a second, "
        f"{len(outcome.wrong)} wrong {outcome.wrong[:3]}"
    )
    for name, values in outcome.resident_mb.items():
        thirds = [values[0], *(max(values[len(values) * i // 3 :][: len(values) // 3 + 1]) for i in range(3))]
        print(
            f"  {name}: MiB at the start, then the peak of each third: "
            + " ".join(f"{v:.0f}" for v in thirds)
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--programs", type=int, default=30_000)
    parser.add_argument("--connections", type=int, default=512)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running_judge(Path(folder), options.workers) as judge:
        # Zygotes that import much take a while to start, and their CPU time would slow the first load.
        with SyncJudgeClient(judge.url) as client:
            client.run_many([RunRequest(code="import pandas", timeout_s=60)] * 8 * options.workers)
        asyncio.run(load(judge.url, 300, 8))
        small = asyncio.run(watched(judge, 1_000, options.connections))
        show(small)
        large = asyncio.run(watched(judge, options.programs, options.connections))
        show(large)
        again = asyncio.run(watched(judge, 1_000, options.connections))
        show(again)
        print(
            f"rate of the large load / mean rate of the small ones: {2 * large.rate / (small.rate + again.rate):.2f}"
        )
    sys.exit(bool(small.wrong or large.wrong or again.wrong))


if __name__ == "__main__":
    main()
