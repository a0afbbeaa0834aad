"""Telling dead workers from slow ones, by their heartbeats."""

from __future__ import annotations

from collections.abc import Mapping

HEARTBEAT_S = 0.5
"""A worker sends one so often."""
CHECK_EVERY_S = 0.5
DEAD_AFTER_S = 3.0
STALE_S = 5.0
"""A worker whose last heartbeat is older is not counted as one that lives."""


class LivenessMonitor:
    """Calls a worker dead when its heartbeat stood still for DEAD_AFTER_S while it was checked all along.

    A gap between two checks means that the queue, or the process that checks, stood still: then nobody is called
    dead for what was not seen.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        """By worker: its last heartbeat and when that was first seen."""
        self._checked = 0.0

    def dead_workers(self, beats: Mapping[str, int], now: float) -> list[str]:
        """Take in the heartbeats' numbers as read at `now`, monotonic seconds. → the workers that are dead."""
        if now - self._checked > 2.5 * CHECK_EVERY_S:
            self._seen.clear()
        self._checked = now
        self._seen = {
            name: old if (old := self._seen.get(name)) is not None and old[0] == beat else (beat, now)
            for name, beat in beats.items()
        }
        return [name for name, (_, since) in self._seen.items() if now - since > DEAD_AFTER_S]
