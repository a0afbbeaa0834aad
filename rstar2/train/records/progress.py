"""How far the present step is: small files that the trainer's processes replace while they work.

`rollouts.json` counts finished rollouts; the sampler writes it. `alive.json` says what the first rank of the trainer is
doing, such as "update, 37 of 120 micro-batches"; `rstar2.train.verl.activity` writes it. `rstar2.train.launch` takes a
change of either as a sign of life, and `rstar2 watch` shows the newer one.
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
ACTIVITY_FILE = "alive.json"
WRITE_EVERY_S = 2.0
LOADING_MODEL, LOADING_CHECKPOINT = "loading the model", "loading a checkpoint"
SENDING_WEIGHTS = "weights to the engines"
_START_UP_PHASES = frozenset({LOADING_MODEL, LOADING_CHECKPOINT, SENDING_WEIGHTS})
"""Phases before the first step; weights are sent after each step too, whose rollouts have then been counted."""


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
    discarded: bool = False
    """The step's rollouts are discarded, and no others are under way: ending now would lose nothing of it."""
    failed: int = 0
    """Finished rollouts without a verdict, because an engine or something else failed."""
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
    """Replaces the file of a stage's folder if there is progress: every `WRITE_EVERY_S`.

    A new fault, and that rollouts were discarded, is written at once.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / PROGRESS_FILE
        self._written: RolloutProgress | None = None
        self._written_at = 0.0

    def write(self, progress: RolloutProgress) -> None:
        now = time.monotonic()
        before = self._written or RolloutProgress(0, 0, 0)
        new_fault = bool(progress.fault) and progress.fault != before.fault
        at_once = new_fault or progress.discarded != before.discarded
        if progress != self._written and (at_once or now - self._written_at >= WRITE_EVERY_S):
            with contextlib.suppress(OSError):  # a full disk must not end a step that needs none
                write_json(self._path, asdict(progress))
            self._written, self._written_at = progress, now


@dataclass(frozen=True)
class Activity:
    """What the first rank of a trainer is doing."""

    phase: str
    """update, log-probabilities, saving a checkpoint …"""
    done: int = 0
    """Finished parts of the phase."""
    total: int = 0
    """All parts of the phase; 0 if their number is not known."""
    parts: str = ""
    """What the parts are: micro-batches, tensors; empty for a phase that cannot be divided."""

    @property
    def in_step(self) -> bool:
        """Whether a step has certainly begun."""
        return self.phase not in _START_UP_PHASES

    def text(self) -> str:
        """For people."""
        if not self.parts:
            return self.phase
        count = f"{self.done} of {self.total}" if self.total else f"{self.done}"
        return f"{self.phase}, {count} {self.parts}"


class ActivityWriter:
    """Replaces a stage's `alive.json`: at once when a phase begins, and within it at most every `WRITE_EVERY_S`."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ACTIVITY_FILE
        self._phase = ""
        self._written_at = 0.0

    def write(self, activity: Activity) -> None:
        now = time.monotonic()
        if activity.phase != self._phase or now - self._written_at >= WRITE_EVERY_S:
            with contextlib.suppress(OSError):  # a full disk must not end a step that needs none
                write_json(self._path, asdict(activity))
            self._phase, self._written_at = activity.phase, now


def read_progress(path: Path) -> RolloutProgress | None:
    """What a stage's file says; None where there is none that can be read."""
    try:
        return RolloutProgress(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def read_activity(path: Path) -> Activity | None:
    """What a stage's `alive.json` says; None if it is missing or cannot be read."""
    try:
        return Activity(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def changed_at(path: Path) -> int:
    """When a file was last replaced, in ns; 0 if it is missing."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def current_activity(folder: Path) -> Activity | None:
    """What the trainer of a stage's folder is doing besides rollouts; None while rollouts are newer."""
    alive = folder / ACTIVITY_FILE
    return read_activity(alive) if changed_at(alive) > changed_at(folder / PROGRESS_FILE) else None


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


def describe(folder: Path) -> str:
    """For people: how far a stage's folder is, its step and what is done in it; empty if nothing is known."""
    progress, activity = read_progress(folder / PROGRESS_FILE), current_activity(folder)
    return "; ".join(each.text() for each in (progress, activity) if each)
