"""Measures the effect of one change to the sandbox: the sandboxes of several checkouts run the same programs in turn.

    mkdir /tmp/without && cp -r rstar2 /tmp/without/       # then remove the mechanism from the copy
    python benchmarks/sandbox_variants.py . /tmp/without [--rounds 16] [--idle-s 0.01]

Each checkout is a folder that contains the package `rstar2`, and has one sandbox. Every round runs each program on each
checkout 10 or 20 times, in a random order of checkouts.

Prints a row per program and checkout, with medians over the rounds: milliseconds of wall-clock and of CPU time per
program, and their ratios to the first checkout in the same round. The CPU time is that of worker, zygote and program
together. On a busy machine only the CPU time is reliable. With `--idle-s`, programs start after random pauses of this
mean length, as under partial load. Run it as root: the CPU time is read from the sandbox's control group. Two
checkouts take about a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PROGRAMS = {
    "trivial": "print(6 * 7)",
    "numpy": "import numpy as np\nprint(np.linalg.inv(np.array([[2.0, 1.0], [1.0, 3.0]])).sum())",
    "sympy": "from sympy import *\nx = symbols('x')\nprint(solve(x**3 - 6*x**2 + 11*x - 6, x))",
}
RUNS = {"trivial": 20, "numpy": 20, "sympy": 10}
"""Number of times that each program runs in one turn."""
_WARM_UP_RUNS = 3


def serve(folder: str) -> None:
    """Read names of programs from standard input, run each in one checkout's sandbox, and print its times as JSON."""
    from rstar2.judge.sandbox.sandbox import Sandbox
    from rstar2.judge.schema import RunRequest

    sandbox = Sandbox(Path(folder), "strict")
    sandbox.start()
    sandbox.start_zygotes()

    def run(code: str) -> float:
        result = sandbox.run(RunRequest(code=code, timeout_s=60.0), "bench")
        if result.outcome != "ok":
            raise RuntimeError(f"a program of the benchmark did not end with the outcome 'ok': {result!r}")
        return result.wall_s

    def cpu_s() -> float:
        assert sandbox._jail is not None
        return time.process_time() + sandbox._jail.cgroup.cpu_seconds()

    run("import pandas")
    while getattr(sandbox, "profile_next_zygote", bool)():
        pass
    for code in PROGRAMS.values():
        for _ in range(_WARM_UP_RUNS):
            run(code)
    print("warm", flush=True)
    for line in sys.stdin:
        name, idle_s = json.loads(line)
        cpu_before, walls = cpu_s(), []
        for _ in range(RUNS[name]):
            if idle_s:
                time.sleep(random.expovariate(1 / idle_s))
            walls.append(run(PROGRAMS[name]))
        print(json.dumps([walls, (cpu_s() - cpu_before) / RUNS[name]]), flush=True)
    sandbox.close()


def _start(checkout: str, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, __file__, "--serve", str(folder)],
        env={**os.environ, "PYTHONPATH": str(Path(checkout).resolve())},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _take_turn(process: subprocess.Popen[str], name: str, idle_s: float) -> tuple[list[float], float]:
    """Run one turn. Returns the wall-clock seconds of each run, and the CPU seconds per run."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(json.dumps([name, idle_s]), file=process.stdin, flush=True)
    walls, cpu = json.loads(process.stdout.readline())
    return walls, cpu


def measure(checkouts: list[str], rounds: int, idle_s: float) -> None:
    """Measure the checkouts, and print a row for each program and checkout."""
    with tempfile.TemporaryDirectory() as root:
        processes = [_start(each, Path(root) / str(n)) for n, each in enumerate(checkouts)]
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "warm\n":
                raise RuntimeError(f"a sandbox did not start: {process.args!r}")
        print(f"{'':8}{'wall ms':>9}{'ratio':>7}{'p99 ms':>9}{'CPU ms':>9}{'ratio':>7}")
        for name in PROGRAMS:
            turns: list[list[tuple[list[float], float]]] = [[] for _ in checkouts]
            for _ in range(rounds):
                for number in random.sample(range(len(checkouts)), len(checkouts)):
                    turns[number].append(_take_turn(processes[number], name, idle_s))
            for checkout, each in zip(checkouts, turns, strict=True):
                walls, cpus = [statistics.mean(turn[0]) for turn in each], [turn[1] for turn in each]
                wall_ratio = statistics.median(
                    wall / statistics.mean(first[0]) for wall, first in zip(walls, turns[0], strict=True)
                )
                cpu_ratio = statistics.median(
                    cpu / first[1] for cpu, first in zip(cpus, turns[0], strict=True)
                )
                every = sorted(wall for turn in each for wall in turn[0])
                p99, wall, cpu = (
                    every[len(every) * 99 // 100],
                    statistics.median(walls),
                    statistics.median(cpus),
                )
                figures = (
                    f"{1e3 * wall:9.2f}{wall_ratio:7.2f}{1e3 * p99:9.2f}{1e3 * cpu:9.2f}{cpu_ratio:7.2f}"
                )
                print(f"{name:8}{figures}  {checkout}", flush=True)
        for process in processes:
            process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkouts", nargs="*", help="folders with rstar2; compared with the first")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--idle-s", type=float, default=0.0, help="mean pause before each program")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve)
    elif options.checkouts:
        measure(options.checkouts, options.rounds, options.idle_s)
    else:
        parser.error("name at least one checkout")


if __name__ == "__main__":
    main()
