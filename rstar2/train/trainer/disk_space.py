"""Compares the free disk space with the size of the next checkpoint: before training starts, after each step, and
before a checkpoint is saved.

If there is not enough space, a UserError is raised, because training is not restarted automatically after a UserError.
A restarted trainer would run another step and fail again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from rstar2.errors import UserError
from rstar2.train.trainer.checkpoints import last_checkpoint, saved_step, steps_of

SMALL_FILES_BYTES = 64 << 20
"""Number of bytes that are reserved for the small files of a checkpoint, such as the tokenizer. The weights and the
optimizer state are counted separately."""
_REMEDY = "Free disk space, or keep fewer checkpoints (checkpoint.keep)"


def check_disk_space(checkpoint: Path, size: int, step: int) -> UserError | None:
    """Returns an error if a checkpoint does not fit on the disk, or None if the checkpoint fits.

    Args:
        checkpoint: the checkpoint's folder. Files that are already in this folder will be replaced, so their space
            counts as free.
        size: number of bytes of the weights and optimizer states of all ranks.
        step: the checkpoint's step, for the message.
    """
    needed, free = size + SMALL_FILES_BYTES, free_bytes(checkpoint) + folder_bytes(checkpoint)
    if needed <= free:
        return None
    return UserError(
        f"not enough disk space for the checkpoint of step {step}: it needs {gib(needed)}, but the disk of "
        f"{checkpoint} has {gib(free)} free. The checkpoint was not written",
        f"{_REMEDY}.",
    )


def require_disk_space(checkpoints: Path) -> None:
    """Raises a UserError if the next checkpoint does not fit on the disk. Assumes that it is as large as the last
    checkpoint."""
    if shortage := _shortage(checkpoints):
        raise UserError(
            f"{shortage}. Training was not started, because it would end before that checkpoint is written",
            f"{_REMEDY}, then run the same command: it continues from the last checkpoint.",
        )


def disk_space_warning(checkpoints: Path, removed_first: Collection[Path] = ()) -> str | None:
    """Returns a warning if the next checkpoint does not fit on the disk. Assumes that it is as large as the last
    checkpoint.

    Returns None if the next checkpoint fits or if there is no checkpoint yet. The space of an unfinished checkpoint
    counts as free, because the next checkpoint replaces it.

    Args:
        checkpoints: the folder of all checkpoints.
        removed_first: folders that VERL removes before it writes the next checkpoint, so the space of these folders
            counts as free.
    """
    shortage = _shortage(checkpoints, removed_first)
    return shortage and f"{shortage}: training will end before it is written. {_REMEDY}"


def _shortage(checkpoints: Path, removed_first: Collection[Path] = ()) -> str | None:
    last, saved = last_checkpoint(checkpoints), saved_step(checkpoints)
    if last is None or saved is None or not last.is_dir():
        return None
    unfinished = [checkpoints / f"global_step_{step}" for step in steps_of(checkpoints) if step > saved]
    needed = folder_bytes(last)
    free = free_bytes(checkpoints) + sum(folder_bytes(folder) for folder in (*unfinished, *removed_first))
    if needed <= free:
        return None
    return f"the next checkpoint needs {gib(needed)}, but the disk of {checkpoints} has {gib(free)} for it"


def free_bytes(path: Path) -> int:
    """Returns the number of free bytes on the disk that contains a folder. The folder itself need not exist yet."""
    existing = next(folder for folder in [path.absolute(), *path.absolute().parents] if folder.is_dir())
    return shutil.disk_usage(existing).free


def folder_bytes(folder: Path) -> int:
    """Returns the number of bytes that the files in a folder take up on the disk. The targets of symbolic links are not
    counted."""
    size = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # VERL may remove files at the same time
                size += (Path(parent) / name).lstat().st_blocks * 512
    return size


def gib(size: int) -> str:
    """Returns a number of bytes as text, in GiB or MiB."""
    return f"{size / (1 << 30):,.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):,.0f} MiB"
