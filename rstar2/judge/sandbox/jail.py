"""Builds a jail and controls the processes in it: its first process, and the zygotes that fork programs."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from rstar2.errors import Failure
from rstar2.judge.sandbox import rootfs
from rstar2.judge.sandbox.host.cgroups import Cgroup
from rstar2.judge.sandbox.host.users import USERS_PER_JAIL
from rstar2.judge.sandbox.inside import wire
from rstar2.judge.sandbox.protocol import JailSpec
from rstar2.judge.sandbox.zygote_kinds import PARENTS, ZygoteKind

_BUILD_TIMEOUT_S = 120.0
_PRELOAD_TIMEOUT_S = 300.0
REPLY_TIMEOUT_S = 30.0
"""How long a zygote may take to answer, or to report a program it was told to kill."""
CLEAN_TIMEOUT_S = 60.0
"""How long a zygote may take to remove what a program left."""
END_TIMEOUT_S = 60.0
"""How long a jail's first process may take to end once it is killed; in the kernel it can hang."""
_NO_PROGRAM = 0
"""The key of messages about no program; programs' keys start at 1."""
Report = dict[str, Any]
"""What a zygote reports of one program: `key`, and what it is about (`status` and `cpu_s` for its end)."""
log = logging.getLogger(__name__)


class JailLost(Exception):
    """The jail died, stopped answering, or could not start a program."""


