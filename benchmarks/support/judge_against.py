"""This checkout's judge beside that of another checkout; `python benchmarks/judge.py --against CHECKOUT` runs it.

Each round starts one judge, measures it and stops it, and then does the same with the other; which one is first
alternates. They do not run at the same time: a judge claims processors for its workers, and the second would find
none. Judges are started by each checkout's own command line, and half-load latencies are measured with its own client.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[2]
START_S = 120.0
Measure = Callable[[str], dict[str, float]]
"""Measures the judge at a URL. → programs a second, by program."""


@contextmanager
def judge_of(checkout: Path, workers: int, isolation: str) -> Iterator[str]:
    """A judge of that checkout. → its URL."""
    with tempfile.TemporaryDirectory() as state:
        command = [sys.executable, "-m", "rstar2", "judge", "up", "--port", "0"]
        command += ["--workers", str(workers), "--isolation", isolation]
        process = subprocess.Popen(
            command,
            cwd=checkout,
            env={**_environment(checkout), "RSTAR2_STATE": state},
            stdout=subprocess.DEVNULL,
        )
        try:
            yield _url(Path(state) / "judge.json", process)
        finally:
            process.terminate()
            process.wait(60)
            # Its supervisor ends by itself, shortly after.
            time.sleep(2.0)


def _environment(checkout: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(checkout)}


def _url(note: Path, process: subprocess.Popen[bytes]) -> str:
    deadline = time.monotonic() + START_S
    while not note.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"the judge did not start: {process.args!r}")
        time.sleep(0.05)
    return str(json.loads(note.read_text())["url"])


def half_load_p99_ms(checkout: Path, url: str, rate: float, seconds: float, seed: int) -> float:
    """With the client of that checkout."""
    script = Path(__file__).with_name("judge_load.py")
    words = ["--url", url, "--rate", str(rate / 2), "--seconds", str(seconds), "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, str(script), *words],
        cwd=checkout,
        env=_environment(checkout),
        stdout=subprocess.PIPE,
        check=True,
    )
    took = json.loads(done.stdout)
    return 1000 * float(took[len(took) * 99 // 100])


def compare(
    against: Path, rounds: int, workers: int, isolation: str, seconds: float, measure: Measure
) -> dict[str, Any]:
    """Prints and returns the medians of both, and of the ratios within each round."""
    checkouts = {"this": HERE, "other": against.resolve()}
    rates: dict[str, list[dict[str, float]]] = {name: [] for name in checkouts}
    p99: dict[str, list[float]] = {name: [] for name in checkouts}
    for number in range(rounds):
        order = list(checkouts) if number % 2 else list(reversed(checkouts))
        for name in order:
            with judge_of(checkouts[name], workers, isolation) as url:
                found = measure(url)
                rates[name].append(found)
                p99[name].append(
                    half_load_p99_ms(checkouts[name], url, found["trivial"], seconds, seed=number)
                )
        print(f"round {number + 1} of {rounds} done", file=sys.stderr)
    ratios = {
        kind: [this[kind] / other[kind] for this, other in zip(rates["this"], rates["other"], strict=True)]
        for kind in rates["this"][0]
    }
    print(f"{'programs a second':18}" + "".join(f"{kind:>22}" for kind in ratios) + f"{'half-load p99':>26}")
    for name in checkouts:
        medians = {kind: statistics.median(each[kind] for each in rates[name]) for kind in ratios}
        waits = f"{statistics.median(p99[name]):.1f} ({min(p99[name]):.1f}-{max(p99[name]):.1f}) ms"
        print(f"{name:18}" + "".join(f"{medians[kind]:22.0f}" for kind in ratios) + f"{waits:>26}")
    shown = {
        kind: f"{statistics.median(each):.3f} ({min(each):.2f}-{max(each):.2f})"
        for kind, each in ratios.items()
    }
    print(f"{'this / other':18}" + "".join(f"{shown[kind]:>22}" for kind in ratios))
    return {"rates": rates, "ratios": ratios, "half_load_p99_ms": p99}
