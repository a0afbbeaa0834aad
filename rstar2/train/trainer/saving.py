"""Decides when a trainer saves besides its regular steps: when time is up, and when it is asked to stop.

A signal asks for that, or a rule of the recipe. Shared by the command line, which asks, and by the hooks in VERL's
trainers, which answer.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.train.decision import read_decision

STAGE_FOLDER = "RSTAR2_STAGE_FOLDER"
"""Environment variable of VERL's processes with the folder of the stage."""
SAVE_EVERY = "rstar2_save_every_s"
"""Added to VERL's table `trainer`: seconds between two checkpoints."""
STOP_AFTER = "rstar2_stop_after"
"""Added to SFT's table `trainer`: the step after which the trainer saves and ends; null for the last one."""
STOP_FILE = "stop_after_step"
"""In a stage's folder: the trainer is to save after the present step and then end."""


@dataclass(frozen=True)
class AtStepEnd:
    """What a trainer does at the end of a step."""

    save: bool
    stop: bool
    """It is saved then, too."""


class SaveTiming:
    """Decides at the end of each step whether it is saved although its number does not ask for it."""

    def __init__(self, folder: Path, every_s: float) -> None:
        self._folder = folder
        self._every_s = every_s
        self._saved_at = time.monotonic()

    @classmethod
    def of_config(cls, trainer: Any) -> SaveTiming:
        """The timing in VERL's table `trainer`, which `rstar2.train.command` writes."""
        return cls(Path(trainer.default_local_dir).parent, float(trainer[SAVE_EVERY]))

    def at_step_end(self, step: int) -> AtStepEnd:
        """What to do at the end of this step. A rule that has decided ends no step before its own one."""
        decision = read_decision(self._folder)
        stop = (self._folder / STOP_FILE).exists() or (decision is not None and step >= decision.step)
        return AtStepEnd(stop or time.monotonic() - self._saved_at >= self._every_s, stop)

    def saved(self) -> None:
        """Note that a checkpoint was saved just now."""
        self._saved_at = time.monotonic()
