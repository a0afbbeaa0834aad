"""Handles signals that end a run. If a trainer is running, the run ends after the trainer has saved the current step.
If no trainer is running, the run ends at once.

| signal | exit code |
|---|---|
| SIGINT (Ctrl-C) | 130 |
| SIGTERM, SIGUSR1 (sent by a scheduler) | 75 (`EX_TEMPFAIL` in sysexits.h); the same command continues the run |
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from rstar2.train.records.progress import ACTIVITY_FILE, PROGRESS_FILE, read_activity, read_progress
from rstar2.train.trainer.saving import STOP_FILE

TEMPORARY_FAILURE = 75
_SCHEDULERS = (signal.SIGTERM, signal.SIGUSR1)


def end_resumably() -> None:
    """Makes SIGTERM and SIGUSR1 end this process at once, with its children and with exit code `TEMPORARY_FAILURE`."""
    for number in _SCHEDULERS:
        signal.signal(number, lambda number, _frame: _end(number))


def _end(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(TEMPORARY_FAILURE)


class StopAfterStep:
    """A context manager. The first signal asks the trainer to save a checkpoint after the current step and then to end.

    The signals are SIGINT, SIGTERM and SIGUSR1. A second signal ends this process at once. The first signal also ends
    this process at once if the trainer has not begun a step, or if the rollouts of the current step were discarded and
    the trainer waits before it makes new rollouts. A signal that this process ignores stays ignored. For example, the
    background jobs of a script ignore SIGINT.

    Args:
        folder: the stage's folder.
        warn: called with a message to the user.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._number: int | None = None
        self._reported = False
        self._step_began_at = time.monotonic()
        self._step_s: float | None = None
        self._before: Mapping[int, Any] = {}

    def __enter__(self) -> StopAfterStep:
        (self._folder / STOP_FILE).unlink(missing_ok=True)
        numbers = [n for n in (signal.SIGINT, *_SCHEDULERS) if signal.getsignal(n) is not signal.SIG_IGN]
        self._before = {number: signal.signal(number, self._on_signal) for number in numbers}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        (self._folder / STOP_FILE).unlink(missing_ok=True)

    def step_ended(self) -> None:
        """Records the duration of the step that has just ended."""
        now = time.monotonic()
        self._step_s, self._step_began_at = now - self._step_began_at, now

    def end_if_discarded(self) -> None:
        """Ends this process if a signal has arrived and the current step has nothing to save."""
        progress = read_progress(self._folder / PROGRESS_FILE) if self._number is not None else None
        if self._number is not None and progress is not None and progress.discarded:
            self._warn(
                f"{_name(self._number)}: training ends now, because the rollouts of step {progress.step} were "
                "discarded and nothing of the step could be saved; the same command continues from the last checkpoint."
            )
            _end(self._number)

    def report(self) -> None:
        """Tells the user once how training reacts to a signal. The signal handler cannot print the message itself,
        because the handler may interrupt another print."""
        if self._number is not None and not self._reported:
            self._reported = True
            self._warn(self._text(self._number))

    def end(self) -> None:
        """Ends this process if a signal has arrived. The method is called when the trainer has ended."""
        self.report()
        if self._number is not None:
            _end(self._number)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._number is not None or not self._step_begun():
            _end(number)
        try:
            (self._folder / STOP_FILE).touch()
        except OSError:  # the trainer cannot be notified
            _end(number)
        self._number = number

    def _step_begun(self) -> bool:
        """Whether the trainer has begun a step. If so, ending now would lose work."""
        activity = read_activity(self._folder / ACTIVITY_FILE)
        return (self._folder / PROGRESS_FILE).exists() or (activity is not None and activity.in_step)

    def _text(self, number: int) -> str:
        again = "Press Ctrl-C again" if number == signal.SIGINT else "Send another signal"
        began = f"it began {_duration(time.monotonic() - self._step_began_at)} ago"
        last = f", the step before took {_duration(self._step_s)}" if self._step_s is not None else ""
        return (
            f"{_name(number)}: training saves at the end of the current step ({began}{last}) and then ends. Run the "
            f"same command to continue. {again} to end at once and lose this step."
        )


def _name(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def _duration(seconds: float) -> str:
    """Returns a duration as text, such as 40 s, 34 min or 5.8 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
