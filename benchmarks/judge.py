"""How fast the judge is, beside what one would use instead, on this machine and in one sitting.

    python benchmarks/judge.py                         # bare interpreters, the sandbox alone, the whole judge
    python benchmarks/judge.py --codejudge http://host:8000  # and any server that speaks code-judge's protocol
    python benchmarks/judge.py --against ../other      # only this judge and that of another checkout, with ratios

Every round runs all contestants one after another on each program; the figures are medians over the rounds,
so that a machine whose speed changes is unfair to none. Rates are programs a second with `--workers` at work.
Then, with the judge alone: latencies of single requests at half, a quarter and a tenth of the batched rate that
was seen just before, each round with other arrivals, and how late an endless loop is ended. A shared machine stops
programs for moments of its own; how long, with nothing to do, is told with the latencies, which hold no less.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import httpx
from support.judge_against import Run, compare
from support.judge_load import latencies

from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import Isolation, RunRequest
from rstar2.judge.service.start import running_judge

PROGRAMS = {
    "trivial": "print(6 * 7)",
    "numpy": "import numpy as np\nprint(np.arange(100).reshape(10, 10).trace())",
    "sympy": "import sympy as sp\nx = sp.symbols('x')\nprint(sp.solve(x**3 - 6*x**2 + 11*x - 6, x))",
}
SHOULD = {"trivial": "42\n", "numpy": "495\n", "sympy": "[1, 2, 3]\n"}
BATCH = 64
IN_FLIGHT = 4
HEAVIEST = "import time, pandas\ntime.sleep(0.5)"
"""Waits for the zygote that takes longest to get warm, and keeps a worker from doing it for another."""
PROFILING_S = 4.0


class Wrong(Exception):
    """A program gave something else than it should: the rate would mean nothing."""


def check(kind: str, stdout: str) -> None:
    if stdout != SHOULD[kind]:
        raise Wrong(f"{kind}: {stdout!r} instead of {SHOULD[kind]!r}")


def bare(workers: int) -> Run:
    """A fresh interpreter for each program: no isolation, no queue."""

    def once(kind: str) -> None:
        command = [sys.executable, "-I", "-c", PROGRAMS[kind]]
        environment = {"PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1"}
        check(
            kind, subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        )

    def run(kind: str, count: int) -> float:
        with ThreadPoolExecutor(workers) as pool:
            started = time.perf_counter()
            list(pool.map(once, [kind] * count))
            return count / (time.perf_counter() - started)

    return run


def _sandbox_process(pipe: Connection, root: str, tier: Isolation | None) -> None:
    sandbox = Sandbox(Path(root), tier, minimum=tier or "landlock")
    sandbox.start()
    sandbox.start_zygotes()
    sandbox.run(RunRequest(code=HEAVIEST, timeout_s=60), "0")
    while sandbox.profile_next_zygote():
        pass
    pipe.send("warm")
    while (order := pipe.recv()) is not None:
        kind, count = order
        for _ in range(count):
            check(kind, sandbox.run(RunRequest(code=PROGRAMS[kind]), "0").stdout)
        pipe.send("done")
    sandbox.close()


@contextmanager
def sandboxes(workers: int, folder: Path, tier: Isolation | None) -> Iterator[Run]:
    """The sandbox without HTTP and Redis, one a process."""
    context = multiprocessing.get_context("spawn")
    pipes, processes = [], []
    for number in range(workers):
        ours, theirs = context.Pipe()
        process = context.Process(target=_sandbox_process, args=(theirs, str(folder / str(number)), tier))
        process.start()
        pipes.append(ours)
        processes.append(process)
    for pipe in pipes:
        pipe.recv()

    def run(kind: str, count: int) -> float:
        each = count // workers
        started = time.perf_counter()
        for pipe in pipes:
            pipe.send((kind, each))
        for pipe in pipes:
            pipe.recv()
        return each * workers / (time.perf_counter() - started)

    try:
        yield run
    finally:
        for pipe in pipes:
            pipe.send(None)
        for process in processes:
            process.join(20)


def over_http(
    url: str, path: str, make_body: Callable[[str, int], Any], stdout_of: Callable[[Any], str]
) -> Run:
    """Batches of BATCH, IN_FLIGHT at a time."""

    def run(kind: str, count: int) -> float:
        sizes = [BATCH] * (count // BATCH) + ([count % BATCH] if count % BATCH else [])
        with (
            httpx.Client(base_url=url, timeout=600.0, trust_env=False) as client,
            ThreadPoolExecutor(IN_FLIGHT) as pool,
        ):
            bodies = [json.dumps(make_body(kind, size)) for size in sizes]
            started = time.perf_counter()
            for answer in pool.map(lambda body: client.post(path, content=body, headers=JSON), bodies):
                for result in answer.raise_for_status().json()["results"]:
                    check(kind, stdout_of(result))
            return count / (time.perf_counter() - started)

    return run


JSON = {"Content-Type": "application/json"}


def judge(url: str) -> Run:
    """The whole judge through its native batches."""
    return over_http(
        url,
        "/v1/runs/batch",
        lambda kind, size: {"runs": [{"code": PROGRAMS[kind]}] * size},
        lambda result: str(result["stdout"]),
    )


def warm_up(url: str, workers: int) -> None:
    """Wait until every worker's zygotes are warm, which takes processor time from all, and have been profiled."""
    body = {"runs": [{"code": HEAVIEST, "timeout_s": 60}] * workers}
    httpx.post(f"{url}/v1/runs/batch", json=body, timeout=600.0, trust_env=False).raise_for_status()
    # Zygotes are profiled one at a time, each in a moment without work.
    time.sleep(PROFILING_S)


