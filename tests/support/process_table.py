"""Reads the kernel's process table: parents, descendants, and processes that have ended."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress


def stat(pid: int) -> list[str]:
    """Return a process's state, parent and further fields of /proc/PID/stat; empty if there is no such process.

    Source: proc_pid_stat(5), from its third field.
    """
    try:
        # Tests read the whole table thousands of times, and decoding all of it would take most of the time.
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read(1024).rpartition(b")")[2].decode().split()
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends while it is read
        return []


def children(pid: int) -> list[int]:
    """Return the children of a process, including zombies."""
    return _by_parent().get(pid, [])


def descendants(pid: int) -> set[int]:
    """Return the descendants of a process, including zombies."""
    return set(parents_first(pid))


def parents_first(pid: int) -> list[int]:
    """Return the descendants of a process, including zombies. Each process comes before its children."""
    by_parent = _by_parent()
    ordered = list(by_parent.get(pid, []))
    for parent in ordered:
        # The loop visits the processes that are appended here, too.
        ordered += by_parent.get(parent, [])
    return ordered


def running(pids: Iterable[int]) -> list[int]:
    """Return the processes that have not ended. A zombie has ended."""
    return [pid for pid in pids if (fields := stat(pid)) and fields[0] not in "ZX"]


def session(leader: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return [pid for pid in running(pids) if stat(pid)[3:4] == [str(leader)]]


def lower_priority(pid: int, niceness: int) -> None:
    """Lower the priority of a process and of all of its present and future descendants."""

    def lower(process: int) -> bool:
        """Lower one process. Returns False if its priority was already low or it has ended."""
        with suppress(ProcessLookupError):
            if os.getpriority(os.PRIO_PROCESS, process) < niceness:
                os.setpriority(os.PRIO_PROCESS, process, niceness)
                return True
        return False

    # Repeat until nothing changes, because a process can start another one before its priority is lowered.
    while any(lower(process) for process in (pid, *descendants(pid))):
        continue


def _by_parent() -> dict[int, list[int]]:
    children: dict[int, list[int]] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        if fields := stat(int(name)):
            children.setdefault(int(fields[1]), []).append(int(name))
    return children
