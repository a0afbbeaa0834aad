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
    "stage2.steps=6",
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
    while survivors(run):
        assert time.monotonic() < deadline, f"processes outlived the kill: {survivors(run)}"
        time.sleep(0.2)
    return run, finish(start(run), run)


def survivors(run: Path) -> list[str]:
    """Command lines of living processes that work for the run: its trainer and its judge."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(run) in line:
            found.append(line[:200])
    return found


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
    """The same SFT model, problems and steps: what made stage 1 gain is the reward."""
    run, summary = killed
    from rstar2.data import builtin
    from rstar2.data.parquet import rl_rows
    from rstar2.demo.recipe import demo_plan
    from rstar2.judge.service.start import running_judge
    from rstar2.train.solved import sample
    from rstar2.train.stages import run_stage

    plan = demo_plan("demo", None, [*SMALL, "rl.reward=constant"])
    recipe, demo = plan.stages[1], plan.demo
    problems = builtin.training(demo.seed, demo.problems.train, skip=demo.traces.count)
    rewards: list[float] = []
    with running_judge(tmp_path / "judge") as judge:
        where = (judge.url, judge.token)
        model = run_stage(
            recipe,
            model=run / "sft" / "model",
            rows=rl_rows(problems, builtin.PROMPT, recipe.rollout.rollouts, "builtin"),
            folder=tmp_path / "stage1",
            judge=where,
            logs=tmp_path / "logs",
            on_step=lambda step, metrics: rewards.append(metrics["critic/rewards/mean"]),
        )
        held_out = builtin.held_out(demo.seed, demo.problems.held_out)
        out = tmp_path / "eval"
        measured = sample(
            model, held_out, demo.eval, recipe.rollout, where, out, lambda progress: None
        ).summary
    assert rewards == [1.0] * recipe.steps
    before, rewarded = summary["phases"][0]["accuracy"], summary["phases"][1]["accuracy"]
    assert rewarded - before > 0.1, "the reward must teach, or its absence shows nothing"
    assert abs(measured["accuracy"] - before) < 0.02, "without differences in reward nothing may be learnt"
