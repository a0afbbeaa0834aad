"""Heartbeats of workers, and `LivenessMonitor`, which finds dead workers by their heartbeats.

Each heartbeat contains a counter, `beat`, which a living worker keeps increasing. A worker counts as alive as long as
its counter changes. Therefore clocks of different machines are never compared.
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
"""A worker whose heartbeat has not changed for this many seconds counts as dead."""

WRITE_HEARTBEAT = """
local function write_heartbeat(workers, name, state)
  local now = redis.call('TIME')[1]
  redis.call('HSET', workers, name, '{"at":' .. now .. ',' .. string.sub(state, 2))
end
"""
"""Lua function that writes a heartbeat (a JSON object with at least one key) and adds the key `at`, the present Unix
time by Redis's clock."""
_HEARTBEAT = f"{WRITE_HEARTBEAT}write_heartbeat(KEYS[1], ARGV[1], ARGV[2])"


def heartbeat(worker: str, state: Mapping[str, Any]) -> Command:
    """Returns the command that writes a worker's heartbeat. `state` needs at least the keys `beat` and `isolation`."""
    return ("EVAL", _HEARTBEAT, 1, WORKERS, worker, json.dumps(state))


def read_heartbeat(text: str) -> dict[str, Any] | None:
    """Parse a heartbeat from Redis.

    Returns None if `beat` or `isolation` is missing, because a text without these keys was not written by a worker.
    """
    try:
        state = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(state, dict) or not isinstance(state.get("beat"), int):
        return None
    return state if state.get("isolation") in ISOLATION_ORDER else None


class LivenessMonitor:
    """Finds workers whose heartbeat has not changed for `DEAD_AFTER_S`.

    A long gap between two checks means that Redis or this process was paused. After a long gap, all workers count as
    alive, and `DEAD_AFTER_S` starts again for each of them.
    """

    def __init__(self) -> None:
        self._beats: dict[str, tuple[int, float]] = {}
        """Dict from worker name to a pair: the `beat` of the worker's last heartbeat, and the monotonic time at which
        this monitor first saw that `beat`."""
        self._checked = 0.0
        """Monotonic time at which `dead_workers` last checked the heartbeats."""

    def dead_workers(self, beats: Mapping[str, int], now: float) -> list[str]:
        """Record the `beat` of each worker, and return the names of dead workers.

        Args:
            beats: dict from worker name to the `beat` of the worker's last heartbeat.
            now: monotonic time in seconds at which `beats` were read.
        """
        if now - self._checked > 2.5 * CHECK_EVERY_S:
            self._beats.clear()
        self._checked = now
        self._beats = {
            name: old if (old := self._beats.get(name)) is not None and old[0] == beat else (beat, now)
            for name, beat in beats.items()
        }
        return [name for name in self._beats if self.age_s(name, now) > DEAD_AFTER_S]

    def age_s(self, worker: str, now: float) -> float:
        """Returns the seconds since a worker's heartbeat last changed, or 0 if the worker was not checked yet.

        Args:
            worker: the worker's name.
            now: the current time in monotonic seconds.
        """
        return now - self._beats[worker][1] if worker in self._beats else 0.0
