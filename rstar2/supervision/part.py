"""A child process of a supervisor.

The supervisor restarts the process if it ends. If the process soon ends again, the supervisor waits longer before the
next restart.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from rstar2.retry import Backoff


@dataclass(frozen=True)
class Restarts:
    """The pauses before restarts. The pauses double from `first_s` to `longest_s` seconds."""

    first_s: float
    longest_s: float
    stable_s: float
    """If the process ran for more than this many seconds, the pauses begin again with `first_s`."""
    at_once: bool = False
    """Whether a process that ran for more than `stable_s` seconds is restarted without a pause."""


class Part:
    """One child process that must always run.

    Args:
        start: starts the process. An error that `start` raises propagates to the caller, and a later call of
            `restart_if_dead` tries again.
        on_death: called each time the process ends. If `on_death` raises, the error propagates to the caller and
            nothing is restarted.
        stop_s: number of seconds within which the process has to end after a signal.
        process: the first process, if it was started already.
    """

    def __init__(
        self,
        start: Callable[[], subprocess.Popen[bytes]],
        on_death: Callable[[], None],
        restarts: Restarts,
        stop_s: float,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._start = start
        self._on_death = on_death
        self._restarts = restarts
        self.pauses = Backoff(restarts.first_s, restarts.longest_s)
        self.stop_s = stop_s
        self.process = process or start()
        self._started = time.monotonic()
        self._restart_at: float | None = None

    def restart_if_dead(self) -> None:
        """Start the process again if it ended and the pause is over."""
        now = time.monotonic()
        if self._restart_at is None and self.process.poll() is not None:
            self._on_death()
            if now - self._started > self._restarts.stable_s:
                self.pauses.reset(at_once=self._restarts.at_once)
            self._restart_at = now + self.pauses.next_s()
        if self._restart_at is not None and now >= self._restart_at:
            try:
                self.process = self._start()
            except BaseException:
                # The next attempt waits too, and `on_death` is not called again.
                self._restart_at = now + self.pauses.next_s()
                raise
            self._started, self._restart_at = now, None
