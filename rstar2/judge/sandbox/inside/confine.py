"""Takes away a forked process's rights before a program's code runs in it: limits, user, Landlock, seccomp."""

from __future__ import annotations

import os
import resource

from rstar2.judge.sandbox.inside import namespaces, processes, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rstar2.judge.sandbox.protocol import JailSpec, StartCommand

_MIB = 1 << 20
_OPEN_FILES, _FILE_BYTES, _STACK_BYTES = 256, 256 * _MIB, 64 * _MIB
_PENDING_SIGNALS = 256
"""With timers: the kernel counts them for each user, and also for the user that owns the jail's user namespace."""
_OWN_TASKS = 8
"""Processes of a jail without sessions: zygotes and what they need."""
_TASKS_OF_OTHERS = 64
"""What else the user may start while a program runs, without leaving that fewer processes than it may have."""
_PAGE = resource.getpagesize()
_NO_LIMIT = (1 << 63) - 1


class Confinement:
    """The restrictions on a zygote's programs, prepared once so that applying them to each costs little."""

    def __init__(self, spec: JailSpec) -> None:
        self._spec = spec
        self._strict = spec["tier"] == "strict"
        self._filter = syscalls.SyscallFilter(spec["program_filter"]) if spec["program_filter"] else None
        self._landlock = _landlock(spec, spec["work_dir"])
        self._limits = [
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, _OPEN_FILES),
            (resource.RLIMIT_FSIZE, _FILE_BYTES),
            (resource.RLIMIT_STACK, _STACK_BYTES),
            (resource.RLIMIT_SIGPENDING, _PENDING_SIGNALS),
        ]
        # Without root all in the jail is one user's, and counts.
        self._processes = spec["max_processes"] + (0 if spec["is_root"] else _OWN_TASKS)
        self._most_processes = _hard_limit(resource.RLIMIT_NPROC)
        self._user_tasks: int | None = 0
        # Where the judge itself was started under a lower limit, that one holds.
        self._limits = [(kind, min(limit, _hard_limit(kind))) for kind, limit in self._limits]
        self._most_data, self._most_space = _hard_limit(resource.RLIMIT_DATA), _hard_limit(resource.RLIMIT_AS)
        # What a program may take comes on top of what the zygote takes.
        with open("/proc/self/statm") as statm:
            pages = [int(field) for field in statm.read().split()]
        self._space, self._data = pages[0] * _PAGE, pages[5] * _PAGE

    def count_user_tasks(self) -> None:
        """In the landlock tier: count what the user runs, to which the next program's limit is added.

        Call it before the program is forked.
        """
        if self._spec["tier"] == "landlock":
            self._user_tasks = processes.count_user_tasks()

    def reload_rules(self) -> None:
        """Make the rules again for the folders mounted now; the old rules hold for the old ones only."""
        if self._landlock is not None:
            os.close(self._landlock.fd)
        self._landlock = _landlock(self._spec, self._spec["work_dir"])

    def apply(self, command: StartCommand, groups: list[int]) -> None:
        """Confine this process for good; `groups`: descriptors of the process lists of control groups to join."""
        for fd in groups:
            os.write(fd, b"0")
        landlock = self._landlock
        # Where memory is short, the kernel is to kill programs first. Raising it needs no rights.
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, b"1000")
        os.close(score)
        # Before it has a /proc that does not show them.
        tasks = processes.count_tasks() if command["beside_sessions"] else 0
        if command["private_scratch"]:
            landlock = self._enter_private_scratch(command["work_dir"], command["memory_mb"])
        os.chdir(command["work_dir"])
        self._limit(command["memory_mb"] * _MIB, tasks)
        if command["uid"] >= 0:
            syscalls.become_user(command["uid"])
        if not self._strict:
            # No namespace dies with the zygote here.
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
        if self._spec["tier"] != "none":
            syscalls.drop_capabilities()
        if landlock is not None:
            landlock.enforce()
        if self._filter is not None:
            self._filter.load()

    def _enter_private_scratch(self, work_dir: str, memory_mb: int) -> syscalls.Landlock | None:
        """Mount a scratch space, no larger than its memory, and a /proc of this program's own. → the rules for them."""
        if self._strict:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            namespaces.mount_scratch(self._spec, memory_mb)
            namespaces.mount_proc("/proc")
        return _landlock(self._spec, work_dir)

    def _limit(self, memory: int, tasks_beside: int) -> None:
        for kind, limit in self._limits:
            resource.setrlimit(kind, (limit, limit))
        if self._strict:
            self._limit_processes(self._processes + tasks_beside)
        elif self._user_tasks:
            self._limit_processes(self._spec["max_processes"] + self._user_tasks + _TASKS_OF_OTHERS)
        data = min(self._data + memory, self._most_data)
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        # The address space is only a backstop for shared mappings, which the data limit does not count.
        space = min(self._space + 2 * memory + 1024 * _MIB, self._most_space)
        resource.setrlimit(resource.RLIMIT_AS, (space, space))

    def _limit_processes(self, count: int) -> None:
        most = min(count, self._most_processes)
        resource.setrlimit(resource.RLIMIT_NPROC, (most, most))


def _hard_limit(kind: int) -> int:
    """The highest limit this process may set; programs start with the same."""
    hard = resource.getrlimit(kind)[1]
    return _NO_LIMIT if hard == resource.RLIM_INFINITY else hard


def _landlock(spec: JailSpec, work_dir: str) -> syscalls.Landlock | None:
    if not spec["landlock_abi"]:
        return None
    rules = syscalls.Landlock(spec["landlock_abi"])
    for path in spec["readable_paths"]:
        rules.allow_read(path)
    for name in namespaces.DEVICES:
        rules.allow_device(f"/dev/{name}")
    for path in namespaces.WRITABLE if spec["tier"] == "strict" else (work_dir,):
        rules.allow_all(path)
    return rules
