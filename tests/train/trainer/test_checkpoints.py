"""Tests that a stage resumes from its last complete checkpoint, and that old checkpoints are removed."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path

import pytest
from support.commands import largest_file

from rstar2.errors import Failure
from rstar2.train.trainer.checkpoints import POINTER, choose_checkpoint, fault, prune, steps_of


def save(checkpoints: Path, step: int, ranks: int = 2) -> Path:
    """Creates a checkpoint like VERL's, with files that torch accepts as complete."""
    checkpoint = checkpoints / f"global_step_{step}"
    actor = checkpoint / "actor"
    actor.mkdir(parents=True)
    (actor / "fsdp_config.json").write_text(json.dumps({"FSDP_version": 2, "world_size": ranks}))
    files = [
        actor / f"{part}_world_size_{ranks}_rank_{rank}.pt"
        for part in ("model", "optim", "extra_state")
        for rank in range(ranks)
    ]
    for file in [*files, checkpoint / "data.pt"]:
        with zipfile.ZipFile(file, "w") as packed:
            packed.writestr("data.pkl", os.urandom(5000))
    (checkpoints / POINTER).write_text(str(step))
    return checkpoint


def save_queue(checkpoint: Path) -> Path:
    """Creates VERL's queue as an asynchronous mode saves it."""
    queue = checkpoint / "transfer_queue"
    (queue / "simple_storage").mkdir(parents=True)
    for name in ("controller_state.pkl", "simple_storage/su_0_TQ_STORAGE_UNIT_1.pkl"):
        (queue / name).write_bytes(pickle.dumps({"keys": ["a"] * 500, "status": "finished"}))
    (queue / "metadata.json").write_text("{}")
    return queue


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for step in (10, 20, 30):
        save(tmp_path, step)
    return tmp_path


def choose(checkpoints: Path) -> tuple[str, list[str]]:
    """Returns the step that VERL resumes from, and the warnings."""
    warnings: list[str] = []
    choose_checkpoint(checkpoints, warnings.append)
    return (checkpoints / POINTER).read_text(), warnings


def truncate(path: Path, share: float) -> None:
    os.truncate(path, int(share * path.stat().st_size))


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("file", ["controller_state.pkl", "simple_storage/su_0_TQ_STORAGE_UNIT_1.pkl"])
def test_a_queue_that_was_cut_short_passes_its_checkpoint_over(folder: Path, file: str, share: float) -> None:
    queue = save_queue(folder / "global_step_30")
    assert choose(folder) == ("30", [])
    truncate(queue / file, share)
    step, [warning] = choose(folder)
    assert step == "20"
    assert f"{Path(file).name} is truncated" in warning


def test_a_queue_that_was_not_written_to_its_end_passes_its_checkpoint_over(folder: Path) -> None:
    (save_queue(folder / "global_step_30") / "metadata.json").unlink()
    assert choose(folder)[0] == "20"


@pytest.mark.parametrize("share", [0.0, 0.5, 0.999])
@pytest.mark.parametrize(
    "file",
    [
        "actor/model_world_size_2_rank_1.pt",
        "actor/optim_world_size_2_rank_0.pt",
        "actor/extra_state_world_size_2_rank_1.pt",
        "data.pt",
    ],
)
def test_a_checkpoint_that_was_cut_short_is_passed_over_with_a_warning(
    folder: Path, file: str, share: float
) -> None:
    truncate(folder / "global_step_30" / file, share)
    step, [warning] = choose(folder)
    assert step == "20"
    assert "step 30 is damaged" in warning
    assert f"{Path(file).name} is truncated" in warning


def test_a_rank_whose_file_is_missing_is_noticed(folder: Path) -> None:
    (folder / "global_step_30" / "actor" / "optim_world_size_2_rank_1.pt").unlink()
    (folder / "global_step_20" / "actor" / "fsdp_config.json").write_text("{")
    step, warnings = choose(folder)
    assert step == "10"
    assert ["is missing" in warnings[0], "missing or incomplete" in warnings[1]] == [True, True]


def test_a_checkpoint_that_was_being_written_is_no_damage(folder: Path) -> None:
    truncate(save(folder, 40) / "data.pt", 0.5)
    (folder / POINTER).write_text("30")
    assert choose(folder) == ("30", [])


@pytest.mark.parametrize("torn", ["", "xyz"])
def test_a_torn_pointer_is_set_to_the_last_whole_checkpoint(folder: Path, torn: str) -> None:
    truncate(folder / "global_step_30" / "data.pt", 0.5)
    (folder / POINTER).write_text(torn)
    assert choose(folder) == ("20", [])


def test_where_all_are_damaged_the_user_decides(folder: Path) -> None:
    for step in (10, 20, 30):
        truncate(folder / f"global_step_{step}" / "data.pt", 0.5)
    with pytest.raises(Failure, match=r"every checkpoint in .* is damaged") as excinfo:
        choose(folder)
    assert f"remove {folder}" in excinfo.value.hint
    # A stage that continues the optimizer of another stage begins with that checkpoint.
    (folder / "global_step_0" / "actor").mkdir(parents=True)
    assert choose(folder)[0] == "0"


def test_a_pointer_to_nothing_is_removed(tmp_path: Path) -> None:
    (tmp_path / POINTER).write_text("7")
    choose_checkpoint(tmp_path, pytest.fail)
    assert not (tmp_path / POINTER).exists()


def test_old_checkpoints_go_whatever_start_wrote_them(folder: Path) -> None:
    (folder / "global_step_0" / "actor").mkdir(parents=True)
    (folder / "global_step_5").mkdir()
    (
        folder / "global_step_5" / "data.pt"
    ).touch()  # VERL leaves this file behind when it removes a checkpoint
    save(folder, 40)
    (folder / POINTER).write_text("30")  # 40 is being written
    prune(folder, keep=2)
    assert steps_of(folder) == [20, 30, 40]
    assert (folder / "global_step_0").is_dir()
    prune(folder, keep=1)
    assert steps_of(folder) == [30, 40]


def test_a_checkpoint_that_did_not_fit_the_disk_is_not_resumed_from(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    save(tmp_path, 10)
    actor = save(tmp_path, 20) / "actor"
    (tmp_path / POINTER).write_text("10")
    with largest_file(500_000), pytest.raises((OSError, RuntimeError)):
        torch.save({"weights": torch.randn(300_000)}, actor / "model_world_size_2_rank_0.pt")
    assert "model_world_size_2_rank_0.pt is truncated" in str(fault(tmp_path / "global_step_20"))
    assert choose(tmp_path) == ("10", [])


def test_sfts_checkpoints_are_looked_at_likewise(tmp_path: Path) -> None:
    """Checkpoints of SFT have no folder `actor`, and one file of data per rank."""
    for step in (10, 20):
        checkpoint = save(tmp_path, step)
        for file in (checkpoint / "actor").iterdir():
            file.rename(checkpoint / file.name)
        (checkpoint / "actor").rmdir()
        (checkpoint / "data.pt").rename(checkpoint / "data_0.pt")
    assert choose(tmp_path) == ("20", [])
    truncate(tmp_path / "global_step_20" / "data_0.pt", 0.5)
    assert choose(tmp_path)[0] == "10"