class Jail:
    """One jail, built on creation. Its methods raise JailLost where a zygote is gone or does not answer.

    Args:
        discard: takes a folder away, so that a new one can be made in its place.

    Raises:
        Failure: the machine refuses what the spec asks for; the message says what.
    """

    def __init__(self, spec: JailSpec, discard: Callable[[Path], None]) -> None:
        self.spec = spec
        self._discard = discard
        self.cgroup = Cgroup()
        """Limits the programs; the zygotes are in it too, so that a fork is in it at once."""
        self._preload_cgroup = Cgroup()
        """For zygotes while they load libraries; what they load stays counted there, not as a program's memory."""
        self.ended: dict[int, Report] = {}
        """Reports of programs that ended while nothing waited for them."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sockets: dict[ZygoteKind, socket.socket] = {"bare": ours}
        self._preloading: set[ZygoteKind] = set()
        self._unforkable: set[ZygoteKind] = set()
        self.profiled: set[ZygoteKind] = set()
        """Zygotes whose written pages are known, or that need not be profiled again."""
        self._cleaning: ZygoteKind | None = None
        self._dirty = False
        self._log = Path(spec["log"])
        with theirs, self._log.open("wb") as log:
            self._process = _spawn(theirs.fileno(), log)
        try:
            self.cgroup.add(self._process.pid)
            # The kernel should rather kill a program. Only root may ask for that.
            with contextlib.suppress(OSError):
                Path(f"/proc/{self._process.pid}/oom_score_adj").write_text("-500")
            self._wait_until_built(ours)
        except BaseException:
            self.close()
            raise

    def _wait_until_built(self, control: socket.socket) -> None:
        control.settimeout(_BUILD_TIMEOUT_S)
        usage = self.cgroup.cpu_time_fd
        try:
            wire.send(control, self.spec, () if usage < 0 else (usage,))
            while True:
                answer = wire.receive(control)[0]
                if "failed" in answer:
                    raise Failure(f"the machine refuses it: {answer['failed']}")
                if "ready" in answer:
                    set_timeouts(control)
                    return
                wire.send(control, _map_users(answer["map"], self.spec["first_host_uid"]))
        except (wire.Closed, TimeoutError) as error:
            raise Failure(f"the jail did not start: {self.log_tail() or 'no answer'}") from error

    def log_tail(self) -> str:
        """The end of what the processes inside wrote on standard error, such as a traceback of a zygote that failed."""
        try:
            return self._log.read_text(errors="replace").strip()[-2000:]
        except OSError as error:
            return f"its log cannot be read: {error}"

    def start_zygote(self, kind: ZygoteKind) -> None:
        """Start a zygote, and those it is forked from, unless they run; they load libraries meanwhile."""
        if kind in self._sockets:
            return
        parent = PARENTS[kind]
        self.start_zygote(parent)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_PRELOAD_TIMEOUT_S)
        self._sockets[kind] = ours
        self._preloading.add(kind)
        preload, final = self._preload_cgroup.open_process_lists(), self.cgroup.open_process_lists()
        try:
            command = {"op": "fork zygote", "kind": kind, "groups": len(preload)}
            self.send(parent, command, (theirs.fileno(), *preload, *final))
        finally:
            theirs.close()
            for fd in preload + final:
                os.close(fd)

    def zygote_socket(self, kind: ZygoteKind) -> socket.socket:
        """The socket of a zygote, once it has loaded its libraries."""
        self.start_zygote(kind)
        control = self._sockets[kind]
        if kind in self._preloading:
            try:
                answer = wire.receive(control)[0]
            except (wire.Closed, OSError) as error:
                raise JailLost(f"the {kind} zygote did not become ready: {self.log_tail()}") from error
            self._preloading.discard(kind)
            set_timeouts(control)
            if not answer["ready"]:
                self._unforkable.add(kind)
        return control

    def usable_kind(self, kind: ZygoteKind) -> ZygoteKind:
        """Wait for a zygote. Returns its kind, or where that one must not be forked, the nearest parent's."""
        self.zygote_socket(kind)
        return self.usable_kind(PARENTS[kind]) if kind in self._unforkable else kind

    def is_preloaded(self, kind: ZygoteKind) -> bool:
        """Whether a zygote runs and has loaded its libraries."""
        control = self._sockets.get(kind)
        return control is not None and (kind not in self._preloading or wait_readable(control, 0.0))

    def send(self, kind: ZygoteKind, message: Mapping[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Send a zygote a message: a StartCommand, or an `op` (`kill`, `interrupt`, …) for the program `key`."""
        try:
            wire.send(self._sockets[kind], message, fds)
        except (wire.Closed, OSError) as error:
            raise JailLost(f"the {kind} zygote is gone") from error

    def has_read_all(self, kind: ZygoteKind) -> bool:
        """Whether a zygote has received all that it was sent."""
        unread = fcntl.ioctl(self._sockets[kind], termios.TIOCOUTQ, bytes(4))
        return not any(unread)

    def receive_report(self, kind: ZygoteKind, key: int) -> Report | None:
        """Wait for one message of a zygote. Returns it if it is about `key`; keeps it if about another's end.

        JailLost also means that the zygote could not start the program.
        """
        try:
            report: Report = wire.receive(self._sockets[kind])[0]
        except (wire.Closed, OSError) as error:
            raise JailLost(f"the {kind} zygote is gone") from error
        if "failed" in report and report["key"] == key:
            raise JailLost(f"the {kind} zygote failed: {report['failed']}")
        if "clean" in report:
            self._cleaning, self._dirty = None, not report["clean"]
            return None
        if report.get("cleaning"):
            self._cleaning = kind
        if report["key"] == key:
            return report
        if "status" in report:
            self.ended[report["key"]] = report
        return None

    def query(self, kind: ZygoteKind, op: str, key: int, field: str) -> Report:
        """Send a zygote an `op` for a program, and wait for the report that has `field`.

        If the program's end is reported meanwhile, it is in `ended` afterwards.
        """
        self.send(kind, {"op": op, "key": key})
        while True:
            report = self.receive_report(kind, key)
            if report is not None:
                if "status" in report:
                    self.ended[key] = report
                if field in report:
                    return report

    def wait_until_clean(self) -> None:
        """Wait until what the last program left is removed; where that fails, use a new scratch space.

        Sessions have scratch spaces of their own, which stay.
        """
        deadline = time.monotonic() + CLEAN_TIMEOUT_S
        while (kind := self._cleaning) is not None:
            left = max(0.0, deadline - time.monotonic())
            if not wait_readable(self._sockets[kind], left):
                raise JailLost(f"the {kind} zygote takes too long to remove what a program left")
            self.receive_report(kind, _NO_PROGRAM)
        if self._dirty:
            self._replace_scratch()
            self._dirty = False

    def _replace_scratch(self) -> None:
        log.warning("what a program left could not be removed at once: its scratch space is replaced")
        if self.spec["tier"] != "strict":
            try:
                self._discard(Path(self.spec["work_dir"]))
                os.mkdir(self.spec["work_dir"])
            except OSError as error:
                raise JailLost(f"what a program left could not be removed: {error}") from error
        for kind in self._sockets:
            # One that is still loading libraries answers when it has.
            self.zygote_socket(kind)
            mount = kind == "bare" and self.spec["tier"] == "strict"
            self.send(kind, {"op": "replace scratch", "key": _NO_PROGRAM, "mount": mount})
            while self.receive_report(kind, _NO_PROGRAM) is None:
                pass

    def close(self, end_s: float = END_TIMEOUT_S) -> None:
        """Kill everything inside and wait until it has ended; what has not after `end_s` is logged and left."""
        for control in self._sockets.values():
            control.close()
        # The first process inside ends by itself when its socket closes.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2.0)
        self._process.kill()
        try:
            self._process.wait(timeout=end_s)
        except subprocess.TimeoutExpired:
            log.error("a jail's first process, %d, was killed and has not ended", self._process.pid)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
        self.cgroup.close()
        self._preload_cgroup.close()


def _spawn(fd: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    start = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).resolve().parents[3])!r}); "
        f"from rstar2.judge.sandbox.inside.main import main; main({fd})"
    )
    return subprocess.Popen(
        [sys.executable, "-I", "-S", "-X", "utf8", "-c", start],
        env=rootfs.ENVIRONMENT,
        cwd="/",
        # Pipes, so that the interpreter's own streams are set up as programs will use them.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        pass_fds=[fd],
    )


def wait_readable(sock: socket.socket | int, timeout_s: float) -> bool:
    """Wait for something to read, or for the other end to close. False on timeout."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def set_timeouts(control: socket.socket) -> None:
    """Bound every wait for a zygote. In the kernel, because Python's own timeouts cost a system call each."""
    control.settimeout(None)
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        control.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", int(REPLY_TIMEOUT_S), 0))


def _map_users(pid: int, first: int) -> dict[str, Any]:
    try:
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{name}").write_text(f"0 {first} {USERS_PER_JAIL}")
    except OSError as error:
        return {"failed": str(error)}
    return {"mapped": True}
