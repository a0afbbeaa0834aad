"""How long to wait before something that failed is tried again."""

from __future__ import annotations

import random


class Backoff:
    """Waits in seconds that double with each failure, from `first_s` to `longest_s`.

    Each is shortened by a share of up to `jitter` that is drawn, so that many who failed at once do not return at once.
    """

    def __init__(self, first_s: float, longest_s: float, jitter: float = 0.0) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._jitter = jitter
        self._next_s = first_s

    def reset(self, *, at_once: bool = False) -> None:
        """It worked: the next failure is a first one again, whose retry does not wait if `at_once`."""
        self._next_s = 0.0 if at_once else self._first_s

    def next_s(self) -> float:
        """Seconds to wait after one more failure."""
        wait_s = self._next_s
        self._next_s = min(max(2 * wait_s, self._first_s), self._longest_s)
        return wait_s * random.uniform(1.0 - self._jitter, 1.0)
