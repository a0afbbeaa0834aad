"""A preloaded interpreter that forks one confined process per program and reports how each ended.

It holds no secret, never runs a program's code, and is out of a program's reach: another user, outside the
program's PID namespace. What it reports comes from the kernel (wait4), not from the program.

For speed only: with two cores busy the sandbox runs 7 (trivial) to 26 (numpy) times as many programs a second as
new interpreters do.
"""

from __future__ import annotations

import _socket
import os
import select
import sys
import time

from rstar2.judge.sandbox.inside import namespaces, prefault, preload, program, session, syscalls, wire
from rstar2.judge.sandbox.inside.cleaner import Cleaner
from rstar2.judge.sandbox.inside.confine import Confinement
from rstar2.judge.sandbox.inside.scratch import Scratch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rstar2.judge.sandbox.protocol import JailSpec, StartCommand

    # What a process forked for a program has to run.
    Forked = program.Program | session.CellLoop

_SIGINT, _SIGKILL = 2, 9
_TICKS = os.sysconf("SC_CLK_TCK")
_READ = {"x86_64": "0", "aarch64": "63"}[os.uname().machine]
"""The number of read(2)."""
_CORE_DUMPS = "/proc/self/coredump_filter"
_hidden_modules: list[object] = []


def prepare(spec: JailSpec) -> None:
    """Bring this process into the state that all zygotes share; OSError where the machine refuses that."""
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    if os.path.exists(_CORE_DUMPS):
        # Forks inherit it. Where the machine pipes core dumps to a program, their size limit does not count.
        with open(_CORE_DUMPS, "w") as parts:
            parts.write("0")
    preload.bare()
    preload.freeze_memory()
    Confinement(spec)


def serve(spec: JailSpec, control: _socket.socket, rings: list[int]) -> Forked:
    """Serve until the worker is gone. Returns only in a process forked for a program: what to run there.

    Args:
        rings: from `open_rings`; each zygote takes one.
    """
    # Programs share the interpreter, and must not find this package in it.
    for name in [name for name in sys.modules if name.split(".")[0] == "rstar2"]:
        _hidden_modules.append(sys.modules.pop(name))
    strict = spec["tier"] == "strict"
    # One for all zygotes: what is empty must be recorded before the first program runs.
    scratch = Scratch(namespaces.WRITABLE if strict else (spec["work_dir"],), dedicated=strict)
    cleaner = Cleaner(scratch)
    forked: Forked | _socket.socket = control
    while isinstance(forked, _socket.socket):
        forked = Zygote(spec, forked, scratch, cleaner, rings).serve()
    return forked


class _Child:
    """A running program: its process, and the first process of its namespace where it has one."""

    def __init__(self, start: StartCommand, pid: int, init: syscalls.BareInit | None) -> None:
        self.key, self.pid, self.init = start["key"], pid, init
        # What a process with a private scratch space wrote disappears with it, or the worker removes it.
        self.shares_scratch = not start["session"] and not (start["private_scratch"] and init is not None)
        self.pidfd = os.pidfd_open(pid)


