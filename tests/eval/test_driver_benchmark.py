"""`benchmarks/eval_driver.py` measures the evaluation against its own stand-in of a server, which it starts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "eval_driver.py"


@pytest.mark.slow
def test_every_rollout_is_answered_and_both_rates_are_reported() -> None:
    """At a pace at which the server never keeps anyone waiting. `driven` fails unless every answer is right."""
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
    ran = subprocess.run([sys.executable, BENCHMARK, *words], capture_output=True, text=True, timeout=600)
    assert ran.returncode == 0, ran.stderr
    measured = json.loads(ran.stdout)
    assert measured["samples"] == 100
    assert {name: len(rates) for name, rates in measured["tokens_per_s"].items()} == {"bare": 1, "driven": 1}
