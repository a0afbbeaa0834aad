"""A warm interpreter that forks one confined process for each program and reports how it ended.

It holds no secret, never runs a program's code, and is out of a program's reach: another user, outside the
program's PID namespace. What it reports comes from the kernel (wait4), not from the program.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import select
import sys

from rstar2.judge.sandbox.inside import jail, kernel, program, warm, wire
from rstar2.judge.sandbox.inside.confine import Confinement
from rstar2.judge.sandbox.inside.scratch import Scratch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rstar2.judge.sandbox.plan import Plan


def prepare(plan: Plan) -> None:
    """Bring this process into the state every zygote shares.

    Raises:
        OSError: the machine refuses something the tier needs.
    """
    os.umask(0o077)
    warm.bare()
    kernel.prctl(kernel.PR_SET_NO_NEW_PRIVS, 1)
    kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
    Confinement(plan)


def main(plan: Plan, control: _socket.socket) -> None:
    """Serve; in a forked process, run what it was forked for."""
    task = Zygote(plan, control).serve()
    while isinstance(task, _socket.socket):
        task = Zygote(plan, task).serve()
    if task is not None:
        program.main(task)


class _Child:
    """A running program: its process, and the first process of its namespace."""

    def __init__(self, key: int, pid: int, init: kernel.BareInit | None) -> None:
        self.key, self.pid, self.init = key, pid, init
        self.pidfd = os.pidfd_open(pid)


class Zygote:
    """One control socket's worth of programs."""

    def __init__(self, plan: Plan, control: _socket.socket) -> None:
        self._plan = plan
        self._control = control
        self._confinement = Confinement(plan)
        self._scratch = Scratch(jail.WRITABLE) if plan["tier"] == "strict" else None
        self._children: dict[int, _Child] = {}
        self._ready = select.poll()
        self._ready.register(control.fileno(), select.POLLIN)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY) if plan["tier"] == "strict" else -1

    def serve(self) -> program.Task | _socket.socket | None:
        """Answer until the worker is gone (None). In a fork: the program to run, or a new zygote's socket."""
        while True:
            for fd, _ in self._ready.poll():
                if fd != self._control.fileno():
                    self._finish(self._children[fd])
                    continue
                try:
                    message, fds = wire.receive(self._control)
                except wire.Closed:
                    os._exit(0)
                forked = self._obey(message, fds)
                if forked is not None:
                    return forked

    def _obey(self, message: dict[str, Any], fds: list[int]) -> program.Task | _socket.socket | None:
        if message["do"] == "run":
            return self._start(message, fds)
        if message["do"] == "kill":
            for child in list(self._children.values()):
                if child.key == message["key"]:
                    self._kill(child)
            return None
        return self._grow(message["weight"], fds[0])

    def _start(self, message: dict[str, Any], fds: list[int]) -> program.Task | None:
        """Fork one program. None in the zygote."""
        try:
            init, pid = self._fork()
        except OSError as error:
            for fd in fds:
                os.close(fd)
            wire.send(self._control, {"key": message["key"], "failed": str(error)})
            return None
        if pid == 0:
            return self._become(message, fds)
        child = _Child(message["key"], pid, init)
        self._children[child.pidfd] = child
        self._ready.register(child.pidfd, select.POLLIN)
        for fd in fds:
            os.close(fd)
        return None

    def _fork(self) -> tuple[kernel.BareInit | None, int]:
        """Fork into a new PID namespace where the tier has them."""
        if self._own_pids < 0:
            return None, os.fork()
        init = kernel.BareInit()
        try:
            kernel.setns(init.pidfd, kernel.CLONE_NEWPID)
            pid = os.fork()
        except OSError:
            kernel.setns(self._own_pids, kernel.CLONE_NEWPID)
            init.end()
            raise
        if pid:
            kernel.setns(self._own_pids, kernel.CLONE_NEWPID)
        return init, pid

    def _become(self, message: dict[str, Any], fds: list[int]) -> program.Task:
        """In the forked process: take the program's descriptors, confine, drop everything else."""
        try:
            return self._confine(message, fds)
        except OSError as error:
            # The program has not begun, so this process can still speak for the zygote.
            wire.send(self._control, {"key": message["key"], "failed": str(error)})
            os._exit(1)

    def _confine(self, message: dict[str, Any], fds: list[int]) -> program.Task:
        os.setsid()
        code = message["code"]
        if code is None:
            with open(fds.pop(), "rb") as file:
                code = file.read().decode()
        # The descriptors may lie low enough to be overwritten by one another, so they are moved up first.
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 64) for fd in fds]
        for place, fd in enumerate(high):
            os.dup2(fd, place, inheritable=place < 3)
        self._confinement.apply(message["uid"], message["memory_mb"], message["place"])
        os.closerange(len(high), 1 << 16)
        return program.Task(code=code, report_fd=3, place=message["place"])

    def _kill(self, child: _Child) -> None:
        """Kill a program and all it started. Its end is reported as any other's."""
        if child.init is not None:
            os.kill(child.init.pid, 9)
        else:
            os.kill(child.pid, 9)

    def _finish(self, child: _Child) -> None:
        """Reap an ended program, end its namespace, and report."""
        _, status, usage = os.wait4(child.pid, 0)
        if child.init is not None:
            child.init.end()
        self._ready.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.pidfd]
        clean = self._scratch is None or self._scratch.clean()
        cpu = usage.ru_utime + usage.ru_stime
        wire.send(self._control, {"key": child.key, "status": status, "cpu_s": cpu, "clean": clean})

    def _grow(self, weight: str, fd: int) -> _socket.socket | None:
        """Fork a heavier zygote, which answers on `fd` once it is warm."""
        if os.fork():
            os.close(fd)
            return None
        self._control.close()
        kernel.prctl(kernel.PR_SET_PDEATHSIG, 9)
        control = _socket.socket(fileno=fd)
        getattr(warm, weight)()
        warm.settle()
        wire.send(control, {"ready": True, "threads": len(os.listdir("/proc/self/task"))})
        sys.stdout.flush()
        return control
