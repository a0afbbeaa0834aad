"""Decides when a trainer saves a checkpoint outside its regular schedule: when enough time has passed, and before the
trainer stops early.

A signal or a rule of the recipe (`rstar2.train.rules`) can stop a trainer early. The command line uses this module to
request the stop, and the hooks in VERL's trainers use it to save a checkpoint and stop.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.train.decision import read_decision

STAGE_FOLDER = "RSTAR2_STAGE_FOLDER"
"""The environment variable that contains the stage's folder, for VERL's processes."""
SAVE_EVERY = "rstar2_save_every_s"
"""A key that rstar2 adds to VERL's table `trainer`: the number of seconds between two checkpoints."""
STOP_AFTER = "rstar2_stop_after"
"""A key that rstar2 adds to the table `trainer` of SFT: the step after which the trainer saves a checkpoint and ends.
The value null means the last step."""
STOP_FILE = "stop_after_step"
"""The name of a file in a stage's folder. If the file exists, the trainer saves a checkpoint after the current step and
then exits."""


@dataclass(frozen=True)
class AtStepEnd:
    """The decisions at the end of a step: whether the trainer saves a checkpoint, and whether training ends."""

    save: bool
    """Whether the trainer saves a checkpoint."""
    stop: bool
    """Whether training ends after this step. If it ends, the trainer also saves a checkpoint."""


class SaveTiming:
    """Decides at the end of each step whether the trainer saves a checkpoint outside its regular schedule, and whether
    training ends.

    Args:
        folder: the stage's folder.
        every_s: number of seconds between two checkpoints.
    """

    def __init__(self, folder: Path, every_s: float) -> None:
        self._folder = folder
        self._every_s = every_s
        self._saved_at = time.monotonic()

    @classmethod
    def of_config(cls, trainer: Any) -> SaveTiming:
        """Creates a `SaveTiming` from the table `trainer` of VERL's config, which `rstar2.train.command` writes."""
        return cls(Path(trainer.default_local_dir).parent, float(trainer[SAVE_EVERY]))

    def at_step_end(self, step: int) -> AtStepEnd:
        """Returns what the trainer does at the end of a step. If a rule of the recipe has decided to stop after a
        certain step, training ends at this step or at the first step after it."""
        decision = read_decision(self._folder)
        stop = (self._folder / STOP_FILE).exists() or (decision is not None and step >= decision.step)
        return AtStepEnd(stop or time.monotonic() - self._saved_at >= self._every_s, stop)

    def saved(self) -> None:
        """Records that a checkpoint has just been saved."""
        self._saved_at = time.monotonic()
