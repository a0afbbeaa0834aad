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

CHECK_INTERVAL_S, RETRY_S = 1.0, 60.0
"""How long to wait between looks, and before a seat is taken again that was given up."""
BUSY_SHARE, OWN_SHARE, IDLE_SHARE = 0.9, 0.6, 0.5
"""A processor is crowded if it is busier than the first and we take less than the second of it; one that is
idler than the third can be moved to."""
CpuTimes = dict[int, tuple[int, int]]
"""Processor → (time it was idle, time in all), in ticks since the machine started."""


def cpu_times() -> CpuTimes:
    """What the kernel counts. Source: proc_stat(5)."""
    found = {}
    with open("/proc/stat") as stat:
        for line in stat:
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = [int(field) for field in fields[:8]]
                found[int(name[3:])] = (ticks[3] + ticks[4], sum(ticks))
    return found


class CpuAffinity:
    """A processor that no other worker keeps to. Use it from one thread, which it moves.

    Claims hold in one network namespace. Workers in several containers may choose the same processor, and find
    out when it is crowded: then they move, or keep to none where they cannot.

    Args:
        hall: seats of different halls may be on the same processor.
        times: tells what each processor did so far.
    """

    def __init__(self, pool: str = "judge", times: Callable[[], CpuTimes] = cpu_times) -> None:
        self._pool = pool
        self._all = os.sched_getaffinity(0)
        self._times = times
        self._claim: socket.socket | None = None
        self._next_check = 0.0
        self._last_check = 0.0
        self._used_s = 0.0
        self._before: CpuTimes = {}
        self.cpu = -1
        """-1: any."""

    def update(self, used_s: float) -> int:
        """Take a processor, or leave ours where it is crowded and others are not. → the processor.

        Args:
            used_s: processor seconds that the sandbox and its programs took so far.
        """
        now = time.monotonic()
        if len(self._all) < 2 or now < self._next_check:
            return self.cpu
        own = (used_s - self._used_s) / max(now - self._last_check, 1e-9)
        self._next_check, self._last_check, self._used_s = now + CHECK_INTERVAL_S, now, used_s
        with contextlib.suppress(OSError, ValueError):
            self._choose(own)
        return self.cpu

    def _choose(self, own: float) -> None:
        """See `look`.

        Args:
            own: the share of a processor that we took since the last look.
        """
        before, self._before = self._before, self._times()
        idle = {cpu: _idle_share(before.get(cpu), self._before.get(cpu)) for cpu in self._all}
        if self.cpu < 0:
            wanted = sorted(self._all, key=lambda cpu: (-round(idle[cpu], 1), random.random()))
        elif idle[self.cpu] > 1 - BUSY_SHARE or own > OWN_SHARE:
            return
        else:
            wanted = [cpu for cpu in self._all if idle[cpu] > IDLE_SHARE]
            random.shuffle(wanted)
        for cpu in wanted:
            if (claim := _claim_cpu(self._pool, cpu)) is not None:
                self._move(cpu, claim)
                return
        if wanted and self.cpu >= 0:
            # Somebody works here whom our claim does not keep away, and has claimed what is idle.
            self._next_check += RETRY_S
            self.release()

    def _move(self, cpu: int, claim: socket.socket) -> None:
        try:
            os.sched_setaffinity(0, {cpu})
        except OSError:
            claim.close()
            raise
        if self._claim is not None:
            self._claim.close()
        self.cpu, self._claim = cpu, claim

    def release(self) -> None:
        """Let others have the processor, and this thread any."""
        if self._claim is None:
            return
        self._claim.close()
        self.cpu, self._claim = -1, None
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._all)


def _idle_share(before: tuple[int, int] | None, now: tuple[int, int] | None) -> float:
    """The share of the time between that a processor was idle; 0 where that is not known."""
    if before is None or now is None or now[1] <= before[1]:
        return 0.0
    return (now[0] - before[0]) / (now[1] - before[1])


def _claim_cpu(pool: str, cpu: int) -> socket.socket | None:
    """A name that one process of this network namespace can hold, and that is free again when it ends."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0rstar2-{pool}-processor-{cpu}")
    except OSError:
        claim.close()
        return None
    return claim
