"""The demo as a user runs it, with fewer steps: it learns, resumes after a kill, and learns nothing from a constant
reward.

All tests use one run. It is killed in stage 2 and in stage 3, and is then started again. Stage 3 has a constant reward
and is asynchronous.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.optional import needs
from support.train.demo_run import BOUND_S, EVICTED, adam_steps, finish, output, start
from support.train.trainer_metrics import logged_steps
from support.train.training_traces import training_traces
from support.waiting import wait_until

from rstar2.demo.recipe import demo_plan
from rstar2.runs import open_run
from rstar2.train.records.steps import step_metrics

pytestmark = [pytest.mark.long, pytest.mark.timeout(10800), needs("verl")]

SMALL = [
    "traces.count=1600",
    "problems.train=64",
    "problems.held_out=64",
    "eval.samples=2",
    "rl.steps=2",
    "rl.checkpoint.every=2",
    "rl.traces_per_step=10",
    "rl.optim.warmup_steps=2",
    "rl.optim.weight_decay=0.1",
    "stage2.steps=5",
    "stage3.steps=3",
    "stage3.mode=colocate_async",
    "stage3.algorithm.correction=token-tis",
    "stage3.checkpoint.every=1",
    "stage3.rollout.prompts=4",
    "stage3.optim.warmup_steps=0",
    "stage3.optim.weight_decay=0.02",
    "stage3.drop_solved=2",
    "stage3.reward=constant",
    # In rounds, a group of equal rewards would not be trained on at all.
    "stage3.groups.round=null",
    "stage3.optim.epochs=1",
]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A run that is killed in the middle of stage 2 and of stage 3, and started again each time."""
    run = tmp_path_factory.mktemp("demo") / "run"
    with open_run(run, "demo", demo_plan("demo", None, SMALL).config()):
        pass
    kill_after(run, "stage2", 2, 4)
    kill_after(run, "stage3", 2, 3)
    return run, finish(start(run, SMALL), run)


def kill_after(run: Path, stage: str, step: int, next_checkpoint: int) -> None:
    """Starts a run and kills it, as a power failure would, after a step of a stage.

    Checks that no process of the run is left. The trainer cannot pass the checkpoint of step `next_checkpoint` before
    the kill, because one of its files is a pipe that nobody reads.
    """
    checkpoint = run / stage / "checkpoints" / f"global_step_{next_checkpoint}"
    (checkpoint / "actor").mkdir(parents=True)
    os.mkfifo(checkpoint / "actor" / "model_world_size_1_rank_0.pt")
    process = start(run, SMALL)
    metrics = run / stage / "metrics-1.jsonl"
    try:
        wait_until(lambda: logged_steps(metrics)[-1:] >= [step] or process.poll() is not None, BOUND_S)
        assert process.poll() is None, output(run).read_text()[-3000:]
    finally:
        process.kill()
        process.wait(300)
    wait_until(lambda: not survivors(run))
    shutil.rmtree(checkpoint)


def survivors(run: Path) -> list[str]:
    """Command lines of living processes that work for the run: its trainer and its judge."""
    command_lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(run) in line:
            command_lines.append(line[:200])
    return command_lines


def test_a_killed_run_resumes_from_its_last_checkpoint(killed: tuple[Path, dict[str, Any]]) -> None:
    run, _ = killed
    before, after = (logged_steps(run / "stage2" / f"metrics-{n}.jsonl") for n in (1, 2))
    assert before in ([1, 2], [1, 2, 3])
    assert after == [3, 4, 5]
    for finished in ("sft", "stage1"):
        assert logged_steps(run / finished / "metrics-2.jsonl") == [], "a finished stage must not run again"


def test_a_killed_asynchronous_stage_resumes_too(killed: tuple[Path, dict[str, Any]]) -> None:
    run, _ = killed
    assert [logged_steps(run / "stage3" / f"metrics-{n}.jsonl") for n in (1, 2)] == [[1, 2], [3]], (
        "the second checkpoint was saved"
    )
    asynchronous = {
        stage: [EVICTED in metrics for metrics in step_metrics(run / stage).values()]
        for stage in ("stage2", "stage3")
    }
    assert asynchronous == {"stage2": [False] * 5, "stage3": [True] * 3}


def test_every_step_keeps_a_sample_of_its_rollouts_as_traces(killed: tuple[Path, dict[str, Any]]) -> None:
    run, _ = killed
    for stage, count in (("stage1", 2), ("stage2", 5), ("stage3", 3)):
        traces = list(training_traces(run / stage))
        assert [trace.step for trace in traces] == [n for n in range(1, count + 1) for _ in range(10)]
        assert {trace.kept for trace in traces} == {True, False}
        for trace in traces:
            assert trace.reward == (1.0 if stage == "stage3" else float(trace.correct))
            assert trace.problem
            assert trace.gold
            assert trace.turns
            assert trace.logprobs is not None


def test_it_learns(killed: tuple[Path, dict[str, Any]]) -> None:
    _, summary = killed
    first, _, second_stage, _ = summary["phases"]
    assert second_stage["accuracy"] > first["accuracy"] + 0.1
    assert second_stage["failed_call_ratio_correct"] < first["failed_call_ratio_correct"]


def test_a_constant_reward_teaches_nothing(killed: tuple[Path, dict[str, Any]]) -> None:
    """Without differences in reward every advantage is 0, and only weight decay changes the weights."""
    run, _ = killed
    recipe = demo_plan("demo", None, SMALL).stages[3]
    rewards = [step["critic/rewards/mean"] for step in step_metrics(run / "stage3").values()]
    assert rewards == [1.0] * recipe.steps == [1.0] * 3
    decay = recipe.steps * recipe.optim.lr * recipe.optim.weight_decay
    assert weight_change(run, "stage2", "stage3") == pytest.approx(decay, rel=0.1)
    assert weight_change(run, "stage1", "stage2") > 100 * decay, (
        "rewards must change the weights in this demo, or this comparison shows nothing"
    )


def test_stage_2_continues_the_optimizer_and_stage_3_starts_afresh(
    killed: tuple[Path, dict[str, Any]],
) -> None:
    run, _ = killed
    assert [adam_steps(run / stage) for stage in ("stage1", "stage2", "stage3")] == [2 * 2, 2 * (2 + 5), 3]


def weight_change(run: Path, before: str, after: str) -> float:
    """The distance between two stages' weights, relative to the weights."""
    from safetensors.torch import load_file

    old, new = (load_file(run / stage / "model" / "model.safetensors") for stage in (before, after))
    squares = [((new[name] - old[name]).square().sum(), old[name].square().sum()) for name in old]
    change, size = (float(sum(column)) for column in zip(*squares, strict=True))
    return (change / size) ** 0.5