def codejudge(url: str) -> Run:
    """A server that speaks code-judge's protocol, through its long batches."""
    item = {"type": "python", "input": ""}
    return over_http(
        url,
        "/run/long-batch",
        lambda kind, size: {"type": "batch", "submissions": [{**item, "solution": PROGRAMS[kind]}] * size},
        lambda result: str(result["stdout"]),
    )


def how_many(run: Run, kind: str, seconds: float, workers: int) -> int:
    """As many programs as fill about `seconds`, a multiple of the workers."""
    rate = run(kind, 8 * workers)
    rate = run(kind, max(workers, int(rate * seconds / 4) // workers * workers))
    return max(workers, int(rate * seconds) // workers * workers)


def rounds(
    contestants: dict[str, Run], count: int, seconds: float, workers: int
) -> dict[str, dict[str, float]]:
    """Median rates, by contestant and program."""
    sizes = {(n, k): how_many(run, k, seconds, workers) for n, run in contestants.items() for k in PROGRAMS}
    rates: dict[tuple[str, str], list[float]] = {key: [] for key in sizes}
    for number in range(count):
        for kind in PROGRAMS:
            for name, run in contestants.items():
                rates[name, kind].append(run(kind, sizes[name, kind]))
        print(f"round {number + 1} of {count} done", file=sys.stderr)
    return {n: {k: statistics.median(rates[n, k]) for k in PROGRAMS} for n in contestants}


def warm_judge(url: str) -> Run:
    """The judge of one worker at a URL, once it is warm."""
    warm_up(url, workers=1)
    return judge(url)


CpuTimes = dict[int, tuple[int, int]]
"""CPU → (idle time, total time), in ticks since the machine started."""


def cpu_times() -> CpuTimes:
    """The kernel's counters. Source: proc_stat(5)."""
    times = {}
    with open("/proc/stat") as stat:
        for line in stat:
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = [int(field) for field in fields[:8]]
                times[int(name[3:])] = (ticks[3] + ticks[4], sum(ticks))
    return times


def busy_share(before: CpuTimes, now: CpuTimes) -> float:
    """How much of the time between two looks the processors were at work."""
    idle, whole = (sum(now[place][n] - before[place][n] for place in now) for n in (0, 1))
    return 1 - idle / whole


def overruns(url: str, count: int) -> list[float]:
    """How many seconds after its limit each endless loop was answered."""
    late = []
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as client:
        for code in ["while True: pass", "sum(iter(int, 1))"] * (count // 2):
            started = time.perf_counter()
            result = client.post("/v1/runs", json={"code": code, "timeout_s": 0.5}).json()
            late.append(time.perf_counter() - started - 0.5)
            if result["outcome"] != "timeout":
                raise Wrong(f"an endless loop came out as {result['outcome']}")
    return sorted(late)


LOADS = {"half": 0.5, "a quarter": 0.25, "a tenth": 0.1}
"""Shares of the batched rate at which latencies are measured."""
LATENCY_S = 6.0
PAUSE_S = 0.001
"""A program that only looks at the clock and does not get to it for so long was stopped."""
CHECK_EVERY_S = 1.0


def pauses(processor: int) -> list[float]:
    """Seconds of each pause that the machine makes on one processor within CHECK_EVERY_S."""
    os.sched_setaffinity(0, {processor})
    found = []
    last = time.perf_counter()
    end = last + CHECK_EVERY_S
    while last < end:
        now = time.perf_counter()
        if now - last > PAUSE_S:
            found.append(now - last)
        last = now
    return found


def machine_pauses() -> tuple[float, float]:
    """(the percentage of the time that this machine stops programs, its longest pause in milliseconds)."""
    processors = sorted(os.sched_getaffinity(0))
    with multiprocessing.get_context("fork").Pool(len(processors)) as pool:
        found = [pause for each in pool.map(pauses, processors, chunksize=1) for pause in each]
    return 100 * sum(found) / (len(processors) * CHECK_EVERY_S), 1000 * max(found, default=0.0)


def latency_rounds(url: str, batched: Callable[[], float], count: int) -> dict[str, dict[str, list[float]]]:
    """By load, of each round: requests a second, p50 and p99 in milliseconds, the percentage of the time the
    processors were busy; and of the machine alone the percentage of the time it stops programs and the longest
    pause in milliseconds."""
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(count):
        stopped, longest = machine_pauses()
        found["machine"]["stopped"].append(stopped)
        found["machine"]["longest"].append(longest)
        whole = batched()
        for load, share in LOADS.items():
            before = cpu_times()
            took = asyncio.run(latencies(url, whole * share, LATENCY_S, seed=number))
            found[load]["rate"].append(whole * share)
            found[load]["p50"].append(1000 * took[len(took) // 2])
            found[load]["p99"].append(1000 * took[len(took) * 99 // 100])
            found[load]["busy"].append(100 * busy_share(before, cpu_times()))
        print(f"latencies, round {number + 1} of {count} done", file=sys.stderr)
    return found


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def report(
    rates: dict[str, dict[str, float]],
    waits: dict[str, dict[str, list[float]]],
    late: list[float],
) -> dict[str, Any]:
    """Prints the table. → the same as values."""
    print(f"{'programs a second':22}" + "".join(f"{kind:>10}" for kind in PROGRAMS))
    for name, found in rates.items():
        print(f"{name:22}" + "".join(f"{found[kind]:10.0f}" for kind in PROGRAMS))
    for name in rates:
        if name != "bare":
            ratios = {kind: rates[name][kind] / rates["bare"][kind] for kind in PROGRAMS}
            print(f"{name + ' / bare':22}" + "".join(f"{ratios[kind]:9.1f}x" for kind in PROGRAMS))
    share = {kind: rates["judge"][kind] / rates["sandbox"][kind] for kind in PROGRAMS}
    print(f"{'judge / sandbox':22}" + "".join(f"{100 * share[kind]:9.0f}%" for kind in PROGRAMS))
    for load in LOADS:
        p50, p99, rate, busy = (waits[load][name] for name in ("p50", "p99", "rate", "busy"))
        print(
            f"at {load} load, trivial: p50 {spread(p50)} ms, p99 {spread(p99)} ms; "
            f"{statistics.median(rate):.0f} a second, cores {statistics.median(busy):.0f}% busy"
        )
    print(
        f"the machine by itself stops programs {spread(waits['machine']['stopped'])}% of the time, "
        f"for at most {spread(waits['machine']['longest'])} ms"
    )
    print(
        f"endless loops answered after their limit: median {1000 * statistics.median(late):.0f} ms, "
        f"latest {1000 * late[-1]:.0f} ms"
    )
    return {
        "rates": rates,
        "share": share,
        "latency": waits,
        "late_ms": 1000 * late[-1],
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """This checkout's judge beside its parts."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        handle = stack.enter_context(
            running_judge(folder / "judge", workers=options.workers, isolation=options.isolation)
        )
        warm_up(handle.url, options.workers)
        alone = stack.enter_context(sandboxes(options.workers, folder / "sandbox", options.isolation))
        contestants = {"bare": bare(options.workers), "sandbox": alone, "judge": judge(handle.url)}
        if options.codejudge:
            contestants["code-judge"] = codejudge(options.codejudge)
        print(f"isolation {handle.isolation}, {options.workers} workers, {os.cpu_count()} cores")
        rates = rounds(contestants, options.rounds, options.seconds, options.workers)
        batch = max(BATCH, int(rates["judge"]["trivial"] * options.seconds))
        waits = latency_rounds(handle.url, lambda: contestants["judge"]("trivial", batch), options.rounds)
        return report(rates, waits, overruns(handle.url, 10))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, help="2 where nothing is given; always 1 with --against")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds",
        type=float,
        help="of each contestant on each program a round, 1.5 where nothing is given; with --against a turn, 0.4",
    )
    parser.add_argument("--isolation", choices=["strict", "landlock"], default="strict")
    parser.add_argument("--codejudge", metavar="URL", help="a server that speaks code-judge's protocol")
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help="compare with the judge of another checkout"
    )
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    if options.against:
        if options.workers is not None:
            parser.error("--workers has no use with --against: each judge has one worker")
        seconds = options.seconds or 0.4
        found = compare(options.against, PROGRAMS, options.rounds, options.isolation, seconds, warm_judge)
    else:
        options.workers, options.seconds = options.workers or 2, options.seconds or 1.5
        found = measure(options)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
