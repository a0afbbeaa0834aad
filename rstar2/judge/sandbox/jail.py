"""Builds a jail, and controls the jail's first process and the zygotes that fork programs."""

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
"""Timeout in seconds for a zygote's answer to a command. After the command to kill a program, the zygote must report
the program's end within this time."""
CLEAN_TIMEOUT_S = 60.0
"""Timeout in seconds for a zygote to remove the files that a program left."""
END_TIMEOUT_S = 60.0
"""Seconds to wait until the jail's first process has ended after it was killed. A killed process can hang in the
kernel."""
_NO_PROGRAM = 0
"""The key in messages that are not about a program. The keys of programs start at 1."""
Report = dict[str, Any]
"""A zygote's message about one program: the program's `key` and other fields, such as `status` and `cpu_s` if the
program has ended."""
log = logging.getLogger(__name__)


class JailLost(Exception):
    """The jail died, stopped answering, or could not start a program."""


class Jail:
    """One jail, which the constructor builds.

    The methods of `Jail` raise JailLost if a zygote is gone or does not answer.

    Args:
        spec: describes how to build the jail.
        discard: a function that moves a folder away, so that a new folder can be created in its place.

    Raises:
        Failure: the machine refuses a step that the spec requires. The error message says which step.
    """

    def __init__(self, spec: JailSpec, discard: Callable[[Path], None]) -> None:
        self.spec = spec
        self._discard = discard
        self.cgroup = Cgroup()
        """The control group that limits the programs. The zygotes are also in this group, so that each program is in
        the group from the moment it is forked."""
        self._preload_cgroup = Cgroup()
        """The control group of zygotes while they load libraries. This group is separate so that memory for the
        libraries does not count as a program's memory."""
        self.ended: dict[int, Report] = {}
        """Reports of programs that ended while nobody waited for their end, keyed by the program's key."""
        control, zygote_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sockets: dict[ZygoteKind, socket.socket] = {"bare": control}
        self._preloading: set[ZygoteKind] = set()
        self._unforkable: set[ZygoteKind] = set()
        """Zygotes that cannot be forked, because they have more than one thread after loading their libraries."""
        self.profiled: set[ZygoteKind] = set()
        """Zygotes that were profiled, or for which profiling failed. The zygotes in this set are not profiled again."""
        self._cleaning: ZygoteKind | None = None
        """The zygote that is removing the files of the last program, or None."""
        self._dirty = False
        """Whether files of the last program could not be removed."""
        self._log = Path(spec["log"])
        with zygote_control, self._log.open("wb") as log:
            self._process = _spawn(zygote_control.fileno(), log)
        try:
            self.cgroup.add(self._process.pid)
            # If memory is short, the kernel should kill a program instead. Only root may set this.
            with contextlib.suppress(OSError):
                Path(f"/proc/{self._process.pid}/oom_score_adj").write_text("-500")
            self._wait_until_built(control)
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
                    raise Failure(f"the machine refuses to build the jail: {answer['failed']}")
                if "ready" in answer:
                    set_timeouts(control)
                    return
                wire.send(control, _map_users(answer["map"], self.spec["first_host_uid"]))
        except (wire.Closed, TimeoutError) as error:
            raise Failure(f"the jail did not start: {self.log_tail() or 'no answer'}") from error

    def log_tail(self) -> str:
        """Returns the end of the standard error of all zygotes, such as the traceback of a zygote that failed."""
        try:
            return self._log.read_text(errors="replace").strip()[-2000:]
        except OSError as error:
            return f"its log cannot be read: {error}"

    def start_zygote(self, kind: ZygoteKind) -> None:
        """Start a zygote and its parents, unless they are already running.

        The method does not wait until the zygotes have loaded their libraries.
        """
        if kind in self._sockets:
            return
        parent = PARENTS[kind]
        self.start_zygote(parent)
        control, zygote_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        control.settimeout(_PRELOAD_TIMEOUT_S)
        self._sockets[kind] = control
        self._preloading.add(kind)
        preload, final = self._preload_cgroup.open_process_lists(), self.cgroup.open_process_lists()
        try:
            command = {"op": "fork zygote", "kind": kind, "groups": len(preload)}
            self.send(parent, command, (zygote_control.fileno(), *preload, *final))
        finally:
            zygote_control.close()
            for fd in preload + final:
                os.close(fd)

    def zygote_socket(self, kind: ZygoteKind) -> socket.socket:
        """Wait until a zygote has loaded its libraries. Returns the zygote's socket."""
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
        """Wait until a zygote has loaded its libraries.

        Returns the zygote's kind. If the zygote cannot be forked, returns the kind of its nearest ancestor that can be
        forked.
        """
        self.zygote_socket(kind)
        return self.usable_kind(PARENTS[kind]) if kind in self._unforkable else kind

    def is_preloaded(self, kind: ZygoteKind) -> bool:
        """Returns whether a zygote runs and has loaded its libraries."""
        control = self._sockets.get(kind)
        return control is not None and (kind not in self._preloading or wait_readable(control, 0.0))

    def send(self, kind: ZygoteKind, message: Mapping[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Send a message to a zygote.

        The message is a StartCommand, or an `op` such as `kill` with the `key` of a program.
        """
        try:
            wire.send(self._sockets[kind], message, fds)
        except (wire.Closed, OSError) as error:
            raise JailLost(f"the {kind} zygote is gone") from error

    def has_read_all(self, kind: ZygoteKind) -> bool:
        """Returns whether a zygote has read all messages that were sent to it."""
        unread = fcntl.ioctl(self._sockets[kind], termios.TIOCOUTQ, bytes(4))
        return not any(unread)

    def receive_report(self, kind: ZygoteKind, key: int) -> Report | None:
        """Wait for one message of a zygote. Returns the message if it is about the program `key`, and otherwise None.

        A message that reports the end of another program is stored in `ended`. The method also raises JailLost if
        the zygote could not start the program `key`.
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
        """Send the command `op` for a program to a zygote, and wait for the report that contains `field`.

        If the zygote reports the end of the program first, the report of the end is stored in `ended`.
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
        """Wait until the files of the last program are removed.

        If the files cannot be removed, use a new scratch space. The scratch spaces of sessions are separate and do not
        change.
        """
        deadline = time.monotonic() + CLEAN_TIMEOUT_S
        while (kind := self._cleaning) is not None:
            left = max(0.0, deadline - time.monotonic())
            if not wait_readable(self._sockets[kind], left):
                raise JailLost(f"the {kind} zygote takes too long to remove the files of a program")
            self.receive_report(kind, _NO_PROGRAM)
        if self._dirty:
            self._replace_scratch()
            self._dirty = False

    def _replace_scratch(self) -> None:
        log.warning("the files of a program could not be removed in time, so a new scratch space is used")
        if self.spec["tier"] != "strict":
            try:
                self._discard(Path(self.spec["work_dir"]))
                os.mkdir(self.spec["work_dir"])
            except OSError as error:
                raise JailLost(f"the files of a program could not be removed: {error}") from error
        for kind in self._sockets:
            # A zygote that is still loading libraries answers after that.
            self.zygote_socket(kind)
            mount = kind == "bare" and self.spec["tier"] == "strict"
            self.send(kind, {"op": "replace scratch", "key": _NO_PROGRAM, "mount": mount})
            while self.receive_report(kind, _NO_PROGRAM) is None:
                pass

    def close(self, end_s: float = END_TIMEOUT_S) -> None:
        """Kill all processes of the jail and wait for their end, but not longer than `end_s` seconds."""
        for control in self._sockets.values():
            control.close()
        # The first process ends by itself when its socket closes.
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
        # Pipes are used because programs get pipes, and the interpreter sets up its streams accordingly.
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        pass_fds=[fd],
    )


def wait_readable(sock: socket.socket | int, timeout_s: float) -> bool:
    """Wait until a socket has data to read or its other end is closed.

    Returns False if neither happens within `timeout_s` seconds.
    """
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def set_timeouts(control: socket.socket) -> None:
    """Limit every wait for a zygote to REPLY_TIMEOUT_S.

    The kernel enforces the limit, because Python's timeouts need an additional system call for each wait.
    """
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
