"""The progress of the current step, in two small files that the trainer's processes replace while they work.

`rollouts.json` has the number of finished rollouts, and is written by the sampler. `alive.json` has the activity of the
trainer's first rank, such as "update, 37 of 120 micro-batches", and is written by `rstar2.train.verl.activity`.

When `rollouts.json` or `alive.json` changes, `rstar2.train.launch` knows that the trainer is alive. `rstar2 watch`
shows `rollouts.json`, and also `alive.json` if `alive.json` is newer.
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
"""Phases that occur before the first step. The phase `SENDING_WEIGHTS` also occurs after each step."""


@dataclass(frozen=True)
class RolloutProgress:
    """The progress of the rollouts of a stage's current step. The class's fields are keys of `rollouts.json`."""

    step: int
    finished: int
    """Number of rollouts of this step that have been graded or have failed."""
    wanted: int
    """Number of rollouts that the step needs; 0 while held-out problems are rolled out."""
    ahead: int = 0
    """Number of finished rollouts beyond those of this step. A later step may use them. Only asynchronous modes have
    such rollouts."""
    judge_away_s: float = 0.0
    """Number of seconds for which training has waited for a judge that does not answer."""
    discarded: bool = False
    """True if the step's rollouts were discarded and no other rollouts are running. Training can then end without
    losing rollouts."""
    failed: int = 0
    """Number of rollouts of this step that failed and therefore have no verdict."""
    fault: str = ""
    """A message about a fault of this step's rollouts; empty if there is none."""

    def text(self) -> str:
        """Returns the progress as text for people."""
        rollouts = f"of {self.wanted} rollouts" if self.wanted else "held-out rollouts"
        ahead = f", {self.ahead} ahead of it" if self.ahead else ""
        failed = f", {self.failed} of them failed" if self.failed else ""
        text = f"step {self.step}, {self.finished} {rollouts} finished{failed}{ahead}"
        return f"{text}, judge unreachable for {self.judge_away_s:.0f} s" if self.judge_away_s else text


class ProgressWriter:
    """Writes `rollouts.json` in a stage's folder when there is progress, but at most once every `WRITE_EVERY_S`
    seconds.

    The file is written at once if there is a new fault, or if rollouts were discarded.
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
            with contextlib.suppress(OSError):  # the step needs no disk, so a full disk must not end it
                write_json(self._path, asdict(progress))
            self._written, self._written_at = progress, now


@dataclass(frozen=True)
class Activity:
    """The activity of the trainer's first rank. The class's fields are the keys of `alive.json`."""

    phase: str
    """The phase that the rank is in, such as "update", "log-probabilities" or "saving a checkpoint"."""
    done: int = 0
    """Number of finished parts of the phase."""
    total: int = 0
    """Total number of parts of the phase; 0 if the number is not known."""
    parts: str = ""
    """The kind of the phase's parts: "micro-batches" or "tensors". Empty for a phase without parts."""

    @property
    def in_step(self) -> bool:
        """Whether the first rank is within a training step. The value is False while weights are sent to the engines,
        because weights are also sent before the first step."""
        return self.phase not in _START_UP_PHASES

    def text(self) -> str:
        """Returns the activity as text for people."""
        if not self.parts:
            return self.phase
        count = f"{self.done} of {self.total}" if self.total else f"{self.done}"
        return f"{self.phase}, {count} {self.parts}"


class ActivityWriter:
    """Writes a stage's `alive.json` when a phase begins, and during the phase at most once every `WRITE_EVERY_S`
    seconds."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ACTIVITY_FILE
        self._phase = ""
        self._written_at = 0.0

    def write(self, activity: Activity) -> None:
        now = time.monotonic()
        if activity.phase != self._phase or now - self._written_at >= WRITE_EVERY_S:
            with contextlib.suppress(OSError):  # the step needs no disk, so a full disk must not end it
                write_json(self._path, asdict(activity))
            self._phase, self._written_at = activity.phase, now


def read_progress(path: Path) -> RolloutProgress | None:
    """Returns the progress in a stage's `rollouts.json`, or None if the file is missing or cannot be read."""
    try:
        return RolloutProgress(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def read_activity(path: Path) -> Activity | None:
    """Returns the activity in a stage's `alive.json`, or None if the file is missing or cannot be read."""
    try:
        return Activity(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def changed_at(path: Path) -> int:
    """Returns the time of a file's last change in nanoseconds, or 0 if the file is missing."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def current_activity(folder: Path) -> Activity | None:
    """Returns the activity in a stage's `alive.json`, or None if `rollouts.json` is newer."""
    alive = folder / ACTIVITY_FILE
    return read_activity(alive) if changed_at(alive) > changed_at(folder / PROGRESS_FILE) else None


class FaultWarner:
    """Calls `warn` once for each fault that appears in a stage's `rollouts.json`.

    Args:
        path: the stage's `rollouts.json`.
        warn: called with the message of the fault.
    """

    def __init__(self, path: Path, warn: Callable[[str], None]) -> None:
        self._path = path
        self._warn = warn
        self._warned: set[str] = set()

    def look(self) -> None:
        """Reads the file, and warns if the file has a new fault."""
        progress = read_progress(self._path)
        if progress and progress.fault and progress.fault not in self._warned:
            self._warned.add(progress.fault)
            self._warn(progress.fault)


def describe(folder: Path) -> str:
    """Returns the progress and activity of a stage as text for people; empty if nothing is known."""
    progress, activity = read_progress(folder / PROGRESS_FILE), current_activity(folder)
    return "; ".join(each.text() for each in (progress, activity) if each)
