"""Tests of finished rollouts on disk: which rollouts are reused after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rstar2.files import write_text
from rstar2.train.records import finished_rollouts
from rstar2.train.records.finished_rollouts import (
    FOLDER,
    Key,
    RolloutStore,
    SavedRollout,
    folder_or_none,
    forget,
    prepare,
    remove_up_to,
    step_folder,
)

KEYS: list[Key] = [("sum", 0, session) for session in range(6)]


def saved_rollout(name: str = "a", tokens: int = 3) -> SavedRollout:
    mask, logprobs = [1] * (tokens - 1) + [0], [-0.5] * tokens
    return SavedRollout([1, 151_935], list(range(tokens)), mask, logprobs, {"name": name, "é": None})


@pytest.fixture
def model(tmp_path: Path) -> str:
    write_text(tmp_path / "base" / "model.safetensors", "weights")
    return str(tmp_path / "base")


@pytest.fixture
def stage(tmp_path: Path, model: str) -> Path:
    """A stage with a checkpoint of step 4."""
    folder = tmp_path / "stage1"
    write_text(folder / "agent_loop.yaml", json.dumps([{"judge_url": "http://a", "max_turns": 10}]))
    for name in ("train.parquet", "rstar2_format.json"):
        write_text(folder / name, name)
    save_checkpoint(folder, 4)
    assert prepare(folder, model) == 0
    return folder


def save_checkpoint(stage: Path, step: int, weights: str = "weights") -> None:
    checkpoints = stage / "checkpoints"
    write_text(checkpoints / f"global_step_{step}" / "actor" / "model_world_size_1_rank_0.pt", weights)
    write_text(checkpoints / "latest_checkpointed_iteration.txt", str(step))


def begin_step(stage: Path, model: str, step: int = 5) -> RolloutStore:
    """Returns a worker's store, with the folder that one process has chosen for all workers."""
    store = RolloutStore()
    store.turn_to(step, folder_or_none(stage, step, model))
    return store


def finish(stage: Path, model: str, *keys: Key, step: int = 5, name: str = "a") -> RolloutStore:
    store = begin_step(stage, model, step)
    for key in keys:
        store.begun(step, key)
        store.finished(step, key, saved_rollout(name))
    return store


def taken_keys(stage: Path, model: str, step: int = 5) -> list[Key]:
    store = begin_step(stage, model, step)
    return [key for key in KEYS if store.take(step, key) is not None]


@pytest.mark.parametrize("with_logprobs", [True, False])
def test_a_rollout_comes_back_as_it_was_and_once(stage: Path, model: str, with_logprobs: bool) -> None:
    rollout = saved_rollout() if with_logprobs else SavedRollout([1], [2, 3], [1, 0], None, {"x": [1.5, "y"]})
    store = begin_step(stage, model)
    store.begun(5, KEYS[0])
    store.finished(5, KEYS[0], rollout)
    assert store.take(5, KEYS[0]) is None, "a start does not reuse the rollouts that it finished itself"
    assert prepare(stage, model) == 1
    store = begin_step(stage, model)
    assert store.take(5, ("sum", 1, 0)) is None, "the problem was handed out a second time in this step"
    assert store.take(5, KEYS[0]) == rollout
    assert store.take(5, KEYS[0]) is None


def test_of_those_begun_after_an_unfinished_one_none_is_used_again(
    stage: Path, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(100))
    monkeypatch.setattr(finished_rollouts.time, "time", lambda: float(next(clock)))
    one, other = begin_step(stage, model), begin_step(stage, model)
    monkeypatch.setattr(finished_rollouts.os, "getpid", lambda: 1)
    for store, key in ((one, KEYS[0]), (other, KEYS[1]), (one, KEYS[2]), (other, KEYS[3])):
        store.begun(5, key)
    for store, key in ((other, KEYS[3]), (one, KEYS[0]), (other, KEYS[1])):  # the third is long
        store.finished(5, key, saved_rollout())
    assert prepare(stage, model) == 2
    assert taken_keys(stage, model) == KEYS[:2]


def test_a_failed_rollout_does_not_keep_others_from_being_used_again(stage: Path, model: str) -> None:
    store = begin_step(stage, model)
    store.begun(5, KEYS[0])
    store.failed(5, KEYS[0])
    finish(stage, model, *(("sum", 0, session) for session in range(1, 100)))
    assert prepare(stage, model) == 99
    assert taken_keys(stage, model) == KEYS[1:]


def test_nothing_is_used_again_of_a_step_in_which_many_failed(stage: Path, model: str) -> None:
    store = finish(stage, model, *KEYS[1:])
    store.begun(5, KEYS[0])
    store.failed(5, KEYS[0])
    assert prepare(stage, model) == 0
    assert taken_keys(stage, model) == []


