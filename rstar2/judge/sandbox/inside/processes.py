"""Reads the resource use of a program's processes from /proc, and limits their CPU share."""

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
"""The system call number of read(2)."""
_FREE_TASKS = 4
"""A program keeps its normal CPU priority if at most this many of its tasks compute at the same time."""
_STOPPED_STATES = (b"T", b"t", b"Z", b"X", b"D")
"""Task states. After SIGSTOP was sent, a task in one of these states runs no code of its program. A task that waits in
the kernel (D) stops as soon as it returns from the kernel."""
_NICE_STEP, _MAX_NICE = 1.25, 19
"""Each increase of the niceness by 1 divides a task's CPU share by about _NICE_STEP. Source: sched(7)."""
_MAX_TASKS = 1 << 22
"""Maximum number of tasks that the kernel supports. Source: PID_MAX_LIMIT."""


def children(pid: int) -> set[int]:
    """Returns the ids of the children of all threads of a process.

    Children that have ended but were not reaped are included.
    """
    pids: set[int] = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as file:
            pids.update(map(int, file.read().split()))
    return pids


def descendants(pids: Iterable[int]) -> list[int]:
    """Returns the ids of all descendants of some processes.

    Descendants that have ended but were not reaped are included. If a process vanishes during the search, its
    descendants are missing.
    """
    all_below: list[int] = []
    unvisited = list(pids)
    while unvisited:
        try:
            below = children(unvisited.pop())
        except OSError:
            continue
        all_below += below
        unvisited += below
    return all_below


def count_tasks() -> int:
    """Returns the number of threads of all processes that /proc shows to this process."""
    count = 0
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                # The link count of the folder is 2 plus the number of its subfolders, one for each thread.
                count += os.stat(f"/proc/{name}/task").st_nlink - 2
            except OSError:
                continue
    return count


def count_user_tasks() -> int | None:
    """Returns the number of processes and threads of this process's user, as the kernel counts them for limits.

    Returns None if the kernel does not limit the processes of this user. The count includes processes in other
    containers, which /proc does not show. The function finds the number by searching for the lowest limit under which
    one more process can start. The search takes about a millisecond.
    """
    limit_before, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    too_low, high_enough = 1, _MAX_TASKS if hard == resource.RLIM_INFINITY else hard

    def can_start_under(limit: int) -> bool:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, hard))
        return syscalls.can_start_process()

    try:
        # Under a limit of 1, the kernel allows no second process. If one can start, this user is not limited.
        if can_start_under(1):
            return None
        while high_enough - too_low > 1:
            limit = (too_low + high_enough) // 2
            if can_start_under(limit):
                high_enough = limit
            else:
                too_low = limit
    finally:
        resource.setrlimit(resource.RLIMIT_NPROC, (limit_before, hard))
    return too_low


def open_files(pid: int) -> Iterator[os.stat_result]:
    """Yield the status of each file that a process has open.

    A file that the process closes during the search is left out.
    """
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
    """Returns the sum of the CPU seconds of some processes and of the children for which they have waited."""
    ticks = 0
    for pid in pids:
        try:
            ticks += sum(map(int, _stat_fields(f"/proc/{pid}/stat")[11:15]))
        except OSError:
            continue
    return ticks / _TICKS


def precise_cpu_seconds(pid: int) -> float:
    """Returns the CPU seconds of one process and of the children for which it has waited.

    The process's own CPU time is exact. The CPU time of the children is a multiple of the kernel's clock tick.
    """
    own = own_cpu_seconds(pid)
    try:
        fields = _stat_fields(f"/proc/{pid}/stat")
    except OSError:  # the process is hidden in this /proc
        return own
    return own + (int(fields[13]) + int(fields[14])) / _TICKS


def own_cpu_seconds(pid: int) -> float:
    """Returns the CPU seconds of a living process, without its children."""
    # The clock id of another process, computed like clock_getcpuclockid of the C library.
    return time.clock_gettime(~pid << 3 | 2)


def group_cpu_seconds(fd: int) -> float:
    """Returns the CPU seconds that a control group has used.

    `fd` is a descriptor of the group's file cpuacct.usage (version 1) or cpu.stat (version 2).
    """
    fields = os.pread(fd, 64, 0).split()
    return int(fields[1]) / 1e6 if fields[0] == b"usage_usec" else int(fields[0]) / 1e9


def waits_for_cell(pid: int) -> bool:
    """Returns whether the first thread of a session waits for a cell.

    A waiting thread is in a call of read(2) on descriptor 3.

    Returns True, too, if the kernel does not show what the thread is doing.
    """
    try:
        with open(f"/proc/{pid}/syscall") as call:
            return call.read().split()[:2] == [_READ, "0x3"]
    except (FileNotFoundError, PermissionError):
        return True


def count_computing(pids: Iterable[int]) -> int:
    """Returns how many tasks of some processes run or wait for a CPU."""
    return sum(state == b"R" for pid in pids for state in _task_states(pid))


def cpu_of_stopped(pids: Iterable[int]) -> dict[int, float] | None:
    """Returns a dict from process id to CPU seconds. Returns None if any task of the processes may still run."""
    cpu_by_pid = {}
    for pid in pids:
        if not all(state in _STOPPED_STATES for state in _task_states(pid)):
            return None
        try:
            cpu_by_pid[pid] = own_cpu_seconds(pid)
        except OSError:  # it has ended
            continue
    return cpu_by_pid


def _task_states(pid: int) -> list[bytes]:
    """Returns the states of a process's threads.

    If a thread ends while the states are read, the list also contains the state R (running), because other threads may
    still run. If the whole process has ended, the list contains X (dead) instead.
    """
    states = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            states.append(_stat_fields(f"/proc/{pid}/task/{task}/stat")[0])
    except OSError:
        # A thread has ended. If the process still exists, its other threads may run.
        states.append(b"R" if os.path.exists(f"/proc/{pid}") else b"X")
    return states


def bound_share(pids: Iterable[int]) -> None:
    """If more than _FREE_TASKS tasks of these processes compute, give all tasks together the CPU share of one task.

    The function only raises the niceness, which every user may do. The function also raises the niceness of tasks that
    wait, because the processes that these tasks start inherit the niceness. Otherwise a program could start new
    processes faster than this function finds them.
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
    for task_id, task_nice in tasks:
        if task_nice < nice:
            try:
                os.setpriority(os.PRIO_PROCESS, task_id, nice)
            except (
                ProcessLookupError,
                PermissionError,
            ):  # it has ended, or raised its niceness further meanwhile
                continue


def _stat_fields(path: str) -> list[bytes]:
    """Returns the fields of a `stat` file in /proc, beginning with the third field.

    The indices of the returned fields are: 0 for the state, 11 and 12 for the process's own CPU times, 13 and 14 for
    the CPU times of its children, 16 for the niceness. Source: proc_pid_stat(5).
    """
    # Read as bytes, because the second field is a name that a program chooses, with any bytes.
    with open(path, "rb") as stat:
        return stat.read().rsplit(b")", 1)[1].split()
