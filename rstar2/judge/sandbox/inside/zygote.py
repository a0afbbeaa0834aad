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

from rstar2.judge.sandbox.inside import (
    memory,
    namespaces,
    prefault,
    preload,
    processes,
    program,
    session,
    syscalls,
    turns,
    wire,
)
from rstar2.judge.sandbox.inside.cleaner import Cleaner
from rstar2.judge.sandbox.inside.confine import Confinement
from rstar2.judge.sandbox.inside.scratch import Scratch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rstar2.judge.sandbox.protocol import JailSpec, StartCommand

    # What a process forked for a program has to run.
    Forked = program.Program | session.CellLoop

_SIGINT, _SIGKILL, _SIGCONT, _SIGSTOP = 2, 9, 18, 19
_CHECK_S = 0.1
"""Least time between checks of what programs use; a random time is added, so that none can prepare for it."""
_CHECK_SHARE = 4
"""The time between checks is at least so many times what one takes."""
_FORK_INTERVAL_MS = 50.0
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
    # Fails here, and not at the first program, if the machine refuses what confines programs.
    Confinement(spec)
    if spec["zygote_filter"]:
        syscalls.SyscallFilter(spec["zygote_filter"]).load()


def serve(spec: JailSpec, control: _socket.socket, rings: list[int], usage: int) -> Forked:
    """Serve until the worker is gone. Returns only in a process forked for a program: what to run there.

    Args:
        rings: from `open_rings`; each zygote takes one.
        usage: a file with the CPU time of the jail's control group (`group_cpu_seconds`); -1: there is none.
    """
    # Programs share the interpreter, and must not find this package in it.
    for name in [name for name in sys.modules if name.split(".")[0] == "rstar2"]:
        _hidden_modules.append(sys.modules.pop(name))
    strict = spec["tier"] == "strict"
    # One for all zygotes: what is empty must be recorded before the first program runs.
    folders = namespaces.WRITABLE if strict else (spec["work_dir"],)
    changeable = namespaces.OWNED if strict and not spec["is_root"] else ()
    scratch = Scratch(folders, dedicated=strict, changeable=changeable)
    cleaner = Cleaner(scratch)
    forked: Forked | _socket.socket = control
    while isinstance(forked, _socket.socket):
        forked = Zygote(spec, forked, scratch, cleaner, rings, usage).serve()
    return forked


class _Child:
    """A running program: its process, and the first process of its namespace where it has one.

    Args:
        control: takes its reports; for a session, commands come from there as well.
    """

    def __init__(
        self,
        start: StartCommand,
        pid: int,
        init: syscalls.BareInit | None,
        others_s: float,
        control: _socket.socket,
    ) -> None:
        self.key, self.pid, self.init, self.control = start["key"], pid, init, control
        self.session, self.work_dir = start["session"], start["work_dir"]
        self.processes = turns.ProcessTree(self.all_processes)
        self.cell_is_over = True
        """A session's last cell, if it had any, is over."""
        self.has_ended = False
        self.others_s = others_s
        """CPU seconds in the control group that are not this program's."""
        self.left_s = 0.0
        """CPU seconds, when it was killed, of what it had not waited for."""
        self.most_memory = start["most_memory"]
        self.exceeded = ""
        """The limit for which it was killed, as an outcome: `output_limit` or `memory`."""
        # What a process with a private scratch space wrote disappears with it, or the worker removes it.
        self.shares_scratch = not start["session"] and not (start["private_scratch"] and init is not None)
        self.pidfd = os.pidfd_open(pid)

    def roots(self) -> list[int]:
        """Where all that it started descends from: its process, and the first one of its namespace."""
        return [self.pid] if self.init is None else [self.pid, self.init.pid]

    def all_processes(self) -> list[int]:
        return [self.pid, *processes.descendants(self.roots())]


