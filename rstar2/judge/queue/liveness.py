"""Telling dead workers from slow ones, by their heartbeats."""

from __future__ import annotations

from collections.abc import Mapping

DEAD_AFTER_S = 3.0
CHECK_EVERY_S = 0.5


class LivenessMonitor:
    """Calls a worker dead when its heartbeat stood still for DEAD_AFTER_S while it was looked at all along.

    A gap between two looks means that it was the queue, or the one who looks, that stood still: then nobody
    is called dead for what was not seen.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, float]] = {}
        """By worker: its last heartbeat and when that was first seen."""
        self._looked = 0.0

    def look(self, beats: Mapping[str, int], now: float) -> list[str]:
        """Take in what was seen at `now`, monotonic seconds. → the workers that are dead."""
        if now - self._looked > 2.5 * CHECK_EVERY_S:
            self._seen.clear()
        self._looked = now
        self._seen = {
            name: old if (old := self._seen.get(name)) is not None and old[0] == beat else (beat, now)
            for name, beat in beats.items()
        }
        return [name for name, (_, since) in self._seen.items() if now - since > DEAD_AFTER_S]
