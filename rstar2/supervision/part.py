"""A child process of a supervisor: restarted when it ends, after longer pauses if it keeps ending soon."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable

from rstar2.retry import Backoff


class Part:
    """One child process that must always run.

    Args:
        start: starts it; what it raises is raised, and a later call tries again.
        on_death: called for each process that is found dead; what it raises is raised, and no other is started.
        pauses: before a start. One that ran for `stable_s` seconds is started again after the first pause, or, with
            `at_once`, after none.
        process: the first one, if it was started already.
    """

    def __init__(
        self,
        start: Callable[[], subprocess.Popen[bytes]],
        on_death: Callable[[], None],
        pauses: Backoff,
        stable_s: float,
        at_once: bool = False,
        process: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._start = start
        self._on_death = on_death
        self.pauses = pauses
        self._stable_s = stable_s
        self._at_once = at_once
        self.process = process or start()
        self._started = time.monotonic()
        self._restart_at: float | None = None

    def restart_if_dead(self) -> None:
        """Start it again if it died and its pause is over."""
        now = time.monotonic()
        if self._restart_at is None and self.process.poll() is not None:
            self._on_death()
            if now - self._started > self._stable_s:
                self.pauses.reset(at_once=self._at_once)
            self._restart_at = now + self.pauses.next_s()
        if self._restart_at is not None and now >= self._restart_at:
            try:
                self.process = self._start()
            except BaseException:
                # The next try has its pause too, and no death of its own.
                self._restart_at = now + self.pauses.next_s()
                raise
            self._started, self._restart_at = now, None
