"""Finds out which of VERL's checkpoints on disk are complete, from which checkpoint a killed stage resumes, and which
checkpoints to remove.

```
checkpoints/
  latest_checkpointed_iteration.txt   the step to resume from
  global_step_20/actor/               only in RL; in SFT the files are in global_step_20/
    model_world_size_8_rank_0.pt …    one file per rank; the same for optim_… and extra_state_…
    fsdp_config.json huggingface/     the number of ranks; the model's config and tokenizer
  global_step_20/data.pt              the position in the training data; in SFT data_0.pt …
  global_step_20/transfer_queue/      problems whose rollouts have begun; only in asynchronous modes
```
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

from rstar2.errors import Failure
from rstar2.files import write_text

POINTER = "latest_checkpointed_iteration.txt"
BEFORE = "global_step_0"
"""The name of the folder with the checkpoint of an earlier stage, if the stage starts from one. VERL counts the stage's
own steps from 1."""
_PARTS = ("model", "optim", "extra_state")


def steps_of(checkpoints: Path) -> list[int]:
    """Returns the steps that have a checkpoint folder, in ascending order. Incomplete checkpoints are included. The
    folder `BEFORE` is left out."""
    names = (folder.name.removeprefix("global_step_") for folder in checkpoints.glob("global_step_*"))
    return sorted(int(name) for name in names if name.isdigit() and int(name))


def newest_size(checkpoints: Path) -> tuple[int, int]:
    """Returns the step and the size in bytes of the newest checkpoint, which may be incomplete. Returns (0, 0) if there
    is no checkpoint."""
    step = max(steps_of(checkpoints), default=0)
    size = 0
    for file in (checkpoints / f"global_step_{step}").rglob("*") if step else ():
        with suppress(FileNotFoundError):  # VERL may rename files at the same time
            size += file.stat().st_size
    return step, size


def actor_of(checkpoint: Path) -> Path:
    """Returns the subfolder of a checkpoint that contains the weights."""
    actor = checkpoint / "actor"
    return actor if actor.is_dir() else checkpoint


def fault(checkpoint: Path) -> str | None:
    """Returns text that says what is wrong with a checkpoint, or None if the checkpoint is complete.

    Only the index at the end of each file is read, because a truncated file has no index.
    """
    actor = actor_of(checkpoint)
    try:
        ranks = int(json.loads((actor / "fsdp_config.json").read_text(encoding="utf-8"))["world_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{actor / 'fsdp_config.json'} is missing or incomplete"
    files = [actor / f"{part}_world_size_{ranks}_rank_{rank}.pt" for part in _PARTS for rank in range(ranks)]
    data = sorted(checkpoint.glob("data*.pt")) or [checkpoint / "data.pt"]
    for file in [*files, *data]:
        if not file.is_file():
            return f"{file} is missing"
        if not zipfile.is_zipfile(file):
            return f"{file} is truncated"
    return _queue_fault(checkpoint / "transfer_queue")


def _queue_fault(queue: Path) -> str | None:
    """Returns text that says what is wrong with the pickled queue in a checkpoint, or None if the queue is complete or
    the checkpoint has no queue."""
    if queue.is_dir() and not (queue / "metadata.json").is_file():
        return f"{queue / 'metadata.json'} is missing"
    for path in sorted(queue.rglob("*.pkl")):
        with path.open("rb") as file:
            file.seek(-min(1, path.stat().st_size), os.SEEK_END)
            if file.read() != pickle.STOP:
                return f"{path} is truncated"
    return None


def choose_checkpoint(checkpoints: Path, warn: Callable[[str], None]) -> None:
    """Updates VERL's pointer file, so that it refers to the last complete checkpoint.

    VERL writes the pointer file after all other files of a checkpoint. VERL does not write it atomically, so a kill can
    leave it empty. After a power failure, files that were written before the pointer file may be truncated.

    Args:
        checkpoints: the folder of all checkpoints.
        warn: called with a message for each damaged checkpoint that is skipped.

    Raises:
        Failure: all finished checkpoints are damaged.
    """
    pointer = checkpoints / POINTER
    if not pointer.exists():
        return
    named = pointer.read_text(encoding="utf-8").strip()
    steps = steps_of(checkpoints)
    # Checkpoints that are newer than the pointer were being written when the trainer ended.
    finished = [step for step in steps if not named.isdigit() or step <= int(named)]
    for step in reversed(finished):
        problem = fault(checkpoints / f"global_step_{step}")
        if problem is None:
            break
        # If the pointer is incomplete, the newest checkpoint may be one that was being written. It is not damaged.
        if named.isdigit():
            warn(f"the checkpoint of step {step} is damaged and is skipped: {problem}")
    else:
        if (checkpoints / BEFORE).is_dir():
            step = 0
        elif finished and named.isdigit():
            raise Failure(
                f"every checkpoint in {checkpoints} is damaged",
                f"To start the stage again, remove {checkpoints} and run the same command.",
            )
        else:
            pointer.unlink()
            return
    if named != str(step):
        write_text(pointer, str(step))


def finished_steps(checkpoints: Path) -> list[int]:
    """Returns the steps that have a finished checkpoint, in ascending order. The list is empty if the pointer file is
    incomplete."""
    pointer = checkpoints / POINTER
    named = pointer.read_text(encoding="utf-8").strip() if pointer.exists() else ""
    return [step for step in steps_of(checkpoints) if named.isdigit() and step <= int(named)]


def saved_step(checkpoints: Path) -> int | None:
    """Returns the step of the checkpoint from which a trainer would resume.

    Returns 0 if there is no checkpoint, and None if the pointer file is incomplete.
    """
    pointer = checkpoints / POINTER
    named = pointer.read_text(encoding="utf-8").strip() if pointer.exists() else "0"
    return int(named) if named.isdigit() else None


def prune(checkpoints: Path, keep: int, spared: Collection[int] = ()) -> None:
    """Removes all finished checkpoints except the last `keep`.

    Unlike VERL, this function also removes checkpoints that were written before the trainer was started again.

    Args:
        checkpoints: the folder of all checkpoints.
        keep: number of the last checkpoints that are not removed.
        spared: steps whose checkpoints are not removed, in addition to the last `keep`.
    """
    for step in finished_steps(checkpoints)[:-keep]:
        if step not in spared:
            shutil.rmtree(checkpoints / f"global_step_{step}", ignore_errors=True)


def last_checkpoint(checkpoints: Path) -> Path | None:
    """Returns the folder of the checkpoint that VERL's pointer file refers to, or None if there is no pointer file."""
    pointer = checkpoints / POINTER
    if not pointer.exists():
        return None
    return checkpoints / f"global_step_{pointer.read_text(encoding='utf-8').strip()}"