def test_rollouts_of_two_killed_starts_are_used_by_the_third(stage: Path, model: str) -> None:
    finish(stage, model, *KEYS[:2]).begun(5, KEYS[2])
    assert prepare(stage, model) == 2
    store = begin_step(stage, model)
    assert [store.take(5, key) is not None for key in KEYS[:3]] == [True, True, False]
    store.begun(5, KEYS[2])
    store.finished(5, KEYS[2], saved_rollout("second"))
    store.begun(5, KEYS[3])
    assert prepare(stage, model) == 3
    assert taken_keys(stage, model) == KEYS[:3]
    assert prepare(stage, model) == 3, "a start that is killed before its first rollout loses none"


def test_a_torn_end_is_ignored_at_every_byte(stage: Path, model: str) -> None:
    finish(stage, model, *KEYS[:2])
    [file] = (stage / FOLDER).glob("step-5-*/*.rollouts")
    whole = file.read_bytes()
    second = whole.index(b'["sum", 0, 1') - finished_rollouts._HEAD.size
    for end in range(second, len(whole)):
        file.write_bytes(whole[:end])
        # A record that the second rollout began, without a record of its end, means that it did not finish.
        assert prepare(stage, model) == 1
        assert taken_keys(stage, model) == KEYS[:1]
        (file.parent / finished_rollouts.REUSABLE).unlink()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert prepare(stage, model) == 1, "a record with a changed byte is not used"


def other_weights(stage: Path) -> None:
    save_checkpoint(stage, 4, "other weights")


def older_checkpoint(stage: Path) -> None:
    save_checkpoint(stage, 3)


def newer_checkpoint(stage: Path) -> None:
    save_checkpoint(stage, 5)


def rewritten_weights(stage: Path) -> None:
    os.utime(stage / "checkpoints" / "global_step_4" / "actor" / "model_world_size_1_rank_0.pt", (1, 1))


def other_loop(stage: Path) -> None:
    write_text(stage / "agent_loop.yaml", json.dumps([{"judge_url": "http://a", "max_turns": 3}]))


def other_problems(stage: Path) -> None:
    write_text(stage / "train.parquet", "others")


def other_format(stage: Path) -> None:
    write_text(stage / "rstar2_format.json", "other")


@pytest.mark.parametrize(
    "change",
    [other_weights, older_checkpoint, newer_checkpoint, rewritten_weights, other_loop, other_problems, other_format],
)  # fmt: skip
def test_nothing_is_used_again_by_other_weights_or_settings(
    stage: Path, model: str, change: Callable[[Path], None]
) -> None:
    finish(stage, model, *KEYS)
    change(stage)
    assert prepare(stage, model) == 0
    assert list((stage / FOLDER).glob("step-*")) == []
    for step in (4, 5, 6):
        assert taken_keys(stage, model, step) == []


def test_another_judge_uses_them_again(stage: Path, model: str) -> None:
    finish(stage, model, *KEYS)
    write_text(stage / "agent_loop.yaml", json.dumps([{"judge_url": "http://b", "max_turns": 10}]))
    assert prepare(stage, model) == len(KEYS)


def test_before_the_first_checkpoint_the_weights_are_the_models(stage: Path, model: str) -> None:
    (stage / "checkpoints" / "latest_checkpointed_iteration.txt").unlink()
    finish(stage, model, *KEYS, step=1)
    assert prepare(stage, model) == len(KEYS)
    assert taken_keys(stage, model, 1) == KEYS
    write_text(Path(model) / "model.safetensors", "another model")
    assert prepare(stage, model) == 0


def test_only_the_step_after_a_checkpoint_is_kept(stage: Path, model: str) -> None:
    finish(stage, model, *KEYS, step=6)
    assert list((stage / FOLDER).glob("step-*")) == []
    store = finish(stage, model, *KEYS[:1])
    save_checkpoint(stage, 5)
    store.turn_to(6, folder_or_none(stage, 6, model))
    store.begun(6, KEYS[0])
    store.failed(5, KEYS[1])  # late
    names = sorted(path.name.split("-")[1] for path in (stage / FOLDER).glob("step-*"))
    assert names == ["5", "6"]
    remove_up_to(stage, 5)
    assert [path.name.split("-")[1] for path in (stage / FOLDER).glob("step-*")] == ["6"]
    forget(stage)
    assert not (stage / FOLDER).exists()
    assert taken_keys(stage, model, 6) == []


def test_a_full_disk_ends_only_the_keeping(
    stage: Path, model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(finished_rollouts.socket, "gethostname", lambda: "host")
    folder = step_folder(stage, 5, model)
    assert folder is not None
    folder.mkdir()
    (folder / f"host-{os.getpid()}.rollouts").symlink_to("/dev/full")
    finish(stage, model, *KEYS)
    [message] = caplog.messages
    assert "finished rollouts of step 5 are no longer saved" in message
