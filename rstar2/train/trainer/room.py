"""Whether the disk has room for the next checkpoint: asked at a start, after each step, and before VERL writes it.

Missing room is a UserError: to start again without more room would be in vain, at the price of a step.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rstar2.errors import UserError
from rstar2.train.trainer.checkpoints import finished_steps, last_checkpoint, steps_of

BESIDE = 64 << 20
"""Bytes that a checkpoint needs beside weights and optimizer state, such as the tokenizer and the data's position."""
_KEEP_FEWER = "Make room, or keep fewer checkpoints (checkpoint.keep)"


def check_room(checkpoint: Path, size: int, step: int) -> UserError | None:
    """The error of a checkpoint that has no room, else None.

    Args:
        checkpoint: the folder that it is written to. Files that are there from an earlier start are replaced.
        size: bytes of its weights and optimizer state, of all ranks.
    """
    needed, free = size + BESIDE, free_bytes(checkpoint) + folder_bytes(checkpoint)
    if needed <= free:
        return None
    return UserError(
        f"no room for the checkpoint of step {step}: it needs {gib(needed)}, but the disk of {checkpoint} has "
        f"{gib(free)} free. Nothing of it was written",
        f"{_KEEP_FEWER}.",
    )


def require_room(checkpoints: Path) -> None:
    """Raise a UserError if the next checkpoint, as large as the last one, has no room. Without a last it may have.

    A checkpoint that was begun and not finished counts as room, because its step is saved again.
    """
    begun = set(steps_of(checkpoints)) - set(finished_steps(checkpoints))
    replaced = sum(folder_bytes(checkpoints / f"global_step_{step}") for step in begun)
    if shortage := _shortage(checkpoints, replaced):
        raise UserError(
            f"{shortage}. Training was not started, because it would end before that checkpoint is written",
            f"{_KEEP_FEWER}, then run the same command: it continues from the last checkpoint.",
        )


def warn_of_room(checkpoints: Path) -> str | None:
    """A warning if the next checkpoint, as large as the last one, has no room; None if it has, or there is no last."""
    shortage = _shortage(checkpoints)
    return shortage and f"{shortage}: training will end before it is written. {_KEEP_FEWER}"


def _shortage(checkpoints: Path, replaced: int = 0) -> str | None:
    """What the next checkpoint lacks if it is as large as the last one; `replaced` bytes of the disk become free."""
    last = last_checkpoint(checkpoints)
    if last is None or not last.is_dir():
        return None
    needed, free = folder_bytes(last), free_bytes(checkpoints) + replaced
    if needed <= free:
        return None
    return f"the next checkpoint needs {gib(needed)}, but the disk of {checkpoints} has {gib(free)} free"


def free_bytes(path: Path) -> int:
    """Bytes that may be written to the disk of a folder, which need not exist yet."""
    there = next(folder for folder in [path.absolute(), *path.absolute().parents] if folder.is_dir())
    return shutil.disk_usage(there).free


def folder_bytes(folder: Path) -> int:
    """Bytes on the disk of a folder's files. What links lead to is not counted."""
    return sum(
        (Path(parent) / name).lstat().st_blocks * 512
        for parent, _, names in os.walk(folder)
        for name in names
    )


def gib(size: int) -> str:
    """Bytes for people."""
    return f"{size / (1 << 30):,.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):,.0f} MiB"
