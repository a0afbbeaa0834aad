"""What a signal does to a run: it ends at once, or, while a trainer works, after the present step is saved.

| signal | exit code |
|---|---|
| SIGINT (Ctrl-C) | 130 |
| SIGTERM, SIGUSR1: a scheduler's | 75, `EX_TEMPFAIL` of sysexits.h: the same command continues |
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
    """From now on SIGTERM and SIGUSR1 end this process at once with `TEMPORARY_FAILURE`, children stopped."""
    for number in _SCHEDULERS:
        signal.signal(number, lambda number, _frame: _end(number))


def _end(number: int) -> NoReturn:
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(TEMPORARY_FAILURE)


class StopAfterStep:
    """While the block runs, a first signal asks the trainer to save after the present step and to end.

    A second signal ends at once. So does the first if the trainer has begun no step yet, or its step's rollouts are
    discarded and it waits before it makes others. The signals are SIGINT, SIGTERM and SIGUSR1; one that is ignored, as
    SIGINT is in a script's background jobs, stays ignored.

    Args:
        folder: the stage's.
        warn: tells the user what happens.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        self._folder = folder
        self._warn = warn
        self._number: int | None = None
        self._told = False
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
        """Note how long a step takes."""
        now = time.monotonic()
        self._step_s, self._step_began_at = now - self._step_began_at, now

    def end_if_discarded(self) -> None:
        """End this process if a signal asked for it and the present step has nothing that could be saved."""
        progress = read_progress(self._folder / PROGRESS_FILE) if self._number is not None else None
        if self._number is not None and progress is not None and progress.discarded:
            self._warn(
                f"{_name(self._number)}: training ends now, because the rollouts of step {progress.step} were "
                "discarded and nothing of it could be saved; the same command continues from the last checkpoint."
            )
            _end(self._number)

    def tell(self) -> None:
        """Say once what a signal has led to; apart from the handler, which may come in the middle of a print."""
        if self._number is not None and not self._told:
            self._told = True
            self._warn(self._text(self._number))

    def end(self) -> None:
        """End this process if a signal asked for it; called when the trainer has ended."""
        self.tell()
        if self._number is not None:
            _end(self._number)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._number is not None or not self._step_begun():
            _end(number)
        try:
            (self._folder / STOP_FILE).touch()
        except OSError:  # the trainer cannot be asked
            _end(number)
        self._number = number

    def _step_begun(self) -> bool:
        """Whether the trainer has done anything that ending now would lose."""
        activity = read_activity(self._folder / ACTIVITY_FILE)
        return (self._folder / PROGRESS_FILE).exists() or (activity is not None and activity.in_step)

    def _text(self, number: int) -> str:
        again = "Press Ctrl-C again" if number == signal.SIGINT else "Send another signal"
        began = f"it began {_duration(time.monotonic() - self._step_began_at)} ago"
        last = f", the one before it took {_duration(self._step_s)}" if self._step_s is not None else ""
        return (
            f"{_name(number)}: training saves at the end of the present step ({began}{last}) and then ends; the same "
            f"command continues. {again} to end at once and lose this step."
        )


def _name(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def _duration(seconds: float) -> str:
    """For people: 40 s, 34 min, 5.8 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
