"""Confines a forked process before a program's code runs in it.

The process gets resource limits, a user, Landlock rules and a seccomp filter.
"""

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
"""Maximum number of pending signals and timers of a program's user. The kernel counts signals and timers for each user,
and also for the user that owns the jail's user namespace."""
_JAIL_TASKS = 8
"""Number of processes of a jail that belong to no program or session: zygotes and their helpers."""
_OTHER_TASKS = 64
"""In the landlock tier, the kernel counts all processes of the user. A program's process limit is this much higher,
because the user may start other processes outside the jail while the program runs."""
_PAGE = resource.getpagesize()
_NO_LIMIT = (1 << 63) - 1


class Confinement:
    """The restrictions for the programs that one zygote forks.

    The restrictions are prepared once for all programs, so that `apply` is fast.
    """

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
        # Without root, all processes of the jail have the same user, so the limit also counts the zygotes.
        self._processes = spec["max_processes"] + (0 if spec["is_root"] else _JAIL_TASKS)
        self._max_processes = _hard_limit(resource.RLIMIT_NPROC)
        self._user_tasks: int | None = 0
        # A limit cannot be higher than the limit under which the judge itself was started.
        self._limits = [(kind, min(limit, _hard_limit(kind))) for kind, limit in self._limits]
        self._max_data, self._max_space = _hard_limit(resource.RLIMIT_DATA), _hard_limit(resource.RLIMIT_AS)
        # A program's memory limit is added to the memory of the zygote.
        with open("/proc/self/statm") as statm:
            pages = [int(field) for field in statm.read().split()]
        self._space, self._data = pages[0] * _PAGE, pages[5] * _PAGE

    def count_user_tasks(self) -> None:
        """In the landlock tier, count the processes and threads of this user.

        The process limit of the next program is the sum of the counted number, the number of processes that the program
        may start, and `_OTHER_TASKS`. Call `count_user_tasks` before the program is forked.
        """
        if self._spec["tier"] == "landlock":
            self._user_tasks = processes.count_user_tasks()

    def reload_rules(self) -> None:
        """Recreate the Landlock rules, because the old rules do not apply to folders that were mounted later."""
        if self._landlock is not None:
            os.close(self._landlock.fd)
        self._landlock = _landlock(self._spec, self._spec["work_dir"])

    def apply(self, command: StartCommand, groups: list[int]) -> None:
        """Confine this process permanently.

        Args:
            command: the command that starts the program.
            groups: file descriptors of the `cgroup.procs` files of the control groups that this process joins.
        """
        for fd in groups:
            os.write(fd, b"0")
        landlock = self._landlock
        # If memory is short, the kernel kills programs first. Every process may raise its own score.
        score = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        os.write(score, b"1000")
        os.close(score)
        # Counted before this process gets its own /proc, which does not show them.
        tasks = processes.count_tasks() if command["beside_sessions"] else 0
        if command["private_scratch"]:
            landlock = self._enter_private_scratch(command["work_dir"], command["memory_mb"])
        os.chdir(command["work_dir"])
        self._limit(command["memory_mb"] * _MIB, tasks)
        if command["uid"] >= 0:
            syscalls.become_user(command["uid"])
        if not self._strict:
            # In the strict tier, the namespace dies with the zygote. Here each program must die with the zygote itself.
            syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
        if self._spec["tier"] != "none":
            syscalls.drop_capabilities()
        if landlock is not None:
            landlock.enforce()
        if self._filter is not None:
            self._filter.load()

    def _enter_private_scratch(self, work_dir: str, memory_mb: int) -> syscalls.Landlock | None:
        """Mount a scratch space and a /proc that only this program sees.

        Returns the program's Landlock rules, or None if the tier does not use Landlock or the kernel lacks it. The size
        of the scratch space is at most the program's memory limit.
        """
        if self._strict:
            syscalls.unshare(syscalls.CLONE_NEWNS)
            namespaces.mount_scratch(self._spec, memory_mb)
            namespaces.mount_proc("/proc")
        return _landlock(self._spec, work_dir)

    def _limit(self, memory: int, session_tasks: int) -> None:
        for kind, limit in self._limits:
            resource.setrlimit(kind, (limit, limit))
        if self._strict:
            self._limit_processes(self._processes + session_tasks)
        elif self._user_tasks:
            self._limit_processes(self._spec["max_processes"] + self._user_tasks + _OTHER_TASKS)
        data = min(self._data + memory, self._max_data)
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        # The data limit does not count shared mappings. The limit of the address space is a second bound for them.
        space = min(self._space + 2 * memory + 1024 * _MIB, self._max_space)
        resource.setrlimit(resource.RLIMIT_AS, (space, space))

    def _limit_processes(self, count: int) -> None:
        limit = min(count, self._max_processes)
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))


def _hard_limit(kind: int) -> int:
    """Returns the hard limit of a resource, which is the highest limit that this process may set."""
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
