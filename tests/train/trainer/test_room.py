"""A checkpoint that has no room is not begun, and the missing room is told while there is time to make it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.optional import needs
from support.small_disk import small_disk

from rstar2.errors import UserError
from rstar2.train.trainer.causes import find_cause
from rstar2.train.trainer.checkpoints import POINTER
from rstar2.train.trainer.room import (
    BESIDE,
    check_room,
    folder_bytes,
    free_bytes,
    gib,
    require_room,
    warn_of_room,
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


def test_a_checkpoint_needs_room_for_all_of_it_and_a_little_more(disk: Path) -> None:
    checkpoint = disk / "checkpoints" / "global_step_20" / "actor"
    assert free_bytes(checkpoint) == DISK
    assert check_room(checkpoint, DISK - BESIDE, 20) is None
    failure = check_room(checkpoint, DISK - BESIDE + 1, 20)
    assert failure is not None
    assert "no room for the checkpoint of step 20: it needs 100 MiB, but the disk of" in failure.message
    assert "checkpoint.keep" in failure.hint
    fill(disk / "other", 30 << 20)
    assert check_room(checkpoint, DISK - BESIDE, 20) is not None
    (disk / "other").unlink()
    fill(checkpoint / "model.pt", 30 << 20)
    assert check_room(checkpoint, DISK - BESIDE, 20) is None, "what an earlier start left is replaced"


def test_the_next_checkpoint_is_as_large_as_the_last(disk: Path) -> None:
    checkpoints = disk / "checkpoints"
    assert warn_of_room(checkpoints) is None, "there is none yet"
    fill(checkpoints / "global_step_10" / "actor" / "model.pt", 40 << 20)
    (checkpoints / POINTER).write_text("10")
    assert warn_of_room(checkpoints) is None
    fill(disk / "other", 30 << 20)
    assert "the next checkpoint needs 40 MiB, but the disk of" in str(warn_of_room(checkpoints))


def test_a_start_is_refused_if_the_next_checkpoint_has_no_room(disk: Path) -> None:
    checkpoints = disk / "checkpoints"
    require_room(checkpoints)
    fill(checkpoints / "global_step_10" / "actor" / "model.pt", 40 << 20)
    (checkpoints / POINTER).write_text("10")
    require_room(checkpoints)
    fill(checkpoints / "global_step_20" / "actor" / "model.pt", 40 << 20)
    require_room(checkpoints)  # one that was cut short is written again
    (checkpoints / POINTER).write_text("20")
    with pytest.raises(
        UserError, match=r"next checkpoint needs 40 MiB, .* has 20 MiB free\. Training was not started"
    ):
        require_room(checkpoints)


@needs("torch")
def test_what_torch_says_of_a_full_disk_is_recognised(disk: Path, tmp_path: Path) -> None:
    import torch

    tensors = {str(number): torch.zeros(20 << 20, dtype=torch.uint8) for number in range(8)}
    with pytest.raises(RuntimeError) as caught:
        torch.save(tensors, disk / "model_world_size_1_rank_0.pt")
    log = tmp_path / "log"
    log.write_text(f"RuntimeError: {caught.value}\nray.exceptions.ActorDiedError: The actor died\n")
    assert "make room" in find_cause(log).remedy


def test_sizes_are_those_on_the_disk_without_what_links_lead_to(tmp_path: Path) -> None:
    fill(tmp_path / "a" / "model.pt", 1 << 20)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "actor").symlink_to(tmp_path / "a")
    assert folder_bytes(tmp_path / "a") >= 1 << 20
    assert folder_bytes(tmp_path / "b") < 1 << 12
    assert (gib(3 << 29), gib(5 << 20)) == ("1.5 GiB", "5 MiB")
