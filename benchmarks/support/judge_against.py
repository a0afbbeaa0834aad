"""Compares this checkout's judge with that of another checkout, for `python benchmarks/judge.py --against CHECKOUT`.

Both judges run at once and take turns of a fraction of a second, because the speed of a shared machine changes from
second to second. Both have one worker and use the same CPU. Every round starts both anew. Each judge is started by its
own checkout's command line, and each checkout's own client measures latencies at half load.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
START_S = 120.0
_TURNS = 16
"""Number of turns of each judge on each program in a round."""
_TRIAL_PROGRAMS = 32
"""Number of programs of each kind that are timed before the turns, to choose the number of programs per turn."""
_LATENCY_TURNS, _LATENCY_S = 6, 4.0
"""Number of latency turns of each judge in a round, and the seconds of each. They run at half load."""
Run = Callable[[str, int], float]
"""Runs a program a number of times, and returns the programs per second: `run(kind, count)`."""


@contextmanager
def judge_of(checkout: Path, isolation: str, cpu: int) -> Iterator[str]:
    """Run a judge of that checkout with one worker on one CPU until the block ends. Yields its URL."""
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-m", "rstar2", "judge", "up", "--port", "0"]
        command += ["--workers", "1", "--isolation", isolation]
        process = subprocess.Popen(
            command,
            cwd=checkout,
            env={**_environment(checkout), "RSTAR2_STATE": state},
            stdout=subprocess.DEVNULL,
            preexec_fn=lambda: os.sched_setaffinity(0, {cpu}),
        )
        try:
            yield _url(Path(state) / "judge.json", process)
        finally:
            process.terminate()
            process.wait(60)
            # The supervisor ends shortly after the command.
            time.sleep(2.0)


def _environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout)}


def _url(note: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_S
    while not note.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the judge did not start within {START_S:.0f} s: {process.args!r}")
        time.sleep(0.05)
    return str(json.loads(note.read_text())["url"])


def _latencies_ms(checkout: Path, url: str, rate: float, seed: int) -> list[float]:
    """Return the latency of each program in milliseconds at a load of `rate` programs per second, measured with that
    checkout's client."""
    script = Path(__file__).with_name("judge_load.py")
    words = ["--url", url, "--rate", str(rate), "--seconds", str(_LATENCY_S), "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, str(script), *words],
        cwd=checkout,
        env=_environment(checkout),
        stdout=subprocess.PIPE,
        check=True,
    )
    return [1000 * seconds for seconds in json.loads(done.stdout)]


def compare(
    against: Path,
    kinds: Collection[str],
    rounds: int,
    isolation: str,
    seconds: float,
    warm: Callable[[str], Run],
) -> dict[str, Any]:
    """Measure both judges. Prints and returns their rates, the ratios of neighbouring turns, and latencies.

    Args:
        against: The other checkout.
        kinds: Names of the programs. `trivial` must be one of them: latencies are measured with it.
        rounds: Number of rounds. Each round starts both judges again.
        isolation: The isolation of both judges.
        seconds: Length of a turn.
        warm: Waits until the judge at a URL is warm, and returns a function that runs programs on it.
    """
    checkouts = {"this": HERE, "other": against.resolve()}
    cpu = min(os.sched_getaffinity(0))
    rates: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in checkouts}
    waits: dict[str, list[list[float]]] = {name: [] for name in checkouts}
    for number in range(rounds):
        order = list(checkouts) if number % 2 else list(reversed(checkouts))
        with ExitStack() as stack:
            urls = {name: stack.enter_context(judge_of(checkouts[name], isolation, cpu)) for name in order}
            runs = {name: warm(urls[name]) for name in order}
            _take_turns(runs, order, kinds, seconds, rates)
            # The same load for both, with the same arrivals.
            load = min(statistics.median(rates[name]["trivial"]) for name in order) / 2
            for turn in range(_LATENCY_TURNS):
                seed = number * _LATENCY_TURNS + turn
                for name in order if turn % 2 else reversed(order):
                    waits[name].append(_latencies_ms(checkouts[name], urls[name], load, seed))
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    return _report(rates, waits)


def _report(rates: dict[str, dict[str, list[float]]], waits: dict[str, list[list[float]]]) -> dict[str, Any]:
    ratios = {
        kind: [this / other for this, other in zip(each, rates["other"][kind], strict=True)]
        for kind, each in rates["this"].items()
    }
    print(f"{'programs a second':18}" + "".join(f"{kind:>22}" for kind in ratios))
    for name, by_kind in rates.items():
        print(f"{name:18}" + "".join(f"{statistics.median(by_kind[kind]):22.0f}" for kind in ratios))
    cells = {kind: _median_and_quartiles(each, 3) for kind, each in ratios.items()}
    print(f"{'this / other':18}" + "".join(f"{cells[kind]:>22}" for kind in ratios))
    print("latencies at half the rate of the slower judge: of all programs, and the p99 of each turn")
    for name, turns in waits.items():
        every = [wait for turn in turns for wait in turn]
        p50, p90, p99 = (_percentile(every, percent) for percent in (50, 90, 99))
        each = _median_and_quartiles([_percentile(turn, 99) for turn in turns], 1)
        print(f"{name:18}p50 {p50:.1f}, p90 {p90:.1f}, p99 {p99:.1f} ms; p99 of a turn {each} ms")
    print("in brackets: quartiles; ratios are those of neighbouring turns")
    return {"rates": rates, "ratios": ratios, "half_load_latencies_ms": waits}


def _percentile(values: list[float], percent: int) -> float:
    return sorted(values)[len(values) * percent // 100]


def _median_and_quartiles(values: list[float], digits: int) -> str:
    first, median, third = statistics.quantiles(values, n=4)
    return f"{median:.{digits}f} ({first:.{digits}f}-{third:.{digits}f})"


def _take_turns(
    runs: dict[str, Run],
    order: list[str],
    kinds: Collection[str],
    seconds: float,
    rates: dict[str, dict[str, list[float]]],
) -> None:
    """Run each program on both judges in turn, equally often, and append the measured rates to `rates`."""
    counts = {}
    for kind in kinds:
        first = [runs[name](kind, _TRIAL_PROGRAMS) for name in order]
        counts[kind] = max(1, int(statistics.mean(first) * seconds))
    for turn in range(_TURNS):
        for kind, count in counts.items():
            for name in order if turn % 2 else reversed(order):
                rates[name][kind].append(runs[name](kind, count))