class Zygote:
    """Starts, kills and reports on the programs of one kind of zygote, as its control socket and its sessions' say."""

    def __init__(
        self,
        spec: JailSpec,
        control: _socket.socket,
        scratch: Scratch,
        cleaner: Cleaner,
        rings: list[int],
        usage: int,
    ) -> None:
        # In the tiers without namespaces, processes that a program leaves become this process's children.
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        self._spec = spec
        self._control = control
        self._confinement = Confinement(spec)
        self._memory = memory.resident_bytes([os.getpid()])
        self._scratch, self._cleaner = scratch, cleaner
        self._ring = rings.pop() if rings else -1
        self._usage = usage
        self._next_check = 0.0
        self._in_turn = 0
        self._children: dict[int, _Child] = {}
        """By their process's descriptor."""
        self._sessions: dict[int, _Child] = {}
        """Those that are sessions, by their control socket's descriptor."""
        self._turns = turns.Turns()
        self._zygotes: set[int] = set()
        self._delayed: list[tuple[str, int, list[int], int]] = []
        """Arguments of `_fork_zygote` for the zygotes that are still to be forked."""
        self._events = select.poll()
        self._events.register(control.fileno(), select.POLLIN)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY) if spec["tier"] == "strict" else -1

    def serve(self) -> Forked | _socket.socket:
        """Serve until the worker is gone. Returns only in a fork: what to run, or a new zygote's socket."""
        while True:
            if (control := self._fork_delayed_zygotes()) is not None:
                return control
            timeout = self._check_when_due()
            if self._delayed:
                timeout = _FORK_INTERVAL_MS if timeout is None else min(timeout, _FORK_INTERVAL_MS)
            for fd, _ in self._events.poll(timeout):
                if fd in self._children:
                    self._reap(self._children[fd])
                    continue
                if fd != self._control.fileno():
                    # Unless it has just ended.
                    if fd in self._sessions:
                        self._serve_session(self._sessions[fd])
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
                        self._delayed.append((message["kind"], fds[0], fds[1:], message["groups"]))
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
        self._confinement.count_user_tasks()
        others_s = 0.0 if start["session"] else self._group_cpu_seconds()
        control = self._control
        if "control" in start["fds"]:
            number = start["fds"].index("control")
            start["fds"].pop(number)
            control = _socket.socket(fileno=fds.pop(number))
        try:
            init, pid = self._fork()
        except OSError as error:
            wire.send(control, {"key": start["key"], "failed": str(error)})
            pid = -1
        if pid == 0:
            return self._become_program(start, fds, control)
        if pid > 0:
            child = _Child(start, pid, init, others_s, control)
            if not self._children:
                self._next_check = time.monotonic() + _check_interval_s()
            self._children[child.pidfd] = child
            self._events.register(child.pidfd, select.POLLIN)
            if child.session:
                self._sessions[control.fileno()] = child
                self._events.register(control.fileno(), select.POLLIN)
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

    def _become_program(self, start: StartCommand, fds: list[int], control: _socket.socket) -> Forked:
        """In the forked process: take the program's descriptors, confine it, drop everything else."""
        try:
            os.setsid()
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
            wire.send(control, {"key": start["key"], "failed": str(error)})
            os._exit(1)
        for inherited in (self._control, control, *(child.control for child in self._sessions.values())):
            inherited.detach()
        os.closerange(4, 1 << 16)
        if self._spec["tier"] != "strict":
            os.environ["HOME"] = os.environ["TMPDIR"] = os.environ["MPLCONFIGDIR"] = start["work_dir"]
        if start["session"]:
            return session.CellLoop(channel_fd=3, work_dir=start["work_dir"])
        return program.Program(code, report_fd=3, work_dir=start["work_dir"])

    def _serve_session(self, child: _Child) -> None:
        """Do what the worker asks with a session. If the worker has closed its socket, end the session."""
        try:
            op = wire.receive(child.control)[0]["op"]
        except wire.Closed:
            self._events.unregister(child.control.fileno())
            del self._sessions[child.control.fileno()]
            if child.has_ended:
                child.control.close()
            else:
                self._kill(child)
            return
        if child.has_ended:
            # The worker is about to receive how it ended.
            return
        match op:
            case "kill":
                self._kill(child)
            case "interrupt":
                os.kill(child.pid, _SIGINT)
            case "begin cell":
                child.cell_is_over = False
                self._turns.begin(child.processes)
            case "time waited":
                _report(child, {"waited_s": child.processes.waited_s()})
            case "end cell" | "end cell of all":
                self._end_cell(child, of_all=op == "end cell of all")

    def _end_cell(self, child: _Child, *, of_all: bool) -> None:
        """Stop a session if it waits for its next cell. Report whether it is stopped.

        Args:
            of_all: report the CPU seconds of all that the session started, and not only of its process.
        """
        if not child.cell_is_over and processes.waits_for_cell(child.pid):
            child.cell_is_over = True
            self._turns.end(child.processes)
        is_stopped = child.cell_is_over and child.processes.stop()
        cpu = processes.precise_cpu_seconds(child.pid)
        if is_stopped and of_all:
            cpu += processes.cpu_seconds(processes.descendants(child.roots()))
        _report(child, {"cpu_s": cpu, "is_stopped": is_stopped, "waited_s": child.processes.waited_s()})

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
            case "prefault":
                self._prefault(child)

    def _prefault(self, child: _Child) -> None:
        """Have every later fork begin with copies of the pages that this child, and we, wrote since it was forked."""
        answer: dict[str, Any] = {"key": child.key, "prefaulted": 0}
        try:
            # While the child lives: a page that the two no longer share is then a page of its own, and is not
            # copied together with a huge page around it.
            pages = prefault.written_by_either(child.pid)
            prefault.register(self._ring, pages)
            answer["prefaulted"] = len(pages)
        except OSError as error:
            answer["problem"] = str(error)
        wire.send(self._control, answer)

    def _group_cpu_seconds(self) -> float:
        """CPU seconds of all programs of the jail, from its control group; 0 where there is none."""
        if self._usage < 0:
            return 0.0
        ours = time.process_time()
        ours += processes.own_cpu_seconds(self._cleaner.pid)
        return processes.group_cpu_seconds(self._usage) - ours

    def _check_when_due(self) -> float | None:
        """Check what programs use, and end a session's turn, if it is time to.

        Returns milliseconds until the next time, or None if nothing runs.
        """
        if not self._children:
            return None
        turn_left = self._turns.seconds_left()
        if turn_left == 0:
            self._turns.pass_on()
            turn_left = self._turns.seconds_left()
        now = time.monotonic()
        if now >= self._next_check:
            # Sessions that are between cells only in turn: there can be hundreds.
            self._in_turn += 1
            for number, child in enumerate(list(self._children.values())):
                in_turn = number == self._in_turn % len(self._children)
                if in_turn or not child.session or not child.cell_is_over:
                    self._check(child)
            took = time.monotonic() - now
            now += took
            self._next_check = now + max(_check_interval_s(), _CHECK_SHARE * took)
        check_left = self._next_check - now
        return 1000 * (check_left if turn_left is None else min(check_left, turn_left))

    def _check(self, child: _Child) -> None:
        """Bound a program's share of the processors, and end it if it has filled the disk or the memory."""
        pids = child.all_processes()
        if child.processes.is_stopped:
            # Nothing is known that could continue it, but to look again costs little.
            child.processes.stop()
        else:
            processes.bound_share(pids)
        if not child.exceeded:
            child.exceeded = self._exceeded_limit(child, pids)
            if child.exceeded:
                self._kill(child)

    def _exceeded_limit(self, child: _Child, pids: list[int]) -> str:
        """The outcome for a limit that a program has exceeded and that the kernel does not enforce here, or nothing."""
        most_memory = self._memory + child.most_memory if child.most_memory else 0
        # In the strict tier the file system has a quota.
        folder = child.work_dir if self._own_pids < 0 else ""
        if not (most_memory or folder):
            return ""
        exceeded = self._cleaner.exceeded_limit(pids, most_memory, folder)
        if exceeded is None:
            # A program that moves its folders all the time must stand still to be counted.
            os.kill(child.pid, _SIGSTOP)
            exceeded = self._cleaner.exceeded_limit(pids, most_memory, folder)
            if not child.processes.is_told_to_stop:
                os.kill(child.pid, _SIGCONT)
        return exceeded or ""

    def _kill(self, child: _Child) -> None:
        """Kill a program and all it started. Its end is reported like any other."""
        # The kernel forgets the times of what dies with its namespace; a control group does not.
        if self._usage < 0 or child.session:
            child.left_s = processes.cpu_seconds(processes.descendants(child.roots()))
        os.kill(child.init.pid if child.init is not None else child.pid, _SIGKILL)

    def _reap(self, child: _Child) -> None:
        """Reap an ended program, end its namespace, report, and then remove what it wrote."""
        _, status, usage = os.wait4(child.pid, 0)
        cpu = usage.ru_utime + usage.ru_stime
        if child.init is not None:
            if self._usage < 0 or child.session:
                left = processes.cpu_seconds(processes.descendants([child.init.pid]))
                cpu += max(left, child.left_s)
            child.init.end()
        self._events.unregister(child.pidfd)
        os.close(child.pidfd)
        del self._children[child.pidfd]
        child.has_ended = True
        if child.session:
            self._turns.end(child.processes)
        if self._own_pids < 0:
            cpu += self._kill_orphans({other.pid for other in self._children.values()})
        if not child.session:
            # This also has what the others lack: children whose end the program told the kernel to ignore.
            cpu = max(cpu, self._group_cpu_seconds() - child.others_s)
        report = {"key": child.key, "status": status, "cpu_s": cpu, "exceeded": child.exceeded}
        self._scratch.restore_attributes()
        report["cleaning"] = cleaning = child.shares_scratch and not self._is_scratch_clean()
        _report(child, report)
        if child.session and child.control.fileno() not in self._sessions:
            child.control.close()
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
        while left := processes.children(os.getpid()) - spared - self._zygotes - {self._cleaner.pid}:
            for pid in left:
                os.kill(pid, _SIGKILL)
                _, _, usage = os.wait4(pid, 0)
                cpu += usage.ru_utime + usage.ru_stime
        return cpu

    def _fork_delayed_zygotes(self) -> _socket.socket | None:
        """Fork the zygotes that were asked for. Returns only in a new one its socket.

        While a program of another zygote has every process that the jail may have, they have to wait for its end.
        """
        while self._delayed:
            try:
                control = self._fork_zygote(*self._delayed[0])
            except BlockingIOError:
                return None
            if control is not None:
                return control
            self._delayed.pop(0)
        return None

    def _fork_zygote(
        self, kind: str, fd: int, groups: list[int], preload_groups: int
    ) -> _socket.socket | None:
        """Fork a zygote with more libraries, which answers on `fd` when it has loaded them.

        Args:
            groups: process lists of the control groups to be in while loading (the first `preload_groups`), and
                afterwards.
        """
        if pid := os.fork():
            self._zygotes.add(pid)
            for other in (fd, *groups):
                os.close(other)
            return None
        for inherited in (self._control, *(child.control for child in self._sessions.values())):
            inherited.close()
        if self._ring >= 0:
            os.close(self._ring)
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


def _report(child: _Child, report: dict[str, Any]) -> None:
    """Report on a program, unless the worker has closed a session's socket."""
    try:
        wire.send(child.control, {"key": child.key, **report})
    except wire.Closed:
        if not child.session:
            raise


def _check_interval_s() -> float:
    return _CHECK_S + os.urandom(1)[0] / 1000
