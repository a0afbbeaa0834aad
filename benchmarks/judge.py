"""Measures how fast the judge is, compared with plain interpreters, with the sandbox alone, and with other judges.

    python benchmarks/judge.py                         # plain interpreters, the sandbox alone, the whole judge
    python benchmarks/judge.py --codejudge http://host:8000  # the same, and a server with code-judge's protocol
    python benchmarks/judge.py --against ../other      # this judge and that of another checkout, with ratios

First it measures rates: each round runs every contestant on each program, one after another, with `--workers` workers.
It prints the median rate over the rounds in programs per second. The contestants alternate, so that changes in the
speed of the machine affect all of them equally.

Then it measures the judge alone:

- Latencies of single requests at half, a quarter and a tenth of the batched rate, which is measured anew in each
  round. Requests arrive at random times.
- The delay between the time limit of an endless loop and the answer.
- How often and how long the machine itself pauses programs, as a shared machine does. Latencies include such pauses.

The default of five rounds takes about four minutes.
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
EXPECTED = {"trivial": "42\n", "numpy": "495\n", "sympy": "[1, 2, 3]\n"}
BATCH = 64
IN_FLIGHT = 4
HEAVIEST = "import time, pandas\ntime.sleep(0.5)"
"""A program that waits for the slowest zygote to start. It sleeps so that each worker gets one of these programs."""
PROFILING_S = 4.0


class Wrong(Exception):
    """Raised if a program's output is wrong. Its rate would then be meaningless."""


def check(kind: str, stdout: str) -> None:
    if stdout != EXPECTED[kind]:
        raise Wrong(f"the program {kind!r} printed {stdout!r} instead of {EXPECTED[kind]!r}")


def bare(workers: int) -> Run:
    """Return a function that runs each program in a new interpreter, without isolation or a queue."""

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
    """Start sandboxes without HTTP and Redis, one per process. Yields a function that runs programs in them."""
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
    """Return a function that sends batches of BATCH programs, with IN_FLIGHT batches in flight."""

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
    """Return a function that runs programs on the judge at `url`, in its own batch format."""
    return over_http(
        url,
        "/v1/runs/batch",
        lambda kind, size: {"runs": [{"code": PROGRAMS[kind]}] * size},
        lambda result: str(result["stdout"]),
    )


def warm_up(url: str, workers: int) -> None:
    """Wait until the zygotes of every worker have started and have been profiled, both of which take CPU time."""
    body = {"runs": [{"code": HEAVIEST, "timeout_s": 60}] * workers}
    httpx.post(f"{url}/v1/runs/batch", json=body, timeout=600.0, trust_env=False).raise_for_status()
    # Zygotes are profiled one at a time, whenever a worker is idle.
    time.sleep(PROFILING_S)


def codejudge(url: str) -> Run:
    """Return a function that runs programs on a server with code-judge's protocol, in long batches."""
    item = {"type": "python", "input": ""}
    return over_http(
        url,
        "/run/long-batch",
        lambda kind, size: {"type": "batch", "submissions": [{**item, "solution": PROGRAMS[kind]}] * size},
        lambda result: str(result["stdout"]),
    )


