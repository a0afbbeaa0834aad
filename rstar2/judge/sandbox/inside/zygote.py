"""A warm interpreter that forks one confined process for each program and reports how it ended.

It holds no secret, never runs a program's code, and is out of a program's reach: another user, outside the
program's PID namespace. What it reports comes from the kernel (wait4), not from the program.
"""

from __future__ import annotations

import _socket
import os
import select
import sys
import time

from rstar2.judge.sandbox.inside import namespaces, preload, program, session, syscalls, wire
from rstar2.judge.sandbox.inside.confine import Confinement
from rstar2.judge.sandbox.inside.prefault import PrefaultedPages, written_since_fork
from rstar2.judge.sandbox.inside.scratch import Scratch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rstar2.judge.sandbox.protocol import JailSpec, StartCommand

_SIGINT, _SIGKILL = 2, 9
_TICKS = os.sysconf("SC_CLK_TCK")
_READ = {"x86_64": "0", "aarch64": "63"}[os.uname().machine]
"""The number of read(2)."""
_kept: list[object] = []


def prepare(spec: JailSpec) -> None:
    """Bring this process into the state every zygote shares.

    Raises:
        OSError: the machine refuses something the tier needs.
    """
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    preload.bare()
    preload.freeze_memory()
    Confinement(spec)


def serve(spec: JailSpec, control: _socket.socket, rings: list[int]) -> program.Program | session.SessionLoop:
    """Serve until the worker is gone. Returns only in a process forked for a program, with that program.

    Args:
        rings: for the zygotes' pins.
    """
    _hide_package()
    strict = spec["tier"] == "strict"
    # One for all zygotes: what is empty must be learnt before the first program runs.
    scratch = Scratch(namespaces.WRITABLE if strict else (spec["work_dir"],), dedicated=strict)
    task = Zygote(spec, control, scratch, rings).serve()
    while isinstance(task, _socket.socket):
        task = Zygote(spec, task, scratch, rings).serve()
    return task


def _hide_package() -> None:
    """Take this package out of sight of programs, which share the interpreter. It stays alive in _kept."""
    for name in [name for name in sys.modules if name.split(".")[0] == "rstar2"]:
        _kept.append(sys.modules.pop(name))


class _Child:
    """A running program: its process, and the first process of its namespace where it has one."""

    def __init__(self, start: StartCommand, pid: int, init: syscalls.BareInit | None) -> None:
        self.key, self.pid, self.init = start["key"], pid, init
        # What a process with a space of its own wrote is gone with it, or is for the worker to remove.
        self.shares_scratch = not start["session"] and not (start["private_scratch"] and init is not None)
        self.pidfd = os.pidfd_open(pid)


