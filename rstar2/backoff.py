"""How long to wait before something that failed is tried again."""

from __future__ import annotations


class Backoff:
    """Waits in seconds that double with each failure, from `first_s` to `longest_s`."""

    def __init__(self, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._next_s = first_s

    def reset(self, *, at_once: bool = False) -> None:
        """It worked: the next failure is a first one again, whose retry does not wait if `at_once`."""
        self._next_s = 0.0 if at_once else self._first_s

    def next_s(self) -> float:
        """Seconds to wait after one more failure."""
        wait_s = self._next_s
        self._next_s = min(max(2 * wait_s, self._first_s), self._longest_s)
        return wait_s
