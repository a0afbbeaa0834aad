"""The processor on which a sandbox works.

A program passes from the worker to a zygote, to a fork of it and back, each time with a process asleep. Left
to itself the kernel wakes the next one on whatever processor is idle at the moment, where nothing is in the
caches: with all processors at work that costs up to a third of the throughput. So a worker and its zygotes
keep to one processor; the programs themselves are free, and are moved if they run long enough to be noticed.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable

LOOK_S, STAND_S = 1.0, 60.0
"""How long to wait between looks, and before a seat is taken again that was given up."""
BUSY, OWN, IDLE = 0.9, 0.6, 0.5
"""A processor is crowded if it is busier than the first and we take less than the second of it; one that is
idler than the third can be moved to."""
Times = dict[int, tuple[int, int]]
"""Processor → (time it was idle, time in all), in ticks since the machine started."""


def processor_times() -> Times:
    """What the kernel counts. Source: proc_stat(5)."""
    found = {}
    with open("/proc/stat") as stat:
        for line in stat:
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = [int(field) for field in fields[:8]]
                found[int(name[3:])] = (ticks[3] + ticks[4], sum(ticks))
    return found


class Seat:
    """A processor that no other worker keeps to. Use it from one thread, which it moves.

    Claims hold in one network namespace. Workers in several containers may choose the same processor, and find
    out when it is crowded: then they move, or keep to none where they cannot.

    Args:
        hall: seats of different halls may be on the same processor.
        times: tells what each processor did so far.
    """

    def __init__(self, hall: str = "judge", times: Callable[[], Times] = processor_times) -> None:
        self._hall = hall
        self._all = os.sched_getaffinity(0)
        self._times = times
        self._claim: socket.socket | None = None
        self._look_at = 0.0
        self._looked_at = 0.0
        self._used_s = 0.0
        self._before: Times = {}
        self.processor = -1
        """-1: any."""

    def look(self, used_s: float) -> int:
        """Take a processor, or leave ours where it is crowded and others are not. → the processor.

        Args:
            used_s: processor seconds that the sandbox and its programs took so far.
        """
        now = time.monotonic()
        if len(self._all) < 2 or now < self._look_at:
            return self.processor
        own = (used_s - self._used_s) / max(now - self._looked_at, 1e-9)
        self._look_at, self._looked_at, self._used_s = now + LOOK_S, now, used_s
        with contextlib.suppress(OSError, ValueError):
            self._choose(own)
        return self.processor

    def _choose(self, own: float) -> None:
        """See `look`.

        Args:
            own: the share of a processor that we took since the last look.
        """
        before, self._before = self._before, self._times()
        idle = {place: _idle_share(before.get(place), self._before.get(place)) for place in self._all}
        if self.processor < 0:
            wanted = sorted(self._all, key=lambda place: (-round(idle[place], 1), random.random()))
        elif idle[self.processor] > 1 - BUSY or own > OWN:
            return
        else:
            wanted = [place for place in self._all if idle[place] > IDLE]
            random.shuffle(wanted)
        for place in wanted:
            if (claim := _claim(self._hall, place)) is not None:
                self._move(place, claim)
                return
        if wanted and self.processor >= 0:
            # Somebody works here whom our claim does not keep away, and has claimed what is idle.
            self._look_at += STAND_S
            self.leave()

    def _move(self, place: int, claim: socket.socket) -> None:
        try:
            os.sched_setaffinity(0, {place})
        except OSError:
            claim.close()
            raise
        if self._claim is not None:
            self._claim.close()
        self.processor, self._claim = place, claim

    def leave(self) -> None:
        """Let others have the processor, and this thread any."""
        if self._claim is None:
            return
        self._claim.close()
        self.processor, self._claim = -1, None
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._all)


def _idle_share(before: tuple[int, int] | None, now: tuple[int, int] | None) -> float:
    """The share of the time between that a processor was idle; 0 where that is not known."""
    if before is None or now is None or now[1] <= before[1]:
        return 0.0
    return (now[0] - before[0]) / (now[1] - before[1])


def _claim(hall: str, place: int) -> socket.socket | None:
    """A name that one process of this network namespace can hold, and that is free again when it ends."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0rstar2-{hall}-processor-{place}")
    except OSError:
        claim.close()
        return None
    return claim
