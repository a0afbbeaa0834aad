"""Keeps a worker and its zygotes on one CPU that no other worker uses.

A program passes from the worker to a zygote, to a fork of it and back, each time with a process asleep. By
default the kernel wakes the next one on whatever CPU is idle at the moment, where nothing is in the caches.
The programs themselves may use all CPUs, and are moved if they run long enough for the scheduler to notice.

For speed only: with all CPUs busy it is worth up to a third of the throughput.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import time
from collections.abc import Callable

CHECK_INTERVAL_S = 1.0
"""Time between checks whether the CPU is crowded."""
RETRY_S = 60.0
"""Time before a CPU is chosen again after none was available."""
CROWDED_BUSY_SHARE, CROWDED_OWN_SHARE = 0.9, 0.6
"""A CPU is crowded if it is busy for more than the first share of the time, and we use less than the second."""
IDLE_SHARE = 0.5
"""A CPU that is idle for more than this share of the time can be moved to."""
CpuTimes = dict[int, tuple[int, int]]
"""CPU → (idle time, total time), in ticks since the machine started."""


def cpu_times() -> CpuTimes:
    """The kernel's counters. Source: proc_stat(5)."""
    found = {}
    with open("/proc/stat") as stat:
        for line in stat:
            name, *fields = line.split()
            if name.startswith("cpu") and name != "cpu":
                ticks = [int(field) for field in fields[:8]]
                found[int(name[3:])] = (ticks[3] + ticks[4], sum(ticks))
    return found


class CpuAffinity:
    """Chooses a CPU that no other worker has claimed. Use it from one thread, which it moves.

    Claims hold in one network namespace. Workers in several containers may choose the same CPU; they notice when
    it is crowded, and then move, or use any CPU where they cannot.

    Args:
        pool: workers of different pools may choose the same CPU.
        times: reads the counters of all CPUs.
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
        """Choose a CPU, or leave ours if it is crowded; `used_s`: CPU seconds of all programs so far. → the CPU."""
        now = time.monotonic()
        if len(self._all) < 2 or now < self._next_check:
            return self.cpu
        own_share = (used_s - self._used_s) / max(now - self._last_check, 1e-9)
        self._next_check, self._last_check, self._used_s = now + CHECK_INTERVAL_S, now, used_s
        with contextlib.suppress(OSError, ValueError):
            self._choose(own_share)
        return self.cpu

    def _choose(self, own_share: float) -> None:
        before, self._before = self._before, self._times()
        idle = {cpu: _idle_share(before.get(cpu), self._before.get(cpu)) for cpu in self._all}
        if self.cpu < 0:
            wanted = sorted(self._all, key=lambda cpu: (-round(idle[cpu], 1), random.random()))
        elif idle[self.cpu] > 1 - CROWDED_BUSY_SHARE or own_share > CROWDED_OWN_SHARE:
            return
        else:
            wanted = [cpu for cpu in self._all if idle[cpu] > IDLE_SHARE]
            random.shuffle(wanted)
        for cpu in wanted:
            if (claim := _claim_cpu(self._pool, cpu)) is not None:
                self._move(cpu, claim)
                return
        if wanted and self.cpu >= 0:
            # Something that our claim does not keep away works here, and every idle CPU is claimed.
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
        """Give up the CPU; this thread may then use any."""
        if self._claim is None:
            return
        self._claim.close()
        self.cpu, self._claim = -1, None
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, self._all)


def _idle_share(before: tuple[int, int] | None, now: tuple[int, int] | None) -> float:
    """The share of the time between that a CPU was idle; 0 where that is unknown."""
    if before is None or now is None or now[1] <= before[1]:
        return 0.0
    return (now[0] - before[0]) / (now[1] - before[1])


def _claim_cpu(pool: str, cpu: int) -> socket.socket | None:
    """Bind a name that one process of this network namespace can hold, and that is free again when it ends."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0rstar2-{pool}-processor-{cpu}")
    except OSError:
        claim.close()
        return None
    return claim