class Zygote:
    """Serves one control socket: starts, kills and reports on the programs of one kind of zygote."""

    def __init__(
        self,
        spec: JailSpec,
        control: _socket.socket,
        scratch: Scratch,
        cleaner: Cleaner,
        rings: list[int],
    ) -> None:
        # In the tiers without namespaces, processes that a program leaves become this process's children.
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        self._spec = spec
        self._control = control
        self._confinement = Confinement(spec)
        self._scratch, self._cleaner = scratch, cleaner
        self._ring = rings.pop() if rings else -1
        self._cpus = spec["cpus"]
        self._cpu = -1
        self._children: dict[int, _Child] = {}
        self._not_orphans = {cleaner.pid}
        self._events = select.poll()
        self._events.register(control.fileno(), select.POLLIN)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY) if spec["tier"] == "strict" else -1

    def serve(self) -> Forked | _socket.socket:
        """Serve until the worker is gone. Returns only in a fork: what to run, or a new zygote's socket."""
        while True:
            for fd, _ in self._events.poll():
                if fd != self._control.fileno():
                    self._reap(self._children[fd])
                    continue
                try:
                    message, fds = wire.receive(self._control)
                except wire.Closed:
                    self._shut_down()
                forked: Forked | _socket.socket | None = None
                match message["op"]:
                    case "start":
                        forked = self._start(message, fds)
                    case "fork zygote":
                        forked = self._fork_zygote(message["kind"], fds[0], fds[1:], message["groups"])
                    case "replace scratch":
                        self._replace_scratch(message["key"], mount=message["mount"])
                    case op:
                        self._control_child(op, message["key"])
                if forked is not None:
                    return forked

    def _shut_down(self) -> None:
        """The worker is gone: leave nothing behind."""
        for child in self._children.values():
            self._kill(child)
        if self._own_pids < 0:
            self._kill_orphans(set())
        os._exit(0)

    def _start(self, start: StartCommand, fds: list[int]) -> Forked | None:
        """Fork one program. None in the zygote."""
        if start["cpu"] != self._cpu:
            self._cpu = start["cpu"]
            set_affinity(self._cpus if self._cpu < 0 else [self._cpu])
        try:
            init, pid = self._fork()
        except OSError as error:
            wire.send(self._control, {"key": start["key"], "failed": str(error)})
            pid = -1
        if pid == 0:
            return self._become_program(start, fds)
        if pid > 0:
            child = _Child(start, pid, init)
            self._children[child.pidfd] = child
            self._events.register(child.pidfd, select.POLLIN)
        for fd in fds:
            os.close(fd)
        return None

    def _fork(self) -> tuple[syscalls.BareInit | None, int]:
        """Fork into a new PID namespace where the tier has them."""
        if self._own_pids < 0:
            return None, os.fork()
        init = syscalls.BareInit()
        try:
            syscalls.setns(init.pidfd, syscalls.CLONE_NEWPID)
            pid = os.fork()
        except OSError:
            syscalls.setns(self._own_pids, syscalls.CLONE_NEWPID)
            init.end()
            raise
        if pid:
            syscalls.setns(self._own_pids, syscalls.CLONE_NEWPID)
        return init, pid

    def _become_program(self, start: StartCommand, fds: list[int]) -> Forked:
        """In the forked process: take the program's descriptors, confine it, drop everything else."""
        try:
            os.setsid()
            set_affinity(self._cpus)
            names = start["fds"]
            groups = [fd for name, fd in zip(names, fds, strict=True) if name == "group"]
            code = b""
            if "code" in names:
                # Not in the zygote, because later programs inherit its memory.
                fd = fds[names.index("code")]
                code = os.read(fd, os.fstat(fd).st_size)
            # None of `fds` is 0 to 3: the zygote always keeps those open.
            for number in range(4):
                os.dup2(fds[number], number, inheritable=number < 3)
            self._confinement.apply(start, groups)
        except OSError as error:
            # The program has not begun, so this process can still report as the zygote.
            wire.send(self._control, {"key": start["key"], "failed": str(error)})
            os._exit(1)
        self._control.detach()
        os.closerange(4, 1 << 16)
        if self._spec["tier"] != "strict":
            os.environ["HOME"] = os.environ["TMPDIR"] = os.environ["MPLCONFIGDIR"] = start["work_dir"]
        if start["session"]:
            return session.CellLoop(channel_fd=3, work_dir=start["work_dir"])
        return program.Program(code, report_fd=3, work_dir=start["work_dir"])

    def _control_child(self, op: str, key: int) -> None:
        """Do what a message asks with a program, unless that has ended."""
        for child in self._children.values():
            if child.key == key:
                break
        else:
            if op == "prefault":
                wire.send(self._control, {"key": key, "prefaulted": 0, "problem": "it has ended"})
            return
        match op:
            case "kill":
                self._kill(child)
            case "interrupt":
                os.kill(child.pid, _SIGINT)
            case "prefault":
                self._prefault(child)
            case "cpu":
                # In this order: CPU time after it was seen waiting belongs to the next cell.
                waits = _waits_for_cell(child.pid)
                cpu = _cpu_seconds(child.pid)
                wire.send(self._control, {"key": key, "cpu_s": cpu, "waits": waits})

    def _prefault(self, child: _Child) -> None:
        """Have every later fork begin with copies of the pages that this child, and we, wrote since it was forked."""
        answer: dict[str, Any] = {"key": child.key, "prefaulted": 0}
        try:
            # While the child lives: a page that the two no longer share is then a page of its own, and is not
            # copied together with a huge page around it.
            pages = prefault.written_since_fork(child.pid) | prefault.written_since_fork(os.getpid())
            prefault.register(self._ring, pages)
            answer["prefaulted"] = len(pages)
        except OSError as error:
            answer["problem"] = str(error)
        wire.send(self._control, answer)

    def _kill(self, child: _Child) -> None:
        """Kill a program and all it started. Its end is reported like any other."""
        os.kill(child.init.pid if child.init is not None else child.pid, _SIGKILL)

    def _reap(self, child: _Child) -> None:
        """Reap an ended program, end its namespace, report, and then remove what it wrote."""
        _, status, usage = os.wait4(child.pid, 0)
        cpu = usage.ru_utime + usage.ru_stime
        if child.init is not None:
            cpu += _descendants_cpu_seconds(child.init.pid)
            child.init.end()
        self._events.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.pidfd]
        if self._own_pids < 0:
            cpu += self._kill_orphans({other.pid for other in self._children.values()})
        cleaning = child.shares_scratch and not self._is_scratch_clean()
        wire.send(self._control, {"key": child.key, "status": status, "cpu_s": cpu, "cleaning": cleaning})
        if cleaning:
            # After the report: removing what it left must delay the next program only, not this one's result.
            wire.send(self._control, {"key": child.key, "clean": self._cleaner.clean()})

    def _is_scratch_clean(self) -> bool:
        """Whether the last program left nothing, but the source that was written there for its traceback.

        For speed only: most programs that leave anything leave that, and the cleaner need not be asked.
        """
        if self._scratch.is_clean():
            return True
        try:
            os.unlink(f"{self._spec['work_dir']}/{program.NAME}")
        except OSError:
            return False
        return self._scratch.is_clean()

    def _replace_scratch(self, key: int, *, mount: bool) -> None:
        """Use a new scratch space, which one zygote has to mount, for all."""
        answer: dict[str, Any] = {"key": key}
        try:
            if mount:
                namespaces.replace_scratch(self._spec)
                self._cleaner.take_snapshot()
            self._scratch.take_snapshot()
            self._confinement.reload_rules()
        except OSError as error:
            answer["failed"] = str(error)
        wire.send(self._control, answer)

    def _kill_orphans(self, spared: set[int]) -> float:
        """Without a PID namespace: kill what an ended program left, which by now are children of this process.

        Returns:
            The CPU seconds that they used.
        """
        cpu = 0.0
        while left := _children(os.getpid()) - spared - self._not_orphans:
            for pid in left:
                os.kill(pid, _SIGKILL)
                _, _, usage = os.wait4(pid, 0)
                cpu += usage.ru_utime + usage.ru_stime
        return cpu

    def _fork_zygote(
        self, kind: str, fd: int, groups: list[int], preload_groups: int
    ) -> _socket.socket | None:
        """Fork a zygote with more libraries, which answers on `fd` when it has loaded them.

        Args:
            groups: process lists of the control groups to be in while loading (the first `preload_groups`), and
                afterwards.
        """
        if pid := os.fork():
            self._not_orphans.add(pid)
            for other in (fd, *groups):
                os.close(other)
            return None
        self._control.close()
        if self._ring >= 0:
            os.close(self._ring)
        set_affinity(self._cpus)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _SIGKILL)
        control = _socket.socket(fileno=fd)
        for group in groups[:preload_groups]:
            os.write(group, b"0")
        environment = dict(os.environ)
        os.environ.update(dict.fromkeys(("HOME", "TMPDIR", "MPLCONFIGDIR"), self._spec["preload_dir"]))
        getattr(preload, kind)()
        os.environ.clear()
        os.environ.update(environment)
        preload.freeze_memory()
        for group in groups[preload_groups:]:
            os.write(group, b"0")
        for group in groups:
            os.close(group)
        threads = len(os.listdir("/proc/self/task"))
        wire.send(
            control, {"ready": threads == 1, "failed": f"it has {threads} threads and cannot be forked"}
        )
        return control


