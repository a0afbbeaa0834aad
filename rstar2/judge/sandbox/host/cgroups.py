"""Limits what a whole jail takes, where control groups can be written (versions 1 and 2).

The limit of memory is what the zygotes hold plus what the program may take. Of the processors a jail gets the share
of one process, however many it has: by a group where the kernel does not group processes by session anyway.

For speed only: the jail is in one group, because to move each program into its own would take the kernel
milliseconds.
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
"""How long processes that were killed may take to leave a group."""
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control")
_V2 = ("memory.max", "memory.current", "memory.events")
"""Files of a memory group: its limit, what is in use, and how often the kernel killed."""
_CPU_TIME_V1, _CPU_TIME_V2 = "cpuacct.usage", "cpu.stat"


def _own_groups() -> dict[str, str]:
    """Controller (empty for version 2) → this process's group in its hierarchy."""
    groups = {}
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            groups[name] = path
    return groups


def _candidates(controller: str) -> list[Path]:
    """Parents under which groups of this controller may be made, best first."""
    groups = _own_groups()
    parents = []
    if controller in groups:
        parents.append(_ROOT / controller / groups[controller].lstrip("/"))
        parents.append(_ROOT / controller)
    elif "" in groups:
        parents.append(_ROOT / groups[""].lstrip("/"))
        # A group with processes in it, such as this process's own, cannot have controlled children.
        parents.append(_ROOT)
    return parents


def _sessions_share_processors() -> bool:
    """Whether the kernel gives each session, and so each program, an equal share. Source: sched(7), autogroup.

    It does so only in the root group, which a container's is not, though it may be called `/` there.
    """
    try:
        enabled = Path("/proc/sys/kernel/sched_autogroup_enabled").read_text().strip() == "1"
    except OSError:
        return False
    groups = _own_groups()
    version_1 = "cpu" in groups
    group = _ROOT / "cpu" if version_1 else _ROOT
    group /= groups.get("cpu", groups.get("", "/")).lstrip("/")
    # Only the root has the first in version 1, only the root lacks the second in version 2.
    is_root = (group / "release_agent").exists() if version_1 else not (group / "cgroup.events").exists()
    return enabled and is_root


def _sweep(parent: Path) -> None:
    """Remove the groups of workers that died without doing so. The kernel refuses for those in use."""
    for path in parent.glob(f"{_PREFIX}*"):
        if not Path(f"/proc/{path.name.split('-')[1]}").exists():
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a group, unless it is in use."""
    with contextlib.suppress(OSError):
        path.rmdir()


class Cgroup:
    """A new group for each controller, removed by `close`."""

    def __init__(self) -> None:
        self._name = f"{_PREFIX}{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.memory = self._make("memory", (_V1[0], _V2[0]))
        self.pids = self._make("pids", ("pids.max",))
        self.cpu = None if _sessions_share_processors() else self._make("cpu", ("cpu.shares", "cpu.weight"))
        self.cpu_time = self._make("cpuacct", (_CPU_TIME_V1, _CPU_TIME_V2))
        self.cpu_time_fd = -1
        """For `group_cpu_seconds`; -1: there is no group."""
        if self.cpu_time is not None:
            name = _CPU_TIME_V1 if (self.cpu_time / _CPU_TIME_V1).exists() else _CPU_TIME_V2
            self.cpu_time_fd = os.open(self.cpu_time / name, os.O_RDONLY | os.O_CLOEXEC)
        self._limit = 0
        self._counter = -1
        if self.memory is not None:
            names = _V1 if (self.memory / _V1[0]).exists() else _V2
            self._limit_file, self._used_file, counter = (self.memory / name for name in names)
            # Not every kernel has the first; only version 2 has the second, where swap is accounted.
            with contextlib.suppress(OSError):
                self._counter = os.open(counter, os.O_RDONLY | os.O_CLOEXEC)
                (self.memory / "memory.swap.max").write_text("0")

    def _make(self, controller: str, files: tuple[str, ...]) -> Path | None:
        for parent in _candidates(controller):
            _sweep(parent)
            path = parent / self._name
            # In version 2 one group serves all controllers, so it may be there already.
            was_there = path.exists()
            try:
                with contextlib.suppress(OSError):
                    (parent / "cgroup.subtree_control").write_text(f"+{controller}")
                path.mkdir(exist_ok=True)
            except OSError:
                continue
            if any((path / name).exists() for name in files):
                return path
            if not was_there:
                _remove(path)
        return None

    def _paths(self) -> set[Path]:
        return {path for path in (self.memory, self.pids, self.cpu, self.cpu_time) if path is not None}

    def add(self, pid: int) -> None:
        """Move a process, and so its later children, into the group; do without the group if that is refused."""
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
        """Open the groups' process lists: a process that writes `0` to one moves into that group."""
        return [os.open(path / "cgroup.procs", os.O_WRONLY | os.O_CLOEXEC) for path in self._paths()]

    def cpu_seconds(self) -> float:
        """CPU time of all that is or was in the group; 0 where there is none."""
        return 0.0 if self.cpu_time_fd < 0 else group_cpu_seconds(self.cpu_time_fd)

    def limit_processes(self, count: int) -> None:
        if self.pids is not None:
            (self.pids / "pids.max").write_text(str(count))

    def used(self) -> int:
        """Bytes in use; 0 where there is no memory group."""
        return 0 if self.memory is None else int(self._used_file.read_text())

    def limit_memory(self, limit: int) -> None:
        """Set the limit in bytes."""
        if self.memory is None or limit == self._limit:
            return
        # Version 1 refuses a limit below what is in use and cannot be freed: then the old one holds.
        with contextlib.suppress(OSError):
            self._limit_file.write_text(str(limit))
            self._limit = limit

    def kills(self) -> int:
        """How often the kernel killed a process in here for lack of memory; 0 where it does not say."""
        if self._counter < 0:
            return 0
        for line in os.pread(self._counter, 4096, 0).splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
        return 0

    def close(self) -> None:
        """Remove the groups; their processes must have ended."""
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
