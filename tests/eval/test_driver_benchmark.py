"""`benchmarks/eval_driver.py` starts a stand-in for a server and measures an evaluation against it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "eval_driver.py"


@pytest.mark.slow
def test_every_rollout_is_answered_and_both_rates_are_reported() -> None:
    """The pace is so high that the server never delays a reply. `driven` fails if any answer is wrong."""
    words = [
        "--samples",
        "100",
        "--rounds",
        "1",
        "--in-flight",
        "32",
        "--pace",
        "1000000",
        "--mean-tokens",
        "60",
    ]
    process = subprocess.run([sys.executable, BENCHMARK, *words], capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr
    report = json.loads(process.stdout)
    assert report["samples"] == 100
    assert {name: len(rates) for name, rates in report["tokens_per_s"].items()} == {"bare": 1, "driven": 1}
