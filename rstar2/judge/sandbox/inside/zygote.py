"""The zygote: a preloaded interpreter that forks one confined process per program and reports how each program ended.

A zygote contains no secret and never runs a program's code. Programs cannot reach the zygote: in the strict tier
because of namespaces, in the landlock tier because of Landlock and seccomp. What a zygote reports about the end of a
program comes from the kernel (wait4), not from the program.

Zygotes exist only for speed. Compared with a new interpreter for each program, the sandbox runs 7 times as many trivial
programs per second on two busy cores, and 26 times as many programs that use numpy.
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

    # The code to run in a process that was forked for a program or a session.
    Forked = program.Program | session.CellLoop

_SIGINT, _SIGKILL, _SIGCONT, _SIGSTOP = 2, 9, 18, 19
_CHECK_S = 0.1
"""Minimum number of seconds between two checks of the memory, disk space and CPU share of all running programs. A
random time is added, so that programs cannot predict when a check comes."""
_CHECK_SHARE = 4
"""The time between two checks is at least this many times the duration of a check."""
_FORK_INTERVAL_MS = 50.0
_CORE_DUMPS = "/proc/self/coredump_filter"
_hidden_modules: list[object] = []


def prepare(spec: JailSpec) -> None:
    """Prepare this process as the process from which all zygotes are forked.

    Raises OSError if the machine refuses a step.
    """
    syscalls.prctl(syscalls.PR_SET_NO_NEW_PRIVS, 1)
    if os.path.exists(_CORE_DUMPS):
        # Forks inherit this. The size limit of core dumps alone is not enough: it has no effect if the machine pipes
        # core dumps to a program.
        with open(_CORE_DUMPS, "w") as parts:
            parts.write("0")
    preload.bare()
    preload.freeze_memory()
    # Created here so that a refusal of the machine is noticed now, and not with the first program.
    Confinement(spec)
    if spec["zygote_filter"]:
        syscalls.SyscallFilter(spec["zygote_filter"]).load()


def serve(spec: JailSpec, control: _socket.socket, rings: list[int], usage: int) -> Forked:
    """Carry out the worker's commands until the worker is gone.

    Returns only in a process that was forked for a program. The return value is the code that the forked process must
    run.

    Args:
        spec: describes how the jail is built.
        control: the socket of the first zygote.
        rings: descriptors of io_uring instances from `open_rings`. Each zygote takes one instance.
        usage: descriptor of the file that contains the CPU time of the jail's control group (see `group_cpu_seconds`),
            or -1 if there is no group.
    """
    # Programs inherit this interpreter's modules, and must not find this package among them.
    for name in [name for name in sys.modules if name.split(".")[0] == "rstar2"]:
        _hidden_modules.append(sys.modules.pop(name))
    strict = spec["tier"] == "strict"
    # All zygotes share one Scratch, because the empty state must be recorded before the first program runs.
    folders = namespaces.WRITABLE if strict else (spec["work_dir"],)
    changeable = namespaces.OWNED if strict and not spec["is_root"] else ()
    scratch = Scratch(folders, dedicated=strict, changeable=changeable)
    cleaner = Cleaner(scratch)
    forked: Forked | _socket.socket = control
    while isinstance(forked, _socket.socket):
        forked = Zygote(spec, forked, scratch, cleaner, rings, usage).serve()
    return forked


class _Child:
    """A running program or session.

    Args:
        start: the command that started the program or session.
        pid: id of the process that runs the program or session.
        init: the first process of the PID namespace, or None if the tier has no namespaces.
        others_s: CPU seconds that earlier programs have used in the control group.
        control: the socket for reports. For a session, the socket also receives commands.
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
        """Whether no cell of the session is running."""
        self.has_ended = False
        self.others_s = others_s
        self.unreaped_cpu_s = 0.0
        """CPU seconds of descendants for which the program had not waited, measured just before the program is
        killed."""
        self.max_memory_bytes = start["max_memory_bytes"]
        self.exceeded = ""
        """Why this zygote killed the program: `output_limit`, `memory`, or empty if the program exceeded no limit."""
        # Files in a private scratch space vanish with it, or the worker removes them.
        self.shares_scratch = not start["session"] and not (start["private_scratch"] and init is not None)
        self.pidfd = os.pidfd_open(pid)

    def roots(self) -> list[int]:
        """Returns the id of the program's process and, if the program has a PID namespace, the id of the first process
        of the namespace."""
        return [self.pid] if self.init is None else [self.pid, self.init.pid]

    def all_processes(self) -> list[int]:
        return [self.pid, *processes.descendants(self.roots())]


