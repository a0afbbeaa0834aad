"""Tests that a checkpoint that does not fit on the disk is not begun, and that the user is warned in time."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.optional import needs
from support.small_disk import small_disk

from rstar2.errors import UserError
from rstar2.train.trainer.causes import find_cause
from rstar2.train.trainer.checkpoints import POINTER
from rstar2.train.trainer.disk_space import (
    SMALL_FILES_BYTES,
    check_disk_space,
    disk_space_warning,
    folder_bytes,
    free_bytes,
    gib,
    require_disk_space,
)

DISK = 100 << 20


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real disk of 100 MiB."""
    with small_disk(tmp_path / "disk", DISK) as folder:
        yield folder


def fill(path: Path, size: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)


def test_a_checkpoint_needs_space_for_all_of_it_and_a_little_more(disk: Path) -> None:
    checkpoint = disk / "checkpoints" / "global_step_20" / "actor"
    assert free_bytes(checkpoint) == DISK
    assert check_disk_space(checkpoint, DISK - SMALL_FILES_BYTES, 20) is None
    failure = check_disk_space(checkpoint, DISK - SMALL_FILES_BYTES + 1, 20)
    assert failure is not None
    assert (
        "not enough disk space for the checkpoint of step 20: it needs 100 MiB, but the disk of"
        in failure.message
    )
    assert "checkpoint.keep" in failure.hint
    fill(disk / "other", 30 << 20)
    assert check_disk_space(checkpoint, DISK - SMALL_FILES_BYTES, 20) is not None
    (disk / "other").unlink()
    fill(checkpoint / "model.pt", 30 << 20)
    assert check_disk_space(checkpoint, DISK - SMALL_FILES_BYTES, 20) is None, (
        "the file of an earlier start is replaced"
    )


def test_the_next_checkpoint_is_as_large_as_the_last(disk: Path) -> None:
    checkpoints = disk / "checkpoints"
    assert disk_space_warning(checkpoints) is None, "there is no checkpoint yet"
    fill(checkpoints / "global_step_10" / "actor" / "model.pt", 40 << 20)
    (checkpoints / POINTER).write_text("10")
    assert disk_space_warning(checkpoints) is None
    fill(disk / "other", 30 << 20)
    assert "the next checkpoint needs 40 MiB, but the disk of" in str(disk_space_warning(checkpoints))


def test_what_is_removed_or_unfinished_counts_as_space_for_the_next_checkpoint(disk: Path) -> None:
    """A disk of 100 MiB is enough for two checkpoints of 40 MiB, because VERL removes one before it writes the next."""
    checkpoints = disk / "checkpoints"
    for step in (10, 20):
        fill(checkpoints / f"global_step_{step}" / "actor" / "model.pt", 40 << 20)
    (checkpoints / POINTER).write_text("20")
    assert "has 20 MiB for it" in str(disk_space_warning(checkpoints))
    assert disk_space_warning(checkpoints, [checkpoints / "global_step_10" / "actor"]) is None
    shutil.rmtree(checkpoints / "global_step_10" / "actor")
    fill(checkpoints / "global_step_30" / "actor" / "model.pt", 35 << 20)
    assert disk_space_warning(checkpoints) is None, "the next checkpoint is being written"


def test_a_start_is_refused_if_the_next_checkpoint_does_not_fit(disk: Path) -> None:
    checkpoints = disk / "checkpoints"
    require_disk_space(checkpoints)
    fill(checkpoints / "global_step_10" / "actor" / "model.pt", 40 << 20)
    (checkpoints / POINTER).write_text("10")
    require_disk_space(checkpoints)
    fill(checkpoints / "global_step_20" / "actor" / "model.pt", 40 << 20)
    require_disk_space(checkpoints)  # a truncated checkpoint is written again
    (checkpoints / POINTER).write_text("20")
    with pytest.raises(UserError, match=r"needs 40 MiB, .* has 20 MiB for it\. Training was not started"):
        require_disk_space(checkpoints)


def test_a_file_that_is_removed_meanwhile_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path / "stays", 1 << 20)
    names = ["removed", "stays"]
    monkeypatch.setattr("os.walk", lambda folder: [(str(folder), [], names)])
    assert 1 << 20 <= folder_bytes(tmp_path) < 2 << 20


@needs("torch")
def test_what_torch_says_of_a_full_disk_is_recognised(disk: Path, tmp_path: Path) -> None:
    import torch

    tensors = {str(number): torch.zeros(20 << 20, dtype=torch.uint8) for number in range(8)}
    with pytest.raises(RuntimeError) as excinfo:
        torch.save(tensors, disk / "model_world_size_1_rank_0.pt")
    log = tmp_path / "log"
    log.write_text(f"RuntimeError: {excinfo.value}\nray.exceptions.ActorDiedError: The actor died\n")
    assert "free disk space" in find_cause(log).remedy


def test_sizes_are_those_on_the_disk_without_what_links_lead_to(tmp_path: Path) -> None:
    fill(tmp_path / "a" / "model.pt", 1 << 20)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "actor").symlink_to(tmp_path / "a")
    assert folder_bytes(tmp_path / "a") >= 1 << 20
    assert folder_bytes(tmp_path / "b") < 1 << 12
    assert (gib(3 << 29), gib(5 << 20)) == ("1.5 GiB", "5 MiB")