class Zygote:
    """One control socket's worth of programs."""

    def __init__(self, spec: JailSpec, control: _socket.socket, scratch: Scratch, rings: list[int]) -> None:
        # What a program leaves behind in the tiers without namespaces becomes this process's child.
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        self._spec = spec
        self._control = control
        self._confinement = Confinement(spec)
        self._scratch = scratch
        self._prefaulted = PrefaultedPages(rings)
        self._cpus = spec["cpus"]
        self._cpu = -1
        self._children: dict[int, _Child] = {}
        self._zygotes: set[int] = set()
        self._ready = select.poll()
        self._ready.register(control.fileno(), select.POLLIN)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY) if spec["tier"] == "strict" else -1

    def serve(self) -> program.Program | session.SessionLoop | _socket.socket:
        """Answer until the worker is gone. Returns only in a fork: what to run, or a new zygote's socket."""
        while True:
            for fd, _ in self._ready.poll():
                if fd != self._control.fileno():
                    self._finish(self._children[fd])
                    continue
                try:
                    message, fds = wire.receive(self._control)
                except wire.Closed:
                    self._shut_down()
                forked = self._handle(message, fds)
                if forked is not None:
                    return forked

    def _shut_down(self) -> None:
        """The worker is gone: leave nothing behind."""
        for child in self._children.values():
            self._kill(child)
        if self._own_pids < 0:
            self._sweep(set())
        os._exit(0)

    def _handle(
        self, message: Any, fds: list[int]
    ) -> program.Program | session.SessionLoop | _socket.socket | None:
        if message["op"] == "start":
            return self._start(message, fds)
        if message["op"] == "fork zygote":
            return self._fork_zygote(message["kind"], fds[0], fds[1:], message["groups"])
        if message["op"] == "replace scratch":
            self._replace_scratch(message["key"], mount=message["mount"])
            return None
        for child in list(self._children.values()):
            if child.key == message["key"]:
                if message["op"] == "kill":
                    self._kill(child)
                elif message["op"] == "prefault":
                    self._prefault(child)
                elif message["op"] == "interrupt":
                    os.kill(child.pid, _SIGINT)
                else:
                    # In this order: what it does after it was seen waiting is the next cell's.
                    waits = _waits_for_cell(child.pid)
                    cpu = _cpu_seconds(child.pid)
                    wire.send(self._control, {"key": child.key, "cpu_s": cpu, "waits": waits})
                return None
        if message["op"] == "prefault":
            wire.send(self._control, {"key": message["key"], "prefaulted": 0, "problem": "it has ended"})
        return None

    def _start(self, start: StartCommand, fds: list[int]) -> program.Program | session.SessionLoop | None:
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
            self._ready.register(child.pidfd, select.POLLIN)
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

    def _become_program(self, start: StartCommand, fds: list[int]) -> program.Program | session.SessionLoop:
        """In the forked process: take the program's descriptors, confine, drop everything else."""
        try:
            return self._confine(start, fds)
        except OSError as error:
            # The program has not begun, so this process can still speak for the zygote.
            wire.send(self._control, {"key": start["key"], "failed": str(error)})
            os._exit(1)

    def _confine(self, start: StartCommand, fds: list[int]) -> program.Program | session.SessionLoop:
        os.setsid()
        set_affinity(self._cpus)
        names = start["fds"]
        groups = [fd for name, fd in zip(names, fds, strict=True) if name == "group"]
        code = start["code"]
        if code is None and "code" in names:
            with open(fds[names.index("code")], "rb", closefd=False) as file:
                code = file.read().decode()
        # None of them lies at 0 to 3, where the zygote holds something always.
        for number in range(4):
            os.dup2(fds[number], number, inheritable=number < 3)
        self._confinement.apply(start, groups)
        self._control.detach()
        os.closerange(4, 1 << 16)
        if self._spec["tier"] != "strict":
            os.environ["HOME"] = os.environ["TMPDIR"] = os.environ["MPLCONFIGDIR"] = start["work_dir"]
        if start["session"]:
            return session.SessionLoop(channel_fd=3, work_dir=start["work_dir"])
        return program.Program(code=code or "", report_fd=3, work_dir=start["work_dir"], nonce=start["nonce"])

    def _prefault(self, child: _Child) -> None:
        """Have every fork from now on begin with copies of what this child, and we, have written since its own."""
        answer: dict[str, Any] = {"key": child.key, "prefaulted": 0}
        try:
            # While the child lives: what it does not share any more is in pages of its own, and is not copied
            # along with a huge page around it.
            pages = written_since_fork(child.pid) | written_since_fork(os.getpid())
            self._prefaulted.register(pages)
            answer["prefaulted"] = len(pages)
        except OSError as error:
            answer["problem"] = str(error)
        wire.send(self._control, answer)

    def _kill(self, child: _Child) -> None:
        """Kill a program and all it started. Its end is reported as any other's."""
        os.kill(child.init.pid if child.init is not None else child.pid, _SIGKILL)

    def _finish(self, child: _Child) -> None:
        """Reap an ended program, end its namespace, report, and then remove what it wrote."""
        _, status, usage = os.wait4(child.pid, 0)
        if child.init is not None:
            child.init.end()
        self._ready.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.pidfd]
        if self._own_pids < 0:
            self._sweep({other.pid for other in self._children.values()})
        cpu = usage.ru_utime + usage.ru_stime
        cleaning = child.shares_scratch and not self._scratch.is_clean()
        wire.send(self._control, {"key": child.key, "status": status, "cpu_s": cpu, "cleaning": cleaning})
        if cleaning:
            # Its end is known already: how much it left makes no program late, only the next one wait.
            wire.send(self._control, {"key": child.key, "clean": self._scratch.clean()})

    def _replace_scratch(self, key: int, *, mount: bool) -> None:
        """Go over to a fresh scratch space.

        Args:
            mount: it is for this zygote to mount it; the others find it mounted.
        """
        answer: dict[str, Any] = {"key": key}
        try:
            if mount:
                namespaces.replace_scratch(self._spec)
            self._scratch.take_snapshot()
            self._confinement.reload_rules()
        except OSError as error:
            answer["failed"] = str(error)
        wire.send(self._control, answer)

    def _sweep(self, spared: set[int]) -> None:
        """Without a PID namespace: kill what an ended program left, which is this process's child by now."""
        while left := _children_of_this_process() - spared - self._zygotes:
            for pid in left:
                os.kill(pid, _SIGKILL)
                os.waitpid(pid, 0)

    def _fork_zygote(self, kind: str, fd: int, groups: list[int], entered: int) -> _socket.socket | None:
        """Fork a heavier zygote, which answers on `fd` once it is warm.

        Args:
            groups: process lists of the control groups to get warm in (the first `entered`), then to return to.
        """
        if pid := os.fork():
            self._zygotes.add(pid)
            for other in (fd, *groups):
                os.close(other)
            return None
        self._control.close()
        self._prefaulted.close()
        set_affinity(self._cpus)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _SIGKILL)
        control = _socket.socket(fileno=fd)
        for group in groups[:entered]:
            os.write(group, b"0")
        environment = dict(os.environ)
        os.environ.update(dict.fromkeys(("HOME", "TMPDIR", "MPLCONFIGDIR"), self._spec["preload_dir"]))
        getattr(preload, kind)()
        os.environ.clear()
        os.environ.update(environment)
        preload.freeze_memory()
        for group in groups[entered:]:
            os.write(group, b"0")
        for group in groups:
            os.close(group)
        threads = len(os.listdir("/proc/self/task"))
        wire.send(
            control, {"ready": threads == 1, "failed": f"it has {threads} threads and cannot be forked"}
        )
        return control


def set_affinity(processors: list[int]) -> None:
    """Keep this process to some processors, if they can be had."""
    try:
        os.sched_setaffinity(0, processors)
    except OSError:
        return


def _children_of_this_process() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        return {int(pid) for pid in children.read().split()}


def _waits_for_cell(pid: int) -> bool:
    """Whether a session's first thread is in read(3, …), as far as the kernel says such things."""
    try:
        with open(f"/proc/{pid}/syscall") as call:
            return call.read().split()[:2] == [_READ, "0x3"]
    except (FileNotFoundError, PermissionError):
        return True


def _cpu_seconds(pid: int) -> float:
    """Processor seconds of a process and of those it has waited for."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    # The clock id of another process, as the C library's clock_getcpuclockid makes it.
    own = time.clock_gettime(~pid << 3 | 2)
    return own + (int(fields[13]) + int(fields[14])) / _TICKS
