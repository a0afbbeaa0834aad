"""A stage's folder: what is left behind is whole, and what is there already is not done again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2.errors import UserError
from rstar2.prompts import ChatCodec
from rstar2.trace import Trace
from rstar2.train.recipe import Hardware
from rstar2.train.sampling import drop_solved
from rstar2.train.stages import (
    MAIN_METRIC,
    continue_optimizer,
    fitting,
    repair_checkpoint_pointer,
    step_metrics,
)

TRACKER = "latest_checkpointed_iteration.txt"


def sample(problem: str, number: int, right: bool) -> Trace:
    return Trace(
        problem_id=problem,
        sample=number,
        prompt_ids=[1],
        response_ids=[2],
        response_mask=[1],
        turns=[],
        finish="answer",
        verdict="correct" if right else "wrong",
    )


def row(name: str) -> dict[str, dict[str, str]]:
    return {"extra_info": {"id": name}}


def test_only_problems_solved_every_time_are_dropped() -> None:
    traces = [sample("a", n, True) for n in range(4)] + [sample("b", n, n != 2) for n in range(4)]
    kept = drop_solved([row("a"), row("b")], traces, times=4, fill=0)
    assert [item["extra_info"]["id"] for item in kept] == ["b"]


def test_solved_problems_fill_up_a_batch_that_would_be_too_small() -> None:
    traces = [sample(name, n, True) for name in "abc" for n in range(2)]
    assert len(drop_solved([row(name) for name in "abc"], traces, times=2, fill=2)) == 2


def test_a_problem_with_too_few_samples_is_named() -> None:
    with pytest.raises(UserError, match="problem b has 1 samples, 2 are needed"):
        drop_solved([row("b")], [sample("b", 0, True)], times=2, fill=0)


def test_prompts_that_are_too_long_are_left_out(codec: ChatCodec) -> None:
    rows = [{"prompt": [{"role": "user", "content": "word " * n}]} for n in (1, 600)]
    assert fitting(rows, codec, 600) == rows[:1]
    with pytest.raises(UserError, match="longer than rollout"):
        fitting(rows, codec, 3)


def test_a_stage_continues_the_optimizer_of_the_one_that_made_its_model(tmp_path: Path) -> None:
    model, folder = tmp_path / "stage1" / "model", tmp_path / "stage2"
    with pytest.raises(UserError, match="has no optimizer state beside it"):
        continue_optimizer(model, folder, Hardware(gpus_per_node=2))
    actor = tmp_path / "stage1" / "checkpoints" / "global_step_12" / "actor"
    for rank in range(2):
        actor.mkdir(parents=True, exist_ok=True)
        (actor / f"optim_world_size_2_rank_{rank}.pt").touch()
    (tmp_path / "stage1" / "checkpoints" / "global_step_9").mkdir()
    with pytest.raises(UserError, match="was not written by 8 ranks"):
        continue_optimizer(model, folder, Hardware(gpus_per_node=8))
    for _ in range(2):
        continue_optimizer(model, folder, Hardware(gpus_per_node=2))
    assert (folder / "checkpoints" / "global_step_0" / "actor").resolve() == actor
    assert (folder / "checkpoints" / TRACKER).read_text() == "0"
    # A kill that tears VERL's own pointer leads back to it; a checkpoint of the stage itself comes first.
    (folder / "checkpoints" / TRACKER).write_text("")
    repair_checkpoint_pointer(folder / "checkpoints")
    assert (folder / "checkpoints" / TRACKER).read_text() == "0"
    (folder / "checkpoints" / TRACKER).write_text("3")
    continue_optimizer(model, folder, Hardware(gpus_per_node=2))
    assert (folder / "checkpoints" / TRACKER).read_text() == "3"


@pytest.mark.parametrize("torn", ["", "1", "xyz", "9"])
def test_a_torn_pointer_is_set_to_the_last_whole_checkpoint(tmp_path: Path, torn: str) -> None:
    for step in (2, 4, 6):
        (tmp_path / f"global_step_{step}").mkdir()
    for step in (2, 4):
        (tmp_path / f"global_step_{step}" / "data.pt").touch()
    (tmp_path / TRACKER).write_text(torn)
    repair_checkpoint_pointer(tmp_path)
    assert (tmp_path / TRACKER).read_text() == "4"


def test_a_good_pointer_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "global_step_2").mkdir()
    (tmp_path / TRACKER).write_text("2")
    repair_checkpoint_pointer(tmp_path)
    assert (tmp_path / TRACKER).read_text() == "2"


def test_a_pointer_to_nothing_is_removed(tmp_path: Path) -> None:
    (tmp_path / TRACKER).write_text("7")
    repair_checkpoint_pointer(tmp_path)
    assert not (tmp_path / TRACKER).exists()


def test_metrics_of_a_resumed_stage_are_read_once_a_step(tmp_path: Path) -> None:
    def line(step: int, value: float) -> str:
        return json.dumps({"step": step, "data": {MAIN_METRIC: value}}) + "\n"

    (tmp_path / "metrics-1.jsonl").write_text(line(1, 1.0) + line(2, 2.0) + line(3, 3.0) + '{"step": 4, "da')
    (tmp_path / "metrics-2.jsonl").write_text(line(3, 30.0))
    (tmp_path / "metrics-10.jsonl").write_text(line(4, 40.0))
    validation = json.dumps({"step": 9, "data": {"val/acc": 1.0}}) + "\n"
    (tmp_path / "metrics-11.jsonl").write_text(validation)
    read = {step: data[MAIN_METRIC] for step, data in step_metrics(tmp_path).items()}
    assert read == {1: 1.0, 2: 2.0, 3: 30.0, 4: 40.0}