def program_count(run: Run, kind: str, seconds: float, workers: int) -> int:
    """Return the number of programs that take about `seconds`, rounded to a multiple of the number of workers."""
    rate = run(kind, 8 * workers)
    rate = run(kind, max(workers, int(rate * seconds / 4) // workers * workers))
    return max(workers, int(rate * seconds) // workers * workers)


def rounds(
    contestants: dict[str, Run], count: int, seconds: float, workers: int
) -> dict[str, dict[str, float]]:
    """Return the median rates in programs per second, keyed by contestant and program."""
    sizes = {
        (n, k): program_count(run, k, seconds, workers) for n, run in contestants.items() for k in PROGRAMS
    }
    rates: dict[tuple[str, str], list[float]] = {key: [] for key in sizes}
    for number in range(count):
        for kind in PROGRAMS:
            for name, run in contestants.items():
                rates[name, kind].append(run(kind, sizes[name, kind]))
        print(f"round {number + 1} of {count} done", file=sys.stderr)
    return {n: {k: statistics.median(rates[n, k]) for k in PROGRAMS} for n in contestants}


def warm_judge(url: str) -> Run:
    """Wait until the judge at `url`, which has one worker, is warm. Returns a function that runs programs on it."""
    warm_up(url, workers=1)
    return judge(url)


CpuTimes = dict[int, tuple[int, int]]
"""Dict from CPU to (idle time, total time), in clock ticks since the machine started."""


def cpu_times() -> CpuTimes:
    """Return the kernel's counters. Source: proc_stat(5)."""
    times = {}
    with open("/proc/stat") as stat:
        for line in stat:
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = [int(field) for field in fields[:8]]
                times[int(name[3:])] = (ticks[3] + ticks[4], sum(ticks))
    return times


def busy_share(before: CpuTimes, now: CpuTimes) -> float:
    """Return the share of the time between two readings in which the CPUs were busy."""
    idle, whole = (sum(now[place][n] - before[place][n] for place in now) for n in (0, 1))
    return 1 - idle / whole


def overruns(url: str, count: int) -> list[float]:
    """Return how many seconds after its time limit each endless loop was answered, sorted."""
    late = []
    with httpx.Client(base_url=url, timeout=60.0, trust_env=False) as client:
        for code in ["while True: pass", "sum(iter(int, 1))"] * (count // 2):
            started = time.perf_counter()
            result = client.post("/v1/runs", json={"code": code, "timeout_s": 0.5}).json()
            late.append(time.perf_counter() - started - 0.5)
            if result["outcome"] != "timeout":
                raise Wrong(
                    f"an endless loop ended with the outcome {result['outcome']!r} instead of 'timeout'"
                )
    return sorted(late)


LOADS = {"half": 0.5, "a quarter": 0.25, "a tenth": 0.1}
"""Shares of the batched rate at which latencies are measured."""
LATENCY_S = 6.0
PAUSE_S = 0.001
"""A gap of at least this length between two readings of the clock counts as a pause of the machine."""
CHECK_FOR_S = 1.0


def pauses(processor: int) -> list[float]:
    """Read the clock on one CPU for CHECK_FOR_S seconds. Returns the length of each pause in seconds."""
    os.sched_setaffinity(0, {processor})
    gaps = []
    last = time.perf_counter()
    end = last + CHECK_FOR_S
    while last < end:
        now = time.perf_counter()
        if now - last > PAUSE_S:
            gaps.append(now - last)
        last = now
    return gaps


def machine_pauses() -> tuple[float, float]:
    """Return the percentage of the time in which the machine pauses programs, and its longest pause in ms."""
    processors = sorted(os.sched_getaffinity(0))
    with multiprocessing.get_context("fork").Pool(len(processors)) as pool:
        gaps = [gap for each in pool.map(pauses, processors, chunksize=1) for gap in each]
    return 100 * sum(gaps) / (len(processors) * CHECK_FOR_S), 1000 * max(gaps, default=0.0)


def latency_rounds(url: str, batched: Callable[[], float], count: int) -> dict[str, dict[str, list[float]]]:
    """Measure latencies at each load, in `count` rounds.

    Returns:
        A dict from each load to a dict from names to lists with one value per round. The names are `rate` (requests per
        second), `p50` and `p99` (latencies in milliseconds) and `busy` (percentage of the time in which the CPUs were
        busy). The dict of the key `machine` has other names: `stopped` (percentage of the time in which the idle
        machine pauses programs) and `longest` (its longest pause in milliseconds).
    """
    readings: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for number in range(count):
        stopped, longest = machine_pauses()
        readings["machine"]["stopped"].append(stopped)
        readings["machine"]["longest"].append(longest)
        whole = batched()
        for load, share in LOADS.items():
            before = cpu_times()
            took = asyncio.run(latencies(url, whole * share, LATENCY_S, seed=number))
            readings[load]["rate"].append(whole * share)
            readings[load]["p50"].append(1000 * took[len(took) // 2])
            readings[load]["p99"].append(1000 * took[len(took) * 99 // 100])
            readings[load]["busy"].append(100 * busy_share(before, cpu_times()))
        print(f"latencies, round {number + 1} of {count} done", file=sys.stderr)
    return readings


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def report(
    rates: dict[str, dict[str, float]],
    waits: dict[str, dict[str, list[float]]],
    late: list[float],
) -> dict[str, Any]:
    """Print the table. Returns its values."""
    print(f"{'programs a second':22}" + "".join(f"{kind:>10}" for kind in PROGRAMS))
    for name, by_kind in rates.items():
        print(f"{name:22}" + "".join(f"{by_kind[kind]:10.0f}" for kind in PROGRAMS))
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
        f"without load, the machine pauses programs {spread(waits['machine']['stopped'])}% of the time, "
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
    """Measure this checkout's judge, its sandbox alone, and plain interpreters."""
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
    parser.add_argument("--workers", type=int, help="default: 2; not allowed with --against")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--seconds",
        type=float,
        help="seconds of each contestant on each program in a round (default: 1.5), with --against in a turn (0.4)",
    )
    parser.add_argument("--isolation", choices=["strict", "landlock"], default="strict")
    parser.add_argument("--codejudge", metavar="URL", help="a server that speaks code-judge's protocol")
    parser.add_argument(
        "--against", type=Path, metavar="CHECKOUT", help="compare with the judge of another checkout"
    )
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    if options.against:
        if options.workers is not None:
            parser.error("--workers cannot be combined with --against, with which each judge has one worker")
        seconds = options.seconds or 0.4
        figures = compare(options.against, PROGRAMS, options.rounds, options.isolation, seconds, warm_judge)
    else:
        options.workers, options.seconds = options.workers or 2, options.seconds or 1.5
        figures = measure(options)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
