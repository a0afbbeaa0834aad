"""Loaded into every VERL process: trackers count steps over all stages; our own file counts those of its stage."""

from __future__ import annotations

import os
from typing import Any

from verl.utils.tracking import Tracking

FIRST_STEP = "RSTAR2_FIRST_STEP"
"""Environment variable with the number of steps of the stages before, for VERL counts every stage's from 1."""
_OWN = "file"


def _log(self: Any, data: dict[str, Any], step: int, backend: Any = None) -> None:
    """Stands in for VERL's `Tracking.log`."""
    # Read here: a forked process has imported this module before it got its environment.
    first = int(os.environ.get(FIRST_STEP, "0"))
    for name, tracker in self.logger.items():
        if backend is None or name in backend:
            tracker.log(data=data, step=step if name == _OWN else step + first)


Tracking.log = _log
