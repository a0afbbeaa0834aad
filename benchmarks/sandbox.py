"""Measures the sandbox alone, without HTTP and queue, compared with interpreters without isolation.

    python benchmarks/sandbox.py [--rounds 5] [--seconds 1.0] [--workers 2] [--tier strict] [--json FILE]

In each round, every kind of program runs first in the sandboxes and then in new `python -I -c` processes. There are
`--workers` sandboxes, each in its own process, and the same number of interpreters runs at a time. Sandboxes and
interpreters alternate because the speed of a shared machine changes from minute to minute, so their ratio is more
reliable than the rates.

Prints a row per program: programs per second of both, their ratio, and the sandbox's latencies. The default takes about
a minute.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

PROGRAMS = {
    "trivial": "print(1)",
    "numpy": "import numpy as np\nprint(np.linalg.inv(np.array([[2.0, 1.0], [1.0, 3.0]])).sum())",
    "sympy": "from sympy import *\nx = symbols('x')\nprint(solve(x**3 - 6*x**2 + 11*x - 6, x))",
}
_WARM_UP_RUNS = 3

Latencies = list[float]
RunOne = Callable[[str], None]


def _sandbox(root: str, tier: str) -> tuple[RunOne, Callable[[], None]]:
    from rstar2.judge.sandbox.sandbox import Sandbox
    from rstar2.judge.schema import RunRequest

    sandbox = Sandbox(Path(root) / str(os.getpid()), tier=tier, minimum="none")  # type: ignore[arg-type]
    sandbox.start()
    sandbox.start_zygotes()
    sandbox.run(RunRequest(code="import pandas", timeout_s=60.0), "first")
    while sandbox.profile_next_zygote():
        pass

    def run(code: str) -> None:
        result = sandbox.run(RunRequest(code=code, timeout_s=60.0), "bench")
        if result.outcome != "ok":
            raise RuntimeError(f"a program of the benchmark did not end with the outcome 'ok': {result!r}")

    return run, sandbox.close


def _bare(root: str, tier: str) -> tuple[RunOne, Callable[[], None]]:
    environment = {"PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1"}

    def run(code: str) -> None:
        subprocess.run([sys.executable, "-I", "-c", code], env=environment, capture_output=True, check=True)

    return run, lambda: None


_KINDS = {"sandbox": _sandbox, "bare": _bare}


def _worker(kind: str, root: str, tier: str, pipe: Connection) -> None:
    """For each message (program, seconds), run the program repeatedly for that time, and reply with the latencies."""
    run, close = _KINDS[kind](root, tier)
    for code in PROGRAMS.values():
        for _ in range(_WARM_UP_RUNS):
            run(code)
    pipe.send(None)
    while (message := pipe.recv()) is not None:
        name, seconds = message
        latencies: Latencies = []
        began = now = time.perf_counter()
        while now - began < seconds:
            run(PROGRAMS[name])
            latencies.append(time.perf_counter() - now)
            now += latencies[-1]
        pipe.send(latencies)
    close()


@dataclass
class Team:
    """The worker processes of one kind: `sandbox` or `bare`."""

    pipes: list[Connection]
    processes: list[multiprocessing.process.BaseProcess]

    def measure(self, name: str, seconds: float) -> tuple[float, Latencies]:
        """Run a program on all workers. Returns their total programs per second, and every latency in seconds."""
        for pipe in self.pipes:
            pipe.send((name, seconds))
        answers = [pipe.recv() for pipe in self.pipes]
        return sum(len(each) / sum(each) for each in answers), [one for each in answers for one in each]

    def stop(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(30)


def _team(kind: str, workers: int, root: str, tier: str) -> Team:
    context = multiprocessing.get_context("spawn")
    team = Team([], [])
    for _ in range(workers):
        ours, theirs = context.Pipe()
        process = context.Process(target=_worker, args=(kind, root, tier, theirs))
        process.start()
        team.pipes.append(ours)
        team.processes.append(process)
    for pipe in team.pipes:
        pipe.recv()
    return team


def _percentile(values: Latencies, share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def measure(rounds: int, seconds: float, workers: int, tier: str) -> dict[str, dict[str, float]]:
    """Measure each program.

    Returns:
        A dict from each program to its results. These are the median rates per second over the rounds, the median of
        the rounds' ratios, and the p50 and p99 of the sandbox's latencies in milliseconds.
    """
    with tempfile.TemporaryDirectory() as root:
        teams = {kind: _team(kind, workers, root, tier) for kind in _KINDS}
        figures_of = {}
        for name in PROGRAMS:
            rates: dict[str, list[float]] = {kind: [] for kind in teams}
            latencies: Latencies = []
            for _ in range(rounds):
                for kind, team in teams.items():
                    rate, spent = team.measure(name, seconds)
                    rates[kind].append(rate)
                    latencies += spent if kind == "sandbox" else []
            ratios = [ours / theirs for ours, theirs in zip(rates["sandbox"], rates["bare"], strict=True)]
            figures_of[name] = {
                "sandbox_per_s": statistics.median(rates["sandbox"]),
                "bare_per_s": statistics.median(rates["bare"]),
                "ratio": statistics.median(ratios),
                "p50_ms": _percentile(latencies, 0.5) * 1e3,
                "p99_ms": _percentile(latencies, 0.99) * 1e3,
            }
        for team in teams.values():
            team.stop()
    return figures_of


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds of each kind in each round")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--tier", default="strict", choices=["strict", "landlock", "none"])
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    figures_of = measure(options.rounds, options.seconds, options.workers, options.tier)
    print(f"{'':10}{'sandbox/s':>11}{'bare/s':>9}{'ratio':>8}{'p50 ms':>9}{'p99 ms':>9}")
    for name, row in figures_of.items():
        figures = (row["sandbox_per_s"], row["bare_per_s"], row["ratio"], row["p50_ms"], row["p99_ms"])
        print("{:10}{:11.0f}{:9.1f}{:8.1f}{:9.2f}{:9.2f}".format(name, *figures))
    if options.json:
        options.json.write_text(json.dumps(figures_of, indent=2) + "\n")


if __name__ == "__main__":
    main()
