"""A run that is killed and resumed uses the same problems as an uninterrupted one. VERL's trainer is real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.optional import needs
from support.train.killed_run import kill_after_checkpoint

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.train.records.outcome_log import OutcomeReader
from rstar2.train.records.steps import step_metrics

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200), needs("verl")]

STEPS, PROMPTS = 4, 6
CHANGES = (
    f"steps={STEPS}", f"rollout.prompts={PROMPTS}", "rollout.rollouts=4", "groups.keep=2",
    "rollout.tokens=60", "checkpoint.every=1",
)  # fmt: skip


def words(root: Path, run: Path, curriculum: str) -> list[str]:
    """A training command. The model is random, so every outcome is wrong, in every run."""
    settings = [word for change in (*CHANGES, f"curriculum={curriculum}") for word in ("--set", change)]
    stage = [
        "--stage",
        "1",
        "--profile",
        "laptop",
        "--model",
        str(root / "model"),
        "--data",
        str(root / "rl"),
    ]
    return [sys.executable, "-m", "rstar2", "train", *stage, *settings, "--run", str(run)]


def trained(root: Path, run: Path, curriculum: str) -> None:
    command = words(root, run, curriculum)
    result = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def problems_by_step(stage: Path) -> list[tuple[int, list[str]]]:
    """Returns the problems of each step."""
    reader = OutcomeReader(stage)
    reader.read()
    return [(each.step, sorted(each.counts)) for each in reader.steps]


@pytest.mark.parametrize("curriculum", ["posterior", "easy_to_hard", "pools"])
def test_a_killed_run_asks_the_same_problems_as_one_that_was_not(tmp_path: Path, curriculum: str) -> None:
    size = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_tiny_model(tmp_path / "model", size, builtin.traces(1, 20, {}), builtin.FORMAT, seed=1)
    (tmp_path / "asked.jsonl").write_text(
        "".join(
            json.dumps({"problem": f"What is {n} + {n}?", "answer": str(2 * n)}) + "\n" for n in range(20)
        )
    )
    prepare = ["data", "prepare", str(tmp_path / "asked.jsonl"), "--output", str(tmp_path / "rl")]
    subprocess.run([sys.executable, "-m", "rstar2", *prepare], check=True, timeout=600)

    killed, stage = tmp_path / "killed", tmp_path / "killed" / "stage1"
    kill_after_checkpoint(words(tmp_path, killed, curriculum), stage, 2, STEPS, tmp_path / "out")
    trained(tmp_path, killed, curriculum)
    whole = tmp_path / "whole"
    trained(tmp_path, whole, curriculum)

    assert problems_by_step(stage) == problems_by_step(whole / "stage1")
    assert [len(problems) for _, problems in problems_by_step(stage)] == [PROMPTS] * STEPS
    steps = step_metrics(whole / "stage1")
    unseen = [step["rstar2/problems/unseen"] for step in steps.values()]
    if curriculum == "pools":
        # Every other problem is used before a problem is used again.
        assert unseen == [14, 8, 2, 0]
    else:
        # Half of a step's problems are new as long as new ones exist. In the first step all problems are new.
        assert unseen == [20 - PROMPTS - PROMPTS // 2 * step for step in range(STEPS)]
        assert "rstar2/problems/prediction_error" not in steps[1]
        assert 0 < steps[STEPS]["rstar2/problems/prediction_error"] < 0.2
