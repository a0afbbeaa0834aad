"""What a freshly forked process gives up before a program's code runs in it."""

from __future__ import annotations

import os
import resource

from rstar2.judge.sandbox.inside import jail, kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rstar2.judge.sandbox.plan import Plan

_MIB = 1 << 20
_OPEN_FILES = 256
_PAGE = resource.getpagesize()


class Confinement:
    """The rules of one zygote, prepared once so that applying them to a program costs little."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._filter = kernel.SyscallFilter(plan["filter"]) if plan["filter"] else None
        self._landlock = _landlock(plan) if plan["landlock_abi"] and plan["tier"] == "strict" else None
        self._limits = (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_NOFILE, _OPEN_FILES),
            (resource.RLIMIT_FSIZE, plan["file_mb"] * _MIB),
            (resource.RLIMIT_STACK, plan["stack_mb"] * _MIB),
            (resource.RLIMIT_NPROC, plan["processes"]),
        )
        self.measure()

    def measure(self) -> None:
        """Note how much memory the zygote itself takes: programs' limits come on top of it."""
        with open("/proc/self/statm") as statm:
            pages = [int(field) for field in statm.read().split()]
        self._total, self._data = pages[0] * _PAGE, pages[5] * _PAGE

    def apply(self, uid: int, memory_mb: int, place: str) -> None:
        """Confine this process for good.

        Args:
            uid: the user to become; -1 keeps the zygote's.
            memory_mb: MiB on top of what the zygote takes.
            place: the program's work folder.
        """
        if self._plan["tier"] == "strict":
            with open("/proc/self/oom_score_adj", "w") as score:
                score.write("1000")
        os.chdir(place)
        for kind, limit in self._limits:
            resource.setrlimit(kind, (limit, limit))
        memory = memory_mb * _MIB
        resource.setrlimit(resource.RLIMIT_DATA, (self._data + memory, self._data + memory))
        # The address space is only a backstop for shared mappings, which the data limit does not count.
        space = self._total + 2 * memory + 1024 * _MIB
        resource.setrlimit(resource.RLIMIT_AS, (space, space))
        if uid >= 0:
            kernel.become_user(uid)
        if self._plan["tier"] != "none":
            kernel.drop_capabilities()
        if self._landlock is not None:
            self._landlock.enforce()
        if self._filter is not None:
            self._filter.load()


def _landlock(plan: Plan) -> kernel.Landlock:
    rules = kernel.Landlock(plan["landlock_abi"])
    for path in plan["readable"]:
        rules.allow_read(path)
    for name in ("null", "zero", "full", "random", "urandom"):
        rules.allow_device(f"/dev/{name}")
    if plan["tier"] == "strict":
        for path in jail.WRITABLE:
            rules.allow_all(path)
    return rules
