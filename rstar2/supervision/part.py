"""A child process of a supervisor: restarted when it ends, after longer pauses if it keeps ending soon."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

from rstar2.retry import Backoff


@dataclass(frozen=True)
class Restarts:
    """When a part that died is started again: after pauses that double from `first_s` to `longest_s`."""

    first_s: float
    longest_s: float
    stable_s: float
    """A part that ran for this long is started again after the first pause."""
    at_once: bool = False
    """Such a part is started again after no pause."""


class Part:
    """One child process that must always run.

    Args:
        start: starts it. An error that it raises is passed on, and a later call tries again.
        on_death: called for each process that has died. If it raises, the error is passed on and no other is started.
        stop_s: how long it may take to end once it is asked to.
        process: the first one, if it was started already.
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
        """Start it again if it died and its pause is over."""
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
                # The next try has its pause too, and no death of its own.
                self._restart_at = now + self.pauses.next_s()
                raise
            self._started, self._restart_at = now, None
