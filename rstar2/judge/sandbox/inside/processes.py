"""Reads from /proc what a program's processes use, and keeps many of them to the processor share of one."""

from __future__ import annotations

import os
import resource
import time

from rstar2.judge.sandbox.inside import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TICKS = os.sysconf("SC_CLK_TCK")
_READ = {"x86_64": "0", "aarch64": "63"}[os.uname().machine]
"""The number of read(2)."""
_FREE_TASKS = 4
"""Tasks of a program that may compute at once before their share is bounded."""
_STILL = (b"T", b"t", b"Z", b"X", b"D")
"""States of a task that runs no code of its program once SIGSTOP was sent. One that waits in the kernel (D) stops when
it leaves that."""
_NICE_STEP, _MAX_NICE = 1.25, 19
"""A step of niceness divides a task's share by about this. Source: sched(7)."""
_MOST_TASKS = 1 << 22
"""More than the kernel ever has. Source: PID_MAX_LIMIT."""


def children(pid: int) -> set[int]:
    """The children of all threads of a process, ended ones included."""
    found: set[int] = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as listed:
            found.update(map(int, listed.read().split()))
    return found


def descendants(pids: Iterable[int]) -> list[int]:
    """The processes below some, ended ones included that nobody waited for; those that vanish are left out."""
    found: list[int] = []
    ahead = list(pids)
    while ahead:
        try:
            below = children(ahead.pop())
        except OSError:
            continue
        found += below
        ahead += below
    return found


def count_tasks() -> int:
    """The threads of all processes that this /proc shows."""
    found = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                # A folder for each thread, besides `.` and the name itself.
                found += os.stat(f"/proc/{name}/task").st_nlink - 2
            except OSError:
                continue
    return found


def count_user_tasks() -> int | None:
    """The processes and threads of this process's user, as the kernel counts them; None if it does not limit them.

    That is those in other containers too, which no /proc here shows. Found by trying under which limit one more can be
    started, which takes about a millisecond.
    """
    before, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    too_few, enough = 1, _MOST_TASKS if hard == resource.RLIM_INFINITY else hard

    def can_start_under(limit: int) -> bool:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, hard))
        return syscalls.can_start_process()

    try:
        # This process alone is one.
        if can_start_under(1):
            return None
        while enough - too_few > 1:
            limit = (too_few + enough) // 2
            if can_start_under(limit):
                enough = limit
            else:
                too_few = limit
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (before, hard))
    return too_few


def open_files(pid: int) -> Iterator[os.stat_result]:
    """What each descriptor of a process refers to; those that it closes meanwhile are left out."""
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for fd in fds:
        try:
            yield os.stat(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue


def cpu_seconds(pids: Iterable[int]) -> float:
    """CPU seconds of processes, and of the children that each has waited for."""
    ticks = 0
    for pid in pids:
        try:
            ticks += sum(map(int, _stat_fields(f"/proc/{pid}/stat")[11:15]))
        except OSError:
            continue
    return ticks / _TICKS


def precise_cpu_seconds(pid: int) -> float:
    """CPU seconds of one process, exactly, and of the children that it has waited for, in ticks."""
    own = own_cpu_seconds(pid)
    try:
        fields = _stat_fields(f"/proc/{pid}/stat")
    except OSError:  # it hides
        return own
    return own + (int(fields[13]) + int(fields[14])) / _TICKS


def own_cpu_seconds(pid: int) -> float:
    """CPU seconds of a living process itself."""
    # The clock id of another process, as the C library's clock_getcpuclockid makes it.
    return time.clock_gettime(~pid << 3 | 2)


def group_cpu_seconds(fd: int) -> float:
    """CPU seconds of a control group, from its cpuacct.usage (version 1) or cpu.stat (version 2)."""
    fields = os.pread(fd, 64, 0).split()
    return int(fields[1]) / 1e6 if fields[0] == b"usage_usec" else int(fields[0]) / 1e9


def waits_for_cell(pid: int) -> bool:
    """Whether a session's first thread is in read(3, …); True where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/syscall") as call:
            return call.read().split()[:2] == [_READ, "0x3"]
    except (FileNotFoundError, PermissionError):
        return True


def count_computing(pids: Iterable[int]) -> int:
    """How many tasks of these processes run, or wait for a processor."""
    return sum(state == b"R" for pid in pids for state in _task_states(pid))


def cpu_of_stopped(pids: Iterable[int]) -> dict[int, float] | None:
    """The CPU seconds of processes that are all stopped or dead, by process; None if any task of them may run."""
    used = {}
    for pid in pids:
        if not all(state in _STILL for state in _task_states(pid)):
            return None
        try:
            used[pid] = own_cpu_seconds(pid)
        except OSError:  # it has ended
            continue
    return used


def _task_states(pid: int) -> list[bytes]:
    """The states of a process's threads; those that have ended meanwhile are left out."""
    states = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            states.append(_stat_fields(f"/proc/{pid}/task/{task}/stat")[0])
    except OSError:
        # A thread has ended: the others may go on.
        states.append(b"R" if os.path.exists(f"/proc/{pid}") else b"X")
    return states


def bound_share(pids: Iterable[int]) -> None:
    """Where more than a few tasks of these processes compute, give them together the weight of one.

    Only the niceness is raised, which needs no rights. Tasks that wait get it too, because what they start inherits
    it: a program could otherwise have ever new processes that were not seen yet.
    """
    tasks = []
    computing = 0
    for pid in pids:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):
                fields = _stat_fields(f"/proc/{pid}/task/{task}/stat")
                tasks.append((int(task), int(fields[16])))
                computing += fields[0] == b"R"
        except OSError:
            continue
    if computing <= _FREE_TASKS:
        return
    nice = 0
    while nice < _MAX_NICE and _NICE_STEP**nice < computing:
        nice += 1
    for task_id, before in tasks:
        if before < nice:
            try:
                os.setpriority(os.PRIO_PROCESS, task_id, nice)
            except (ProcessLookupError, PermissionError):  # it has ended, or niced itself further meanwhile
                continue


def _stat_fields(path: str) -> list[bytes]:
    """The fields of proc_pid_stat(5) from the third on: 0 is the state, 11 and 12 are a process's own times, 13 and
    14 those of its children, 16 is its niceness."""
    # Not as text: the second field is a name that a program chooses, of any bytes.
    with open(path, "rb") as stat:
        return stat.read().rsplit(b")", 1)[1].split()
