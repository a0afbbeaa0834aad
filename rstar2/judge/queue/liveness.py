"""Heartbeats of workers, and telling dead workers from slow ones by them.

A heartbeat has a number, `beat`, which grows while the worker does its work. A worker lives while that number changes
for those who look, so that no clock of another machine counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rstar2.judge.queue.redis_connection import Command
from rstar2.judge.queue.tasks import WORKERS
from rstar2.judge.schema import ISOLATION_ORDER

HEARTBEAT_S = 0.5
"""Seconds between a worker's heartbeats."""
CHECK_EVERY_S = 0.5
DEAD_AFTER_S = 3.0
"""A worker whose heartbeat has not changed for this long is dead."""

WRITE_HEARTBEAT = """
local function write_heartbeat(workers, name, state)
  local now = redis.call('TIME')[1]
  redis.call('HSET', workers, name, '{"at":' .. now .. ',' .. string.sub(state, 2))
end
"""
"""A Lua function: writes a heartbeat, a JSON object that is not empty, with `at`, the Unix seconds of Redis."""
_HEARTBEAT = f"{WRITE_HEARTBEAT}write_heartbeat(KEYS[1], ARGV[1], ARGV[2])"


def heartbeat(worker: str, state: Mapping[str, Any]) -> Command:
    """Writes a worker's heartbeat, which has at least its number, `beat`, and its tier, `isolation`."""
    return ("EVAL", _HEARTBEAT, 1, WORKERS, worker, json.dumps(state))


def read_heartbeat(text: str) -> dict[str, Any] | None:
    """Returns a heartbeat as Redis keeps it, or None if it lacks a number or a tier: no worker wrote that."""
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(state, dict) or not isinstance(state.get("beat"), int):
        return None
    return state if state.get("isolation") in ISOLATION_ORDER else None


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
        """Take in the heartbeats' numbers as read at `now`, monotonic seconds. Returns the workers that are dead."""
        if now - self._checked > 2.5 * CHECK_EVERY_S:
            self._seen.clear()
        self._checked = now
        self._seen = {
            name: old if (old := self._seen.get(name)) is not None and old[0] == beat else (beat, now)
            for name, beat in beats.items()
        }
        return [name for name in self._seen if self.age_s(name, now) > DEAD_AFTER_S]

    def age_s(self, worker: str, now: float) -> float:
        """Seconds since a worker's heartbeat last changed, at the monotonic time `now`; 0 if it was not checked yet."""
        return now - self._seen[worker][1] if worker in self._seen else 0.0
