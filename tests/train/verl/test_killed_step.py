"""A run that is killed in the middle of a step reuses the step's finished rollouts. VERL's trainer is real."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.optional import needs
from support.overfitted_model import SIMILAR, failing_model
from support.train.killed_run import kill_once

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.loop.trace import Trace, read_traces
from rstar2.train.records.finished_rollouts import FOLDER
from rstar2.train.records.steps import step_metrics

pytestmark = [pytest.mark.long, pytest.mark.timeout(7200), needs("verl")]

CHANGES = (
    "steps=2", "rollout.prompts=8", "rollout.rollouts=8", "groups.keep=4", "rollout.tokens=400",
    "checkpoint.every=1", "traces_per_step=-1",
    # As on GPUs, four rollouts run at a time, and the others wait in our scheduler.
    "hardware.router=sessions", "hardware.sequences_in_flight=4",
)  # fmt: skip


ROUNDS = ("groups.round=4", "groups.hopeless_after=4", "reward=by_tokens:reward")
MODULE = """
import time
from rstar2 import Problem, Trace

def reward(problem: Problem, trace: Trace) -> float:
    return float(sum(trace.response_ids) % 4 == 0)

def late(problem: Problem, trace: Trace) -> float:
    time.sleep(3)
    return reward(problem, trace)
"""
"""A random model earns this reward one time in four, so that groups stop after one or two rounds."""
RECOVER = ("recover.failures=2", "recover.rollouts=3", "rollout.max_turns=4", "reward=by_tokens:late")
"""Recoveries of a group begin when its last rollout has its reward. Late rewards leave time for the kill."""


def make_model(folder: Path, calls: bool) -> None:
    """Creates a random model, or for recoveries a model whose first call fails. Rollouts of both models differ."""
    if calls:
        failing_model(folder)
    else:
        size = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
        make_tiny_model(folder, size, builtin.traces(1, 20, {}), builtin.FORMAT, seed=1)


def words(root: Path, run: Path, changes: tuple[str, ...]) -> list[str]:
    """A training command. The model is random, so that rollouts have different lengths."""
    data, model = root / "rl" / "data.parquet", root / "model"
    settings = [word for change in (*CHANGES, *changes) for word in ("--set", change)]
    stage = ["--stage", "1", "--profile", "laptop", "--model", str(model), "--data", str(data)]
    return [sys.executable, "-m", "rstar2", "train", *stage, *settings, "--run", str(run)]


def trained(root: Path, run: Path, changes: tuple[str, ...]) -> None:
    command = words(root, run, changes)
    result = subprocess.run(command, capture_output=True, text=True, timeout=3600, check=False, cwd=root)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def traces(stage: Path, step: int) -> dict[tuple[str, int], Trace]:
    """Returns a step's rollouts by problem and number."""
    traces = read_traces(stage / "traces" / f"step-{step:06}.jsonl")
    return {(each.problem_id, each.sample): each for each in traces}


def in_the_middle(stage: Path, recoveries: bool) -> bool:
    """Returns True once half of the first step's rollouts have ended. With `recoveries`, some recoveries must run too.

    The longest of the first four has then ended, so some rollouts can be reused.
    """
    if not (stage / "rollouts.json").exists():
        return False
    progress = json.loads((stage / "rollouts.json").read_text())
    return progress["finished"] > 32 and (progress["wanted"] > 64 or not recoveries)


@pytest.mark.parametrize("changes", [(), ROUNDS, RECOVER], ids=["at once", "in rounds", "with recoveries"])
def test_finished_rollouts_are_used_again_and_the_step_is_that_of_a_run_that_was_not_killed(
    tmp_path: Path, changes: tuple[str, ...]
) -> None:
    (tmp_path / "by_tokens.py").write_text(MODULE)
    make_model(tmp_path / "model", calls=changes is RECOVER)
    ask = SIMILAR if changes is RECOVER else "What is {n} + {n}?"
    (tmp_path / "asked.jsonl").write_text(
        "".join(json.dumps({"problem": ask.format(n=n), "answer": str(2 * n)}) + "\n" for n in range(40, 80))
    )
    prepare = ["data", "prepare", str(tmp_path / "asked.jsonl"), "--output", str(tmp_path / "rl")]
    subprocess.run([sys.executable, "-m", "rstar2", *prepare], check=True, timeout=600)

    killed, stage = tmp_path / "killed", tmp_path / "killed" / "stage1"
    command = words(tmp_path, killed, changes)
    kill_once(command, lambda: in_the_middle(stage, changes is RECOVER), tmp_path / "out", cwd=tmp_path)
    assert not (stage / "checkpoints" / "latest_checkpointed_iteration.txt").exists()
    trained(tmp_path, killed, changes)
    reused_rollouts = {
        step: int(each["rstar2/reused_rollouts"]) for step, each in step_metrics(stage).items()
    }
    assert 0 < reused_rollouts[1] <= 64 if changes is RECOVER else 0 < reused_rollouts[1] < 64
    assert reused_rollouts[2] == 0
    assert not (stage / FOLDER).exists()
    log = (killed / "attempts" / "2" / "stage1.log").read_text()
    assert f"reuses {reused_rollouts[1]} rollouts that the interrupted step had finished" in log

    whole = tmp_path / "whole"
    trained(tmp_path, whole, changes)
    # On a CPU the seed decides what a rollout writes, so both runs made the same rollouts. The composition of the
    # engine's batches changes only the last digits of their log-probabilities.
    first, second = (traces(each / "stage1", 1) for each in (killed, whole))
    assert first.keys() == second.keys()
    saved_rollouts = [
        step_metrics(each / "stage1")[1].get("rstar2/saved_rollouts", 0.0) for each in (killed, whole)
    ]
    assert saved_rollouts == [64 - len(first)] * 2
    in_rounds = changes is ROUNDS
    assert (0 < saved_rollouts[0] < 32) if in_rounds else saved_rollouts[0] == 0, (
        "some groups stop after a round, and some grow"
    )
    for key, trace in first.items():
        assert trace.response_ids == second[key].response_ids
        assert trace.response_mask == second[key].response_mask
        assert trace.logprobs == pytest.approx(second[key].logprobs, abs=1e-4)
    resumed, uninterrupted = (step_metrics(each / "stage1")[1] for each in (killed, whole))
    for name in ("rstar2/reward", "rstar2/tokens", "rstar2/kept", "rstar2/off_policy_tokens"):
        assert resumed[name] == uninterrupted[name], name
    # Recoveries are rolled out again after the same failed calls, so they have the same length.
    recoveries = [{k: v for k, v in each.items() if "/recover/" in k} for each in (resumed, uninterrupted)]
    assert recoveries[0] == recoveries[1]
    if changes is RECOVER:
        assert recoveries[0]["rstar2/recover/failed"] == recoveries[0]["rstar2/recover/lost"] == 0
        assert recoveries[0]["rstar2/recover/rollouts"] == 3 * recoveries[0]["rstar2/recover/groups"] > 6
        assert recoveries[0]["rstar2/recover/kept"] > 0
    # With the weights of the resumed trainer, the rollouts have the same probabilities as on disk.
    assert resumed["training/rollout_probs_diff_max"] < 1e-5
