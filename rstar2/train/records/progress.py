"""How far the rollouts of the present step are: a small file that the sampler replaces as they finish.

`rstar2.train.launch` knows by it that the trainer works, and `rstar2 watch` shows it.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rstar2.files import write_json

PROGRESS_FILE = "rollouts.json"
WRITE_EVERY_S = 2.0


@dataclass(frozen=True)
class RolloutProgress:
    """Of one stage's folder."""

    step: int
    finished: int
    """Rollouts of this step that are graded or failed."""
    wanted: int
    """Of how many; 0 while held-out problems are rolled out."""
    ahead: int = 0
    """Finished ones in addition, which a later step may take; asynchronous modes only."""
    judge_away_s: float = 0.0
    """Seconds that training has waited for the judge."""
    failed: int = 0
    """Of the finished ones those without a verdict, because an engine or something else failed."""
    fault: str = ""
    """What is wrong with this step's rollouts, for people; empty if nothing is."""

    def text(self) -> str:
        """For people."""
        what = f"of {self.wanted} rollouts" if self.wanted else "held-out rollouts"
        more = f", {self.ahead} ahead of it" if self.ahead else ""
        failed = f", {self.failed} of them failed" if self.failed else ""
        shown = f"step {self.step}, {self.finished} {what} finished{failed}{more}"
        return f"{shown}, judge away for {self.judge_away_s:.0f} s" if self.judge_away_s else shown


class ProgressWriter:
    """Replaces the file of a stage's folder if there is progress: every `WRITE_EVERY_S`, or at once for a new fault."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS_FILE
        self._written: RolloutProgress | None = None
        self._written_at = 0.0

    def write(self, progress: RolloutProgress) -> None:
        now = time.monotonic()
        new_fault = progress.fault and (self._written is None or progress.fault != self._written.fault)
        if progress != self._written and (new_fault or now - self._written_at >= WRITE_EVERY_S):
            with contextlib.suppress(OSError):  # a full disk must not end a step that needs none
                write_json(self._path, asdict(progress))
            self._written, self._written_at = progress, now


def read_progress(path: Path) -> RolloutProgress | None:
    """What a stage's file says; None where there is none that can be read."""
    try:
        return RolloutProgress(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


class FaultWarner:
    """Warns once of each fault that a stage's file names.

    Args:
        warn: called with the fault's text.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._warned: set[str] = set()

    def look(self) -> None:
        """Read the file, and warn if its fault is a new one."""
        progress = read_progress(self._path)
        if progress and progress.fault and progress.fault not in self._warned:
            self._warned.add(progress.fault)
            self._warn(progress.fault)


def describe(path: Path) -> str:
    """For people: the step and its rollouts; empty where nothing is known."""
    progress = read_progress(path)
    return progress.text() if progress else ""
