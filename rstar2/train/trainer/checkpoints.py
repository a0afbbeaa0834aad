"""Finds out which of VERL's checkpoints on disk are whole, where a killed stage resumes, and which to remove.

```
checkpoints/
  latest_checkpointed_iteration.txt   the step to resume from
  global_step_20/actor/               of RL; SFT has no folder actor
    model_world_size_8_rank_0.pt …    one file per rank; optim_… and extra_state_… likewise
    fsdp_config.json huggingface/     the number of ranks; the model's config and tokenizer
  global_step_20/data.pt              where in the data training is; SFT writes data_0.pt …
  global_step_20/transfer_queue/      problems that are handed out and their rollouts; asynchronous modes only
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
"""The checkpoint that a stage starts from; VERL counts its steps from 1."""
_PARTS = ("model", "optim", "extra_state")


def steps_of(checkpoints: Path) -> list[int]:
    """The steps of which there is a folder, whole or not, in order; without that of the stage before."""
    names = (folder.name.removeprefix("global_step_") for folder in checkpoints.glob("global_step_*"))
    return sorted(int(name) for name in names if name.isdigit() and int(name))


def newest_size(checkpoints: Path) -> tuple[int, int]:
    """The step of the newest folder, whole or not, and the bytes in it; 0 and 0 if there is none."""
    step = max(steps_of(checkpoints), default=0)
    size = 0
    for file in (checkpoints / f"global_step_{step}").rglob("*") if step else ():
        with suppress(FileNotFoundError):  # it was renamed meanwhile
            size += file.stat().st_size
    return step, size


def actor_of(checkpoint: Path) -> Path:
    """The folder of a checkpoint that holds the weights."""
    actor = checkpoint / "actor"
    return actor if actor.is_dir() else checkpoint


def fault(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, None for one that is whole.

    A file that was cut short lacks the index at its end, which is looked for; its other bytes are not read.
    """
    actor = actor_of(checkpoint)
    try:
        ranks = int(json.loads((actor / "fsdp_config.json").read_text(encoding="utf-8"))["world_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{actor / 'fsdp_config.json'} is missing or torn"
    files = [actor / f"{part}_world_size_{ranks}_rank_{rank}.pt" for part in _PARTS for rank in range(ranks)]
    data = sorted(checkpoint.glob("data*.pt")) or [checkpoint / "data.pt"]
    for file in [*files, *data]:
        if not file.is_file():
            return f"{file} is missing"
        if not zipfile.is_zipfile(file):
            return f"{file} is cut short"
    return _queue_fault(checkpoint / "transfer_queue")


def _queue_fault(queue: Path) -> str | None:
    """The same of VERL's queue, which is pickled; None where there is none."""
    if queue.is_dir() and not (queue / "metadata.json").is_file():
        return f"{queue / 'metadata.json'} is missing"
    for file in sorted(queue.rglob("*.pkl")):
        with file.open("rb") as opened:
            opened.seek(-min(1, file.stat().st_size), os.SEEK_END)
            if opened.read() != pickle.STOP:
                return f"{file} is cut short"
    return None


def choose_checkpoint(checkpoints: Path, warn: Callable[[str], None]) -> None:
    """Have VERL's pointer name the last checkpoint that is whole; `warn` is told of damaged ones it passes over.

    VERL writes the pointer last but not by rename, so a kill can leave it empty; and a machine that lost power may
    have lost the end of files that were written before it. A Failure where all that was finished is damaged.
    """
    pointer = checkpoints / POINTER
    if not pointer.exists():
        return
    named = pointer.read_text(encoding="utf-8").strip()
    steps = steps_of(checkpoints)
    # What is newer than the pointer says was being written when the trainer ended.
    finished = [step for step in steps if not named.isdigit() or step <= int(named)]
    for step in reversed(finished):
        wrong = fault(checkpoints / f"global_step_{step}")
        if wrong is None:
            break
        # With a torn pointer the newest may be the one that was being written: that is no damage.
        if named.isdigit():
            warn(f"the checkpoint of step {step} is damaged and is skipped: {wrong}")
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
    """The steps whose checkpoint is no longer being written, in order; none where the pointer is torn."""
    pointer = checkpoints / POINTER
    named = pointer.read_text(encoding="utf-8").strip() if pointer.exists() else ""
    return [step for step in steps_of(checkpoints) if named.isdigit() and step <= int(named)]


def saved_step(checkpoints: Path) -> int | None:
    """Returns the step after which a trainer would resume: 0 without a checkpoint, None if the pointer is torn."""
    pointer = checkpoints / POINTER
    named = pointer.read_text(encoding="utf-8").strip() if pointer.exists() else "0"
    return int(named) if named.isdigit() else None


def prune(checkpoints: Path, keep: int, spared: Collection[int] = ()) -> None:
    """Remove all but the `keep` last finished checkpoints; those of earlier starts too, which VERL forgets.

    The steps `spared` stay, and so does what is newer than the pointer says.
    """
    for step in finished_steps(checkpoints)[:-keep]:
        if step not in spared:
            shutil.rmtree(checkpoints / f"global_step_{step}", ignore_errors=True)


def last_checkpoint(checkpoints: Path) -> Path | None:
    """The one that VERL's pointer names."""
    pointer = checkpoints / POINTER
    if not pointer.exists():
        return None
    return checkpoints / f"global_step_{pointer.read_text(encoding='utf-8').strip()}"
