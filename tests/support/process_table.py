"""What the kernel says of processes: which came from which, and which have ended."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress


def stat(pid: int) -> list[str]:
    """A process's state, parent and so on, as /proc/PID/stat has them; empty where there is none.

    Source: proc_pid_stat(5), from its third field.
    """
    try:
        # Tests look through the whole table thousands of times; decoding what is not needed would be most of it.
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read(1024).rpartition(b")")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends while it is read
        return []


def children(pid: int) -> list[int]:
    """The processes whose parent is this one, also those that have ended and were not waited for."""
    return _by_parent().get(pid, [])


def descendants(pid: int) -> set[int]:
    """The processes that came from one, also those that have ended and were not waited for."""
    by_parent = _by_parent()
    found: set[int] = set()
    ahead = [pid]
    while ahead:
        below = by_parent.get(ahead.pop(), [])
        found.update(below)
        ahead += below
    return found


def running(pids: Iterable[int]) -> list[int]:
    """Those that have not ended; one that was not waited for has."""
    return [pid for pid in pids if (fields := stat(pid)) and fields[0] not in "ZX"]


def session(leader: int) -> list[int]:
    """The processes of a session that have not ended."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in running(pids) if stat(pid)[3:4] == [str(leader)]]


def lower_priority(pid: int, niceness: int) -> None:
    """Of a process and all that it started or will start."""

    def lower(process: int) -> bool:
        """Whether there was something to do."""
        with suppress(ProcessLookupError):
            if os.getpriority(os.PRIO_PROCESS, process) < niceness:
                os.setpriority(os.PRIO_PROCESS, process, niceness)
                return True
        return False

    # Again while there was: one that was not lowered yet may have started another meanwhile.
    while any(lower(process) for process in (pid, *descendants(pid))):
        continue


def _by_parent() -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        if fields := stat(int(name)):
            found.setdefault(int(fields[1]), []).append(int(name))
    return found