def set_affinity(cpus: list[int]) -> None:
    """Restrict this process to some CPUs, where the machine allows it."""
    try:
        os.sched_setaffinity(0, cpus)
    except OSError:
        return


def _children(pid: int) -> set[int]:
    """The children of all threads of a process, ended ones included."""
    found: set[int] = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/children") as children:
            found.update(map(int, children.read().split()))
    return found


def _descendants_cpu_seconds(pid: int) -> float:
    """CPU seconds of a process's descendants: of those that run, and of those that ended and nobody waited for."""
    spent = 0.0
    try:
        for child in _children(pid):
            spent += sum(map(int, _stat_fields(child)[11:15])) / _TICKS + _descendants_cpu_seconds(child)
    except OSError:  # one ended meanwhile, and was waited for
        return spent
    return spent


def _waits_for_cell(pid: int) -> bool:
    """Whether a session's first thread is in read(3, …); True where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/syscall") as call:
            return call.read().split()[:2] == [_READ, "0x3"]
    except (FileNotFoundError, PermissionError):
        return True


def _cpu_seconds(pid: int) -> float:
    """CPU seconds of a process and of the children it has waited for."""
    fields = _stat_fields(pid)
    # The clock id of another process, as the C library's clock_getcpuclockid makes it.
    own = time.clock_gettime(~pid << 3 | 2)
    return own + (int(fields[13]) + int(fields[14])) / _TICKS


def _stat_fields(pid: int) -> list[str]:
    """The fields of proc_pid_stat(5) from the third on; times of its own are 11 and 12, of its children 13 and 14."""
    with open(f"/proc/{pid}/stat") as stat:
        return stat.read().rsplit(")", 1)[1].split()
