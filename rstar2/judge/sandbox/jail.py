"""One jail seen from outside: its first process, its zygotes, its end."""

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
from pathlib import Path
from typing import IO, Any

from rstar2.errors import Failure
from rstar2.judge.sandbox import rootfs, tiers
from rstar2.judge.sandbox.cgroups import Cgroup
from rstar2.judge.sandbox.inside import wire
from rstar2.judge.sandbox.protocol import JailSpec, StartCommand
from rstar2.judge.sandbox.zygote_kinds import PARENTS, ZygoteKind

_BUILD_TIMEOUT_S = 30.0
_PRELOAD_TIMEOUT_S = 120.0
REPLY_TIMEOUT_S = 5.0
"""How long a zygote may take to answer, or to report a program it was told to kill."""
CLEAN_TIMEOUT_S = 20.0
"""How long a zygote may take to remove what a program left."""
_NO_PROGRAM = 0
"""The key of what is said about no program; theirs count from 1."""
log = logging.getLogger(__name__)


class JailLost(Exception):
    """The jail died, stopped answering, or could not start a program."""


class Jail:
    """Builds a jail from a plan and speaks with its zygotes.

    Args:
        cgroup: limits the programs; the zygotes live in it too, so that a fork is in it at once.
        nursery: where zygotes get warm; what they load stays counted there, not as a program's memory.

    Raises:
        Failure: the machine refuses what the plan asks for; the message says what.
    """

    def __init__(self, spec: JailSpec, cgroup: Cgroup, preload_cgroup: Cgroup) -> None:
        self.spec = spec
        self._cgroup, self._preload_cgroup = cgroup, preload_cgroup
        self.ended: dict[int, dict[str, Any]] = {}
        """Reports of sessions that ended while nobody was waiting for them."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sockets: dict[ZygoteKind, socket.socket] = {"bare": ours}
        self._preloading: set[ZygoteKind] = set()
        self._unforkable: set[ZygoteKind] = set()
        self.profiled: set[ZygoteKind] = set()
        """Zygotes that know what programs write, or need not try again to learn it."""
        self._cleaning: ZygoteKind | None = None
        self._dirty = False
        self._log = Path(spec["log"])
        with theirs, self._log.open("wb") as log:
            self._process = _spawn(theirs.fileno(), log)
        try:
            cgroup.add(self._process.pid)
            # The kernel should rather kill a program. Only root may ask for that.
            with contextlib.suppress(OSError):
                Path(f"/proc/{self._process.pid}/oom_score_adj").write_text("-500")
            self._wait_until_built(ours)
        except BaseException:
            self.close()
            raise

    def _wait_until_built(self, control: socket.socket) -> None:
        control.settimeout(_BUILD_TIMEOUT_S)
        try:
            wire.send(control, self.spec)
            while True:
                answer = wire.receive(control)[0]
                if "failed" in answer:
                    raise Failure(f"the machine refuses it: {answer['failed']}")
                if "ready" in answer:
                    _set_timeouts(control)
                    return
                wire.send(control, _map_users(answer["map"], self.spec["first_host_uid"]))
        except (wire.Closed, TimeoutError) as error:
            raise Failure(f"the jail did not start: {self._log_tail() or 'no answer'}") from error

    def _log_tail(self) -> str:
        """What the inside complained of."""
        return self._log.read_text(errors="replace").strip()[-2000:]

    def start_zygote(self, kind: ZygoteKind) -> None:
        """Start a zygote, and those it grows from, unless they are there; they get warm while others work.

        Raises:
            Lost: the jail is gone.
        """
        if kind in self._sockets:
            return
        parent = PARENTS[kind]
        self.start_zygote(parent)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_PRELOAD_TIMEOUT_S)
        self._sockets[kind] = ours
        self._preloading.add(kind)
        enter, leave = self._preload_cgroup.open_process_lists(), self._cgroup.open_process_lists()
        try:
            order = {"op": "fork zygote", "kind": kind, "groups": len(enter)}
            self._send(parent, order, (theirs.fileno(), *enter, *leave))
        finally:
            theirs.close()
            for fd in enter + leave:
                os.close(fd)

    def zygote_socket(self, kind: ZygoteKind) -> socket.socket:
        """The socket of a zygote that is ready.

        Raises:
            Lost: it did not become ready.
        """
        self.start_zygote(kind)
        control = self._sockets[kind]
        if kind in self._preloading:
            try:
                answer = wire.receive(control)[0]
            except (wire.Closed, OSError) as error:
                raise JailLost(f"the {kind} zygote did not become ready: {self._log_tail()}") from error
            self._preloading.discard(kind)
            _set_timeouts(control)
            if not answer["ready"]:
                self._unforkable.add(kind)
        return control

    def usable_kind(self, kind: ZygoteKind) -> ZygoteKind:
        """The zygote for programs of this weight, once it is ready: this one, or if it turned out to be one that
        must not be forked, one below.

        Raises:
            Lost: it did not become ready.
        """
        self.zygote_socket(kind)
        return self.usable_kind(PARENTS[kind]) if kind in self._unforkable else kind

    def is_preloaded(self, kind: ZygoteKind) -> bool:
        """Whether a zygote is there, and takes orders without having to be waited for."""
        control = self._sockets.get(kind)
        return control is not None and (kind not in self._preloading or wait_readable(control, 0.0))

    def start(self, kind: ZygoteKind, order: StartCommand, fds: list[int]) -> None:
        """Have a zygote start a program."""
        self._send(kind, order, tuple(fds))

    def command(self, kind: ZygoteKind, op: str, key: int) -> None:
        """Have a zygote `kill` or `interrupt` a program, say how much `cpu` it took, or `pin` what it wrote."""
        self._send(kind, {"op": op, "key": key}, ())

    def has_read_all(self, kind: ZygoteKind) -> bool:
        """Whether a zygote has taken all that it was sent."""
        unread = fcntl.ioctl(self._sockets[kind], termios.TIOCOUTQ, bytes(4))
        return not any(unread)

    def _send(self, kind: ZygoteKind, message: Any, fds: tuple[int, ...]) -> None:
        try:
            wire.send(self._sockets[kind], message, fds)
        except (wire.Closed, OSError) as error:
            raise JailLost(f"the {kind} zygote is gone") from error

    def listen(self, kind: ZygoteKind, key: int) -> dict[str, Any] | None:
        """Take one message of a zygote; return it if it is about `key`, keep it if about another's end.

        Raises:
            Lost: the zygote is gone, or says that it could not start the program.
        """
        try:
            report = wire.receive(self._sockets[kind])[0]
        except (wire.Closed, OSError) as error:
            raise JailLost(f"the {kind} zygote is gone") from error
        if "failed" in report and report["key"] == key:
            raise JailLost(f"the {kind} zygote cannot go on: {report['failed']}")
        if "clean" in report:
            self._cleaning, self._dirty = None, not report["clean"]
            return None
        if report.get("cleaning"):
            self._cleaning = kind
        if report["key"] == key:
            return dict(report)
        if "status" in report:
            self.ended[report["key"]] = report
        return None

    def wait_until_clean(self) -> None:
        """Wait until what the last program left is removed; where it cannot be, take a fresh scratch space.

        Sessions have a space of their own and are none the wiser.

        Raises:
            Lost: neither can be done.
        """
        deadline = time.monotonic() + CLEAN_TIMEOUT_S
        while (kind := self._cleaning) is not None:
            left = max(0.0, deadline - time.monotonic())
            if not wait_readable(self._sockets[kind], left):
                raise JailLost(f"the {kind} zygote does not get done with removing what a program left")
            self.listen(kind, _NO_PROGRAM)
        if self._dirty:
            self._replace_scratch()
            self._dirty = False

    def _replace_scratch(self) -> None:
        if self.spec["tier"] != "strict":
            raise JailLost("what a program left could not be removed")
        log.warning("what a program left could not be removed: its scratch space is replaced")
        for kind in self._sockets:
            # One that is getting warm answers once it is.
            self.zygote_socket(kind)
            mounts = kind == "bare"
            self._send(kind, {"op": "replace scratch", "key": _NO_PROGRAM, "mount": mounts}, ())
            while self.listen(kind, _NO_PROGRAM) is None:
                pass

    def close(self) -> None:
        """Kill everything inside and wait until it is gone."""
        for control in self._sockets.values():
            control.close()
        # The first process inside ends by itself when its socket closes.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2.0)
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def _spawn(fd: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
    start = (
        f"import sys; sys.path.insert(0, {rootfs.package_root()!r}); "
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
    """Wait for something to read, or the other end's closing; False when the time is over."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _set_timeouts(control: socket.socket) -> None:
    """Bound every wait on a zygote. In the kernel, because Python's own timeouts cost a call each."""
    control.settimeout(None)
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        control.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", int(REPLY_TIMEOUT_S), 0))


def _map_users(pid: int, first: int) -> dict[str, Any]:
    try:
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{kind}").write_text(f"0 {first} {tiers.USERS_PER_JAIL}")
    except OSError as error:
        return {"failed": str(error)}
    return {"mapped": True}
