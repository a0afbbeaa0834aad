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

from rstar2.judge.sandbox.inside import namespaces, preload, program, syscalls, wire
from rstar2.judge.sandbox.inside import session as cells
from rstar2.judge.sandbox.inside.confine import Confinement
from rstar2.judge.sandbox.inside.prefault import Pins, written_since_fork
from rstar2.judge.sandbox.inside.scratch import Scratch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rstar2.judge.sandbox.protocol import Plan, Start

_SIGINT, _SIGKILL = 2, 9
_TICKS = os.sysconf("SC_CLK_TCK")
_READ = {"x86_64": "0", "aarch64": "63"}[os.uname().machine]
"""The number of read(2)."""
_kept: list[object] = []


def prepare(plan: Plan) -> None:
    """Bring this process into the state every zygote shares.

    Raises:
        OSError: the machine refuses something the tier needs.
    """
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    preload.bare()
    preload.settle()
    Confinement(plan)


def serve(plan: Plan, control: _socket.socket, rings: list[int]) -> program.Program | cells.Session:
    """Serve until the worker is gone. Returns only in a process forked for a program, with that program.

    Args:
        rings: for the zygotes' pins.
    """
    _hide()
    strict = plan["tier"] == "strict"
    # One for all zygotes: what is empty must be learnt before the first program runs.
    scratch = Scratch(namespaces.WRITABLE if strict else (plan["place"],), own=strict)
    task = Zygote(plan, control, scratch, rings).serve()
    while isinstance(task, _socket.socket):
        task = Zygote(plan, task, scratch, rings).serve()
    return task


def _hide() -> None:
    """Take this package out of sight of programs, which share the interpreter. It stays alive in _kept."""
    for name in [name for name in sys.modules if name.split(".")[0] == "rstar2"]:
        _kept.append(sys.modules.pop(name))


class _Child:
    """A running program: its process, and the first process of its namespace where it has one."""

    def __init__(self, start: Start, pid: int, init: syscalls.BareInit | None) -> None:
        self.key, self.pid, self.init = start["key"], pid, init
        # What a process with a space of its own wrote is gone with it, or is for the worker to remove.
        self.shares_space = not start["session"] and not (start["own_space"] and init is not None)
        self.pidfd = os.pidfd_open(pid)


