"""Tests of extra rollouts after failed calls while updates change the weights, and after a kill.

VERL's trainer is real.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.optional import needs
from support.overfitted_model import SIMILAR, failing_model
from support.train.killed_run import kill_after_checkpoint

from rstar2.data.parquet import rl_rows, write_parquet
from rstar2.data.problem import Problem
from rstar2.train.records.steps import step_metrics

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200), needs("verl")]

STEPS, PROMPTS, ROLLOUTS, RECOVERIES = 4, 6, 8, 3
SETTINGS = (
    f"steps={STEPS}", f"rollout.prompts={PROMPTS}", f"rollout.rollouts={ROLLOUTS}", "rollout.tokens=400",
    "rollout.prompt_tokens=128", "rollout.max_turns=4", "groups.keep=4", "groups.round=4", "groups.refill_batches=1",
    "recover.failures=2", f"recover.rollouts={RECOVERIES}", "reward=by_tokens:reward", "checkpoint.every=1",
    "mode=colocate_async", "algorithm.correction=token-tis",
)  # fmt: skip
MODULE = """
from rstar2 import Problem, Trace

def reward(problem: Problem, trace: Trace) -> float:
    return float(sum(trace.response_ids) % 4 == 0)
"""


def test_recoveries_of_groups_that_were_under_way_are_made_whole_after_a_kill(tmp_path: Path) -> None:
    (tmp_path / "by_tokens.py").write_text(MODULE)
    failing_model(tmp_path / "model")
    problems = [Problem(f"p{n}", SIMILAR.format(n=n), str(n)) for n in range(40, 80)]
    write_parquet(tmp_path / "problems.parquet", rl_rows(problems, ROLLOUTS, "builtin"))
    run, stage = tmp_path / "run", tmp_path / "run" / "stage1"
    words = [
        "train",
        "--stage",
        "1",
        "--profile",
        "laptop",
        "--model",
        str(tmp_path / "model"),
        "--run",
        str(run),
    ]
    words += ["--data", str(tmp_path / "problems.parquet")]
    command = [sys.executable, "-m", "rstar2", *words, *(w for each in SETTINGS for w in ("--set", each))]
    kill_after_checkpoint(command, stage, 2, STEPS, tmp_path / "out", cwd=tmp_path)
    result = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False, cwd=tmp_path)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    log = (run / "attempts" / "2" / "stage1.log").read_text()
    assert "in-flight prompts for step" in log

    steps = step_metrics(stage)
    assert list(steps) == list(range(1, STEPS + 1))
    for metrics in steps.values():
        groups = sum(metrics[f"rstar2/rounds/{number}"] for number in (1, 2))
        assert groups >= PROMPTS
        assert metrics["rstar2/rollouts"] == groups * ROLLOUTS - metrics["rstar2/saved_rollouts"]
        assert metrics["rstar2/recover/rollouts"] == RECOVERIES * metrics["rstar2/recover/groups"]
        assert 0 < metrics["rstar2/recover/groups"] <= 2 * groups
        assert metrics["rstar2/failed_rollouts"] == metrics["rstar2/recover/failed"] == 0
    assert sum(metrics["rstar2/recover/kept"] for metrics in steps.values()) > 0
