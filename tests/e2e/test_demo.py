"""The demo as a user runs it, with fewer steps: it learns, survives a kill, and cannot learn from a constant."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("verl", reason="VERL is not installed: pip install 'rstar2[laptop]'")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

SMALL = [
    "traces.count=3200",
    "problems.train=64",
    "problems.held_out=80",
    "eval.samples=2",
    "rl.steps=6",
    "rl.checkpoint.every=2",
    "rl.rollout.rollouts=8",
    "rl.roc.down_sample_to_n=4",
    "stage1.steps=6",
    "stage3.steps=2",
    "stage3.drop_solved=2",
]
BOUND_S = 900.0


def start(run: Path, *changes: str) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "rstar2", "demo", "--run", str(run)]
    for change in (*SMALL, *changes):
        argv += ["--set", change]
    return subprocess.Popen(
        argv, stdout=(run.parent / f"{run.name}.out").open("ab"), stderr=subprocess.STDOUT
    )


def steps(path: Path) -> list[int]:
    if not path.exists():
        return []
    return [
        json.loads(line)["step"]
        for line in path.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]


def finish(process: subprocess.Popen[bytes], run: Path) -> dict[str, Any]:
    code = process.wait(BOUND_S)
    assert code == 0, (run.parent / f"{run.name}.out").read_text()[-3000:]
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run killed in the middle of stage 2 and started again."""
    run = tmp_path_factory.mktemp("demo") / "run"
    process = start(run)
    deadline = time.monotonic() + BOUND_S
    while not [step for step in steps(run / "stage2" / "metrics-1.jsonl") if step >= 3]:
        assert process.poll() is None, (run.parent / "run.out").read_text()[-3000:]
        assert time.monotonic() < deadline, "stage 2 did not get to step 3"
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    return run, finish(start(run), run)


def test_a_killed_run_goes_on_from_its_last_checkpoint(killed: tuple[Path, dict[str, Any]]) -> None:
    run, _ = killed
    before, after = (steps(run / "stage2" / f"metrics-{n}.jsonl") for n in (1, 2))
    assert after[0] in (3, 5), "the second start must go on from the checkpoint of step 2 or 4"
    assert after[0] <= before[-1] + 1
    assert after[-1] == 6
    assert steps(run / "stage1" / "metrics-2.jsonl") == [], "a finished stage must not run again"


def test_the_summary_says_what_was_measured(killed: tuple[Path, dict[str, Any]]) -> None:
    _, summary = killed
    assert summary["seed"] == 1
    assert summary["isolation"] in ("strict", "landlock", "none")
    assert [phase["name"] for phase in summary["phases"]] == ["sft", "stage1", "stage2", "stage3"]
    for phase in summary["phases"]:
        assert phase["problems"] == 80
        assert phase["samples"] == 160
        low, high = phase["interval"]
        assert 0 <= low <= phase["accuracy"] <= high <= 1
        assert phase["wall_s"] > 0


def test_it_learns(killed: tuple[Path, dict[str, Any]]) -> None:
    _, summary = killed
    first, *_, last = summary["phases"]
    assert last["accuracy"] > first["accuracy"]
    assert last["failed_call_ratio_correct"] < first["failed_call_ratio_correct"]


def test_a_constant_reward_teaches_nothing(killed: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """The same SFT model, the same steps: what made the demo gain is the reward."""
    run, summary = killed
    from safetensors.torch import load_file

    from rstar2.data import builtin
    from rstar2.data.parquet import rl_rows
    from rstar2.demo.recipe import demo_plan
    from rstar2.judge.service import running_judge
    from rstar2.train.stages import run_stage

    recipe = demo_plan("demo", None, [*SMALL, "rl.reward=constant"]).stages[1]
    rows = rl_rows(builtin.training(1, 64), builtin.PROMPT, 8, "builtin")
    with running_judge(tmp_path / "judge") as judge:
        model = run_stage(
            recipe,
            model=run / "sft" / "model",
            rows=rows,
            folder=tmp_path / "stage1",
            judge=(judge.url, judge.token),
            logs=tmp_path / "logs",
            on_step=lambda step, metrics: None,
        )

    def moved(trained: Path) -> float:
        before, after = (
            load_file(folder / "model.safetensors") for folder in (run / "sft" / "model", trained)
        )
        return max(float((after[name] - before[name]).abs().max()) for name in before)

    rewarded, constant = moved(run / "stage1" / "model"), moved(model)
    assert constant < 0.05 * rewarded, "with equal rewards only weight decay may move the weights"
    assert summary["phases"][1]["accuracy"] != summary["phases"][0]["accuracy"]
