"""Kills a training in the middle, as a power failure would."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from support.waiting import TIMEOUT_S, wait_until

from rstar2.train.records.steps import step_metrics
from rstar2.train.trainer.checkpoints import saved_step

LONGEST_S = 1800.0
"""Seconds within which the condition for a kill must hold, on a busy machine."""


def kill_once(
    command: Sequence[str], condition: Callable[[], object], output: Path, cwd: Path | None = None
) -> None:
    """Start a command, and kill it once the condition holds. Its output goes to a file.

    Raises:
        AssertionError: The command ended before the kill, or the condition did not hold within `LONGEST_S`.
    """
    with output.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, cwd=cwd)
        try:
            wait_until(lambda: condition() or process.poll() is not None, LONGEST_S)
            assert process.poll() is None, output.read_text()[-3000:]
        finally:
            process.kill()
            process.wait(TIMEOUT_S)


def kill_after_checkpoint(
    command: Sequence[str], stage: Path, step: int, last_step: int, output: Path, cwd: Path | None = None
) -> None:
    """Start a training, and kill it once its stage has a checkpoint of `step`, but not yet one of `last_step`.

    The kill waits for the step's metrics, which VERL writes after the checkpoint.
    """

    def checkpoint_step() -> int:
        return saved_step(stage / "checkpoints") or 0

    kill_once(command, lambda: checkpoint_step() >= step and step in step_metrics(stage), output, cwd)
    assert step <= checkpoint_step() < last_step, "the kill came before the last step"