class Zygote:
    """One control socket's worth of programs."""

    def __init__(self, plan: Plan, control: _socket.socket, scratch: Scratch, rings: list[int]) -> None:
        # What a program leaves behind in the tiers without namespaces becomes this process's child.
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        self._plan = plan
        self._control = control
        self._confinement = Confinement(plan)
        self._scratch = scratch
        self._pins = Pins(rings)
        self._processors = plan["processors"]
        self._processor = -1
        self._children: dict[int, _Child] = {}
        self._zygotes: set[int] = set()
        self._ready = select.poll()
        self._ready.register(control.fileno(), select.POLLIN)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY) if plan["tier"] == "strict" else -1

    def serve(self) -> program.Program | cells.Session | _socket.socket:
        """Answer until the worker is gone. Returns only in a fork: what to run, or a new zygote's socket."""
        while True:
            for fd, _ in self._ready.poll():
                if fd != self._control.fileno():
                    self._finish(self._children[fd])
                    continue
                try:
                    message, fds = wire.receive(self._control)
                except wire.Closed:
                    self._end()
                forked = self._obey(message, fds)
                if forked is not None:
                    return forked

    def _end(self) -> None:
        """The worker is gone: leave nothing behind."""
        for child in self._children.values():
            self._kill(child)
        if self._own_pids < 0:
            self._sweep(set())
        os._exit(0)

    def _obey(self, message: Any, fds: list[int]) -> program.Program | cells.Session | _socket.socket | None:
        if message["do"] == "start":
            return self._start(message, fds)
        if message["do"] == "grow":
            return self._grow(message["weight"], fds[0], fds[1:], message["groups"])
        if message["do"] == "renew":
            self._renew(message["key"], mount=message["mount"])
            return None
        for child in list(self._children.values()):
            if child.key == message["key"]:
                if message["do"] == "kill":
                    self._kill(child)
                elif message["do"] == "pin":
                    self._pin(child)
                elif message["do"] == "interrupt":
                    os.kill(child.pid, _SIGINT)
                else:
                    # In this order: what it does after it was seen waiting is the next cell's.
                    waits = _waits_for_order(child.pid)
                    cpu = _cpu_seconds(child.pid)
                    wire.send(self._control, {"key": child.key, "cpu_s": cpu, "waits": waits})
                return None
        if message["do"] == "pin":
            wire.send(self._control, {"key": message["key"], "pinned": 0, "trouble": "it has ended"})
        return None

    def _start(self, start: Start, fds: list[int]) -> program.Program | cells.Session | None:
        """Fork one program. None in the zygote."""
        if start["processor"] != self._processor:
            self._processor = start["processor"]
            keep_to(self._processors if self._processor < 0 else [self._processor])
        try:
            init, pid = self._fork()
        except OSError as error:
            wire.send(self._control, {"key": start["key"], "failed": str(error)})
            pid = -1
        if pid == 0:
            return self._become(start, fds)
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

    def _become(self, start: Start, fds: list[int]) -> program.Program | cells.Session:
        """In the forked process: take the program's descriptors, confine, drop everything else."""
        try:
            return self._confine(start, fds)
        except OSError as error:
            # The program has not begun, so this process can still speak for the zygote.
            wire.send(self._control, {"key": start["key"], "failed": str(error)})
            os._exit(1)

    def _confine(self, start: Start, fds: list[int]) -> program.Program | cells.Session:
        os.setsid()
        keep_to(self._processors)
        names = start["fds"]
        groups = [fd for name, fd in zip(names, fds, strict=True) if name == "group"]
        code = start["code"]
        if code is None and "code" in names:
            with open(fds[names.index("code")], "rb", closefd=False) as file:
                code = file.read().decode()
        # None of them lies at 0 to 3, where the zygote holds something always.
        for place in range(4):
            os.dup2(fds[place], place, inheritable=place < 3)
        self._confinement.apply(start, groups)
        self._control.detach()
        os.closerange(4, 1 << 16)
        if self._plan["tier"] != "strict":
            os.environ["HOME"] = os.environ["TMPDIR"] = os.environ["MPLCONFIGDIR"] = start["place"]
        if start["session"]:
            return cells.Session(channel_fd=3, place=start["place"])
        return program.Program(code=code or "", report_fd=3, place=start["place"], nonce=start["nonce"])

    def _pin(self, child: _Child) -> None:
        """Have every fork from now on begin with copies of what this child, and we, have written since its own."""
        answer: dict[str, Any] = {"key": child.key, "pinned": 0}
        try:
            # While the child lives: what it does not share any more is in pages of its own, and is not copied
            # along with a huge page around it.
            pages = written_since_fork(child.pid) | written_since_fork(os.getpid())
            self._pins.hold(pages)
            answer["pinned"] = len(pages)
        except OSError as error:
            answer["trouble"] = str(error)
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
        cleaning = child.shares_space and not self._scratch.is_clean()
        wire.send(self._control, {"key": child.key, "status": status, "cpu_s": cpu, "cleaning": cleaning})
        if cleaning:
            # Its end is known already: how much it left makes no program late, only the next one wait.
            wire.send(self._control, {"key": child.key, "clean": self._scratch.clean()})

    def _renew(self, key: int, *, mount: bool) -> None:
        """Go over to a fresh scratch space.

        Args:
            mount: it is for this zygote to mount it; the others find it mounted.
        """
        answer: dict[str, Any] = {"key": key}
        try:
            if mount:
                namespaces.renew_scratch(self._plan)
            self._scratch.learn()
            self._confinement.renew()
        except OSError as error:
            answer["failed"] = str(error)
        wire.send(self._control, answer)

    def _sweep(self, spared: set[int]) -> None:
        """Without a PID namespace: kill what an ended program left, which is this process's child by now."""
        while left := _children_of_this_process() - spared - self._zygotes:
            for pid in left:
                os.kill(pid, _SIGKILL)
                os.waitpid(pid, 0)

    def _grow(self, weight: str, fd: int, groups: list[int], there: int) -> _socket.socket | None:
        """Fork a heavier zygote, which answers on `fd` once it is warm.

        Args:
            groups: process lists of the control groups to get warm in (the first `there`), then to return to.
        """
        if pid := os.fork():
            self._zygotes.add(pid)
            for other in (fd, *groups):
                os.close(other)
            return None
        self._control.close()
        self._pins.close()
        keep_to(self._processors)
        syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _SIGKILL)
        control = _socket.socket(fileno=fd)
        for group in groups[:there]:
            os.write(group, b"0")
        environment = dict(os.environ)
        os.environ.update(dict.fromkeys(("HOME", "TMPDIR", "MPLCONFIGDIR"), self._plan["nursery"]))
        getattr(preload, weight)()
        os.environ.clear()
        os.environ.update(environment)
        preload.settle()
        for group in groups[there:]:
            os.write(group, b"0")
        for group in groups:
            os.close(group)
        threads = len(os.listdir("/proc/self/task"))
        wire.send(
            control, {"ready": threads == 1, "failed": f"it has {threads} threads and cannot be forked"}
        )
        return control


def keep_to(processors: list[int]) -> None:
    """Keep this process to some processors, if they can be had."""
    try:
        os.sched_setaffinity(0, processors)
    except OSError:
        return


def _children_of_this_process() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        return {int(pid) for pid in children.read().split()}


def _waits_for_order(pid: int) -> bool:
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