class Zygote:
    """One zygote, which starts programs, kills programs, and reports how programs end.

    Commands come from the zygote's control socket and from the control sockets of its sessions. See `serve` for the
    arguments.
    """

    def __init__(
        self,
        spec: JailSpec,
        control: _socket.socket,
        scratch: Scratch,
        cleaner: Cleaner,
        rings: list[int],
        usage: int,
    ) -> None:
        # In the tiers without namespaces, orphaned processes of a program become this process's children.
        syscalls.prctl(syscalls.PR_SET_CHILD_SUBREAPER, 1)
        self._spec = spec
        self._control = control
        self._confinement = Confinement(spec)
        self._memory = memory.resident_bytes([os.getpid()])
        self._scratch, self._cleaner = scratch, cleaner
        self._ring = rings.pop() if rings else -1
        self._usage = usage
        self._next_check = 0.0
        self._check_count = 0
        self._children: dict[int, _Child] = {}
        """All running programs and sessions, keyed by the pidfd of their first process."""
        self._sessions: dict[int, _Child] = {}
        """Sessions, keyed by the descriptor of their control socket. A session that has ended stays in this dictionary
        until the worker closes the session."""
        self._turns = turns.Turns()
        self._zygotes: set[int] = set()
        self._delayed: list[tuple[str, int, list[int], int]] = []
        """Arguments of `_fork_zygote` for the zygotes that must still be forked."""
        self._events = select.poll()
        self._events.register(control.fileno(), select.POLLIN)
        self._own_pids = os.open("/proc/self/ns/pid", os.O_RDONLY) if spec["tier"] == "strict" else -1

    def serve(self) -> Forked | _socket.socket:
        """Carry out commands until the worker is gone.

        Returns only in a forked process. In a new zygote, returns the zygote's socket. In any other forked process,
        returns the code to run.
        """
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
                    # The session may just have ended.
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
        """Kill all programs and end this process, because the worker is gone."""
        for child in self._children.values():
            self._kill(child)
        if self._own_pids < 0:
            self._kill_orphans(set())
        os._exit(0)

    def _start(self, start: StartCommand, fds: list[int]) -> Forked | None:
        """Fork a process for one program.

        Returns None in the zygote. In the forked process, returns the code to run.
        """
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
        """Fork a process.

        If the tier has namespaces, the forked process is in a new PID namespace. Returns two values: the first process
        of the namespace (None if there is no namespace), and the id of the forked process (0 in the forked process).
        """
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
        """Take over the program's file descriptors, confine this process, and close all other descriptors.

        This method runs in the forked process.
        """
        try:
            os.setsid()
            names = start["fds"]
            groups = [fd for name, fd in zip(names, fds, strict=True) if name == "group"]
            code = b""
            if "code" in names:
                # The code is read here and not in the zygote, because later programs inherit the zygote's memory.
                fd = fds[names.index("code")]
                code = os.read(fd, os.fstat(fd).st_size)
            # None of `fds` is 0 to 3, because these numbers are always open in the zygote.
            for number in range(4):
                os.dup2(fds[number], number, inheritable=number < 3)
            self._confinement.apply(start, groups)
        except OSError as error:
            # The program has not started, so this process may still send the report instead of the zygote.
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
        """Carry out a command for a session. If the worker has closed the session's socket, end the session."""
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
            # The report of its end is already on the way to the worker.
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
                self._end_cell(child, count_descendants=op == "end cell of all")

    def _end_cell(self, child: _Child, *, count_descendants: bool) -> None:
        """Pause a session (SIGSTOP) if it waits for its next cell. Report whether the session is paused.

        Args:
            child: the session.
            count_descendants: whether the reported CPU seconds include all descendants of the session's process.
        """
        if not child.cell_is_over and processes.waits_for_cell(child.pid):
            child.cell_is_over = True
            self._turns.end(child.processes)
        is_stopped = child.cell_is_over and child.processes.stop()
        cpu = processes.precise_cpu_seconds(child.pid)
        if is_stopped and count_descendants:
            cpu += processes.cpu_seconds(processes.descendants(child.roots()))
        _report(child, {"cpu_s": cpu, "is_stopped": is_stopped, "waited_s": child.processes.waited_s()})

    def _control_child(self, op: str, key: int) -> None:
        """Carry out a command for a program, unless the program has ended."""
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
        """Make every later fork immediately copy the memory pages to which this zygote or the child has written."""
        answer: dict[str, Any] = {"key": child.key, "prefaulted": 0}
        try:
            # Registered while the child lives. A page that the two processes no longer share is then a small page, and
            # is not copied together with a whole huge page.
            pages = prefault.written_by_either(child.pid)
            prefault.register(self._ring, pages)
            answer["prefaulted"] = len(pages)
        except OSError as error:
            answer["problem"] = str(error)
        wire.send(self._control, answer)

    def _group_cpu_seconds(self) -> float:
        """Returns the CPU seconds that all programs of the jail have used, or 0 if the jail has no control group."""
        if self._usage < 0:
            return 0.0
        helpers_s = time.process_time()
        helpers_s += processes.own_cpu_seconds(self._cleaner.pid)
        return processes.group_cpu_seconds(self._usage) - helpers_s

    def _check_when_due(self) -> float | None:
        """If the next check of the programs is due, check the programs. If the turn of a session is over, begin the
        next turn.

        Returns the milliseconds until the next check or until the end of the turn, whichever comes first. Returns None
        if no program is running.
        """
        if not self._children:
            return None
        turn_left_s = self._turns.seconds_left()
        if turn_left_s == 0:
            self._turns.next_turn()
            turn_left_s = self._turns.seconds_left()
        now = time.monotonic()
        if now >= self._next_check:
            # There can be hundreds of sessions between cells, so each check includes only one of these.
            self._check_count += 1
            for number, child in enumerate(list(self._children.values())):
                has_turn = number == self._check_count % len(self._children)
                if has_turn or not child.session or not child.cell_is_over:
                    self._check(child)
            took = time.monotonic() - now
            now += took
            self._next_check = now + max(_check_interval_s(), _CHECK_SHARE * took)
        check_left_s = self._next_check - now
        return 1000 * (check_left_s if turn_left_s is None else min(check_left_s, turn_left_s))

    def _check(self, child: _Child) -> None:
        """Limit a program's CPU share, and kill the program if it uses too much disk space or memory."""
        pids = child.all_processes()
        if child.processes.is_stopped:
            # They are stopped again as a precaution, because that is cheap.
            child.processes.stop()
        else:
            processes.bound_share(pids)
        if not child.exceeded:
            child.exceeded = self._exceeded_limit(child, pids)
            if child.exceeded:
                self._kill(child)

    def _exceeded_limit(self, child: _Child, pids: list[int]) -> str:
        """Returns the outcome of a program that exceeds a limit, or an empty string if it exceeds no limit.

        Checks only limits that the kernel does not enforce in this tier and on this machine.
        """
        max_memory_bytes = self._memory + child.max_memory_bytes if child.max_memory_bytes else 0
        # In the strict tier, the file system has a quota.
        folder = child.work_dir if self._own_pids < 0 else ""
        if not (max_memory_bytes or folder):
            return ""
        exceeded = self._cleaner.exceeded_limit(pids, max_memory_bytes, folder)
        if exceeded is None:
            # The program is paused for a second measurement, because it may be moving its folders all the time.
            os.kill(child.pid, _SIGSTOP)
            exceeded = self._cleaner.exceeded_limit(pids, max_memory_bytes, folder)
            if not child.processes.is_stopping:
                os.kill(child.pid, _SIGCONT)
        return exceeded or ""

    def _kill(self, child: _Child) -> None:
        """Kill a program and all processes that it started. `_reap` later reports the end of the program as usual."""
        # Without a control group, the CPU times of processes that die with their namespace would be lost.
        if self._usage < 0 or child.session:
            child.unreaped_cpu_s = processes.cpu_seconds(processes.descendants(child.roots()))
        os.kill(child.init.pid if child.init is not None else child.pid, _SIGKILL)

    def _reap(self, child: _Child) -> None:
        """Reap a program that has ended, end its namespace, report the program's end, and remove its files."""
        _, status, usage = os.wait4(child.pid, 0)
        cpu = usage.ru_utime + usage.ru_stime
        if child.init is not None:
            if self._usage < 0 or child.session:
                unreaped_cpu_s = processes.cpu_seconds(processes.descendants([child.init.pid]))
                cpu += max(unreaped_cpu_s, child.unreaped_cpu_s)
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
            # Only the control group counts children that the kernel reaped because the program ignores their end.
            cpu = max(cpu, self._group_cpu_seconds() - child.others_s)
        report = {"key": child.key, "status": status, "cpu_s": cpu, "exceeded": child.exceeded}
        self._scratch.restore_attributes()
        report["cleaning"] = cleaning = child.shares_scratch and not self._is_scratch_clean()
        _report(child, report)
        if child.session and child.control.fileno() not in self._sessions:
            child.control.close()
        if cleaning:
            # Cleaning comes after the report, so that it delays only the next program and not this program's result.
            wire.send(self._control, {"key": child.key, "clean": self._cleaner.clean()})

    def _is_scratch_clean(self) -> bool:
        """Returns whether the scratch space is empty. Removes a leftover source file first.

        For example, a program's source is written to a file when a traceback needs it. The source file is removed here
        only for speed: most programs that leave files leave only their source file, and then the cleaner is not needed.
        """
        if self._scratch.is_clean():
            return True
        try:
            os.unlink(f"{self._spec['work_dir']}/{program.NAME}")
        except OSError:
            return False
        return self._scratch.is_clean()

    def _replace_scratch(self, key: int, *, mount: bool) -> None:
        """Use a new scratch space.

        If `mount` is True, this zygote mounts the new scratch space. Exactly one zygote has to mount it.
        """
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
        """In the tiers without PID namespaces, kill the orphaned processes of programs that have ended.

        The orphaned processes have become children of this process.

        Args:
            spared: ids of the processes of running programs, which are not killed.

        Returns:
            The CPU seconds that the killed processes have used.
        """
        cpu = 0.0
        while orphans := processes.children(os.getpid()) - spared - self._zygotes - {self._cleaner.pid}:
            for pid in orphans:
                os.kill(pid, _SIGKILL)
                _, _, usage = os.wait4(pid, 0)
                cpu += usage.ru_utime + usage.ru_stime
        return cpu

    def _fork_delayed_zygotes(self) -> _socket.socket | None:
        """Fork the zygotes that the worker requested.

        Returns None in this process. In each forked process, returns the new zygote's socket.

        If a program of another zygote uses up the jail's process limit, the new zygotes have to wait until that program
        ends.
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
        """Fork a zygote with more libraries. Returns None in this process, and the new zygote's socket in the forked
        process.

        Args:
            kind: the kind of the new zygote.
            fd: descriptor of the new zygote's control socket. On this socket the zygote reports that it has loaded its
                libraries.
            groups: descriptors of the `cgroup.procs` files of control groups. The new zygote joins the first
                `preload_groups` groups before it loads its libraries, and the remaining groups afterwards.
            preload_groups: number of groups that the zygote joins before it loads its libraries.
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
    """Send a report about a program or session. If the worker has closed a session's socket, send nothing."""
    try:
        wire.send(child.control, {"key": child.key, **report})
    except wire.Closed:
        if not child.session:
            raise


def _check_interval_s() -> float:
    return _CHECK_S + os.urandom(1)[0] / 1000
