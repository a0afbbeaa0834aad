"""Limits the memory, processes and CPU share of a whole jail with control groups (versions 1 and 2).

If this process cannot write control groups, nothing is limited. The memory limit is the memory of the zygotes plus the
memory that the program may use. The whole jail gets the CPU share of one process. If the kernel already divides the CPU
between process sessions (setsid), no control group for the CPU share is created.

All programs of the jail share one control group. The sharing exists only for speed: moving each program into a separate
group would take milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path

from rstar2.judge.sandbox.inside.processes import group_cpu_seconds

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "rstar2-"
_REMOVE_S = 20.0
"""Seconds to wait until killed processes have left a group."""
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
_V2 = ("memory.max", "memory.current", "memory.events")
"""File names in a memory control group. In this order, the files contain the memory limit, the memory in use, and the
number of processes that the kernel killed for lack of memory."""
_CPU_TIME_V1, _CPU_TIME_V2 = "cpuacct.usage", "cpu.stat"


def _own_groups() -> dict[str, str]:
    """Returns a dict from controller name to the path of this process's control group.

    Version 2 has one group for all controllers, and its key is an empty string.
    """
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            groups[name] = path
    return groups


def _candidates(controller: str) -> list[Path]:
    """Returns the groups in which a child group with the controller can be created. The preferred group comes first."""
    groups = _own_groups()
    parents = []
    if controller in groups:
        parents.append(_ROOT / controller / groups[controller].lstrip("/"))
        parents.append(_ROOT / controller)
    elif "" in groups:
        parents.append(_ROOT / groups[""].lstrip("/"))
        # In version 2, a group that contains processes, such as this process's own group, cannot control children.
        parents.append(_ROOT)
    return parents


def _sessions_share_processors() -> bool:
    """Returns whether the kernel gives each process session (setsid) an equal CPU share (autogroup).

    Each program runs in its own process session. The kernel gives equal shares only to process sessions in the root
    control group. A process in a container is not in the root group, even if the container shows the process's group as
    `/`. Source: sched(7).
    """
    try:
        enabled = Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
    except OSError:
        return False
    groups = _own_groups()
    version_1 = "cpu" in groups
    group = _ROOT / "cpu" if version_1 else _ROOT
    group /= groups.get("cpu", groups.get("", "/")).lstrip("/")
    # In version 1, only the root group has release_agent. In version 2, only the root group lacks cgroup.events.
    is_root = (group / "release_agent").exists() if version_1 else not (group / "cgroup.events").exists()
    return enabled and is_root


def _sweep(parent: Path) -> None:
    """Remove the groups of dead workers.

    Groups that are still in use remain, because the kernel refuses to remove them.
    """
    for path in parent.glob(f"{_PREFIX}*"):
        if not Path(f"/proc/{path.name.split('-')[1]}").exists():
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a group, unless it is in use."""
    with contextlib.suppress(OSError):
        path.rmdir()


class Cgroup:
    """New control groups, one for each controller.

    `close` removes the groups. If a controller is missing, its group is None.
    """

    def __init__(self) -> None:
        self._name = f"{_PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.memory = self._make("memory", (_V1[0], _V2[0]))
        self.pids = self._make("pids", ("pids.max",))
        self.cpu = None if _sessions_share_processors() else self._make("cpu", ("cpu.shares", "cpu.weight"))
        self.cpu_time = self._make("cpuacct", (_CPU_TIME_V1, _CPU_TIME_V2))
        self.cpu_time_fd = -1
        """File descriptor to pass to `group_cpu_seconds`, or -1 if there is no group."""
        if self.cpu_time is not None:
            name = _CPU_TIME_V1 if (self.cpu_time / _CPU_TIME_V1).exists() else _CPU_TIME_V2
            self.cpu_time_fd = os.open(self.cpu_time / name, os.O_RDONLY | os.O_CLOEXEC)
        self._limit = 0
        self._counter = -1
        if self.memory is not None:
            names = _V1 if (self.memory / _V1[0]).exists() else _V2
            self._limit_file, self._used_file, counter = (self.memory / name for name in names)
            # Some kernels lack the counter. memory.swap.max exists only in version 2, and only if swap is accounted.
            with contextlib.suppress(OSError):
                self._counter = os.open(counter, os.O_RDONLY | os.O_CLOEXEC)
                (self.memory / "memory.swap.max").write_text("0")

    def _make(self, controller: str, files: tuple[str, ...]) -> Path | None:
        for parent in _candidates(controller):
            _sweep(parent)
            path = parent / self._name
            # In version 2, all controllers share one group, so it may already exist.
            existed = path.exists()
            try:
                with contextlib.suppress(OSError):
                    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
                path.mkdir(exist_ok=True)
            except OSError:
                continue
            if any((path / name).exists() for name in files):
                return path
            if not existed:
                _remove(path)
        return None

    def _paths(self) -> set[Path]:
        return {path for path in (self.memory, self.pids, self.cpu, self.cpu_time) if path is not None}

    def add(self, pid: int) -> None:
        """Move a process into the groups.

        Children that the process starts later are in the same groups. If a group refuses the process, the group is
        removed.
        """
        for path in self._paths():
            try:
                (path / "cgroup.procs").write_text(str(pid))
            except OSError:
                self.memory = None if path == self.memory else self.memory
                self.pids = None if path == self.pids else self.pids
                self.cpu = None if path == self.cpu else self.cpu
                if path == self.cpu_time:
                    os.close(self.cpu_time_fd)
                    self.cpu_time, self.cpu_time_fd = None, -1
                _remove(path)

    def open_process_lists(self) -> list[int]:
        """Open the file `cgroup.procs` of each group.

        A process that writes `0` to a group's `cgroup.procs` moves into the group.
        """
        return [os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for path in self._paths()]

    def cpu_seconds(self) -> float:
        """Returns the CPU seconds of all processes that are or were in the group, or 0 if there is no group."""
        return 0.0 if self.cpu_time_fd < 0 else group_cpu_seconds(self.cpu_time_fd)

    def limit_processes(self, count: int) -> None:
        if self.pids is not None:
            (self.pids / "pids.max").write_text(str(count))

    def used(self) -> int:
        """Returns how many bytes of memory the memory group uses, or 0 if there is no memory group."""
        return 0 if self.memory is None else int(self._used_file.read_text())

    def limit_memory(self, limit: int) -> None:
        """Set the memory limit of the memory group, in bytes."""
        if self.memory is None or limit == self._limit:
            return
        # Version 1 refuses a limit below the memory that is in use and cannot be freed. The old limit then remains.
        with contextlib.suppress(OSError):
            self._limit_file.write_text(str(limit))
            self._limit = limit

    def kills(self) -> int:
        """Returns the number of processes in the group that the kernel killed for lack of memory.

        Returns 0 if the kernel does not report this number.
        """
        if self._counter < 0:
            return 0
        for line in os.pread(self._counter, 4096, 0).splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return 0

    def close(self) -> None:
        """Remove the groups. All processes in the groups must have ended, or be about to end."""
        for fd in {self._counter, self.cpu_time_fd} - {-1}:
            os.close(fd)
        self._counter = self.cpu_time_fd = -1
        deadline = time.monotonic() + _REMOVE_S
        for path in self._paths():
            while path.exists() and time.monotonic() < deadline:
                try:
                    path.rmdir()
                except OSError:
                    time.sleep(0.01)
