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
from rstar2.judge.sandbox.protocol import Plan, Start
from rstar2.judge.sandbox.zygote_kinds import PARENTS, Weight

_BUILD_S = 30.0
_WARM_S = 120.0
SILENCE_S = 5.0
"""How long a zygote may take to answer, or to report a program it was told to kill."""
CLEAN_S = 20.0
"""How long a zygote may take to remove what a program left."""
_NO_PROGRAM = 0
"""The key of what is said about no program; theirs count from 1."""
log = logging.getLogger(__name__)


class Lost(Exception):
    """The jail died, stopped answering, or could not start a program."""


class Enclosure:
    """Builds a jail from a plan and speaks with its zygotes.

    Args:
        cgroup: limits the programs; the zygotes live in it too, so that a fork is in it at once.
        nursery: where zygotes get warm; what they load stays counted there, not as a program's memory.

    Raises:
        Failure: the machine refuses what the plan asks for; the message says what.
    """

    def __init__(self, plan: Plan, cgroup: Cgroup, nursery: Cgroup) -> None:
        self.plan = plan
        self._cgroup, self._nursery = cgroup, nursery
        self.ended: dict[int, dict[str, Any]] = {}
        """Reports of sessions that ended while nobody was waiting for them."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._sockets: dict[Weight, socket.socket] = {"bare": ours}
        self._warming: set[Weight] = set()
        self._unfit: set[Weight] = set()
        self.rehearsed: set[Weight] = set()
        """Zygotes that know what programs write, or need not try again to learn it."""
        self._cleaning: Weight | None = None
        self._dirty = False
        self._log = Path(plan["log"])
        with theirs, self._log.open("wb") as log:
            self._process = _launch(theirs.fileno(), log)
        try:
            cgroup.add(self._process.pid)
            # The kernel should rather kill a program. Only root may ask for that.
            with contextlib.suppress(OSError):
                Path(f"/proc/{self._process.pid}/oom_score_adj").write_text("-500")
            self._shake_hands(ours)
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, control: socket.socket) -> None:
        control.settimeout(_BUILD_S)
        try:
            wire.send(control, self.plan)
            while True:
                answer = wire.receive(control)[0]
                if "failed" in answer:
                    raise Failure(f"the machine refuses it: {answer['failed']}")
                if "ready" in answer:
                    _bound(control)
                    return
                wire.send(control, _map_users(answer["map"], self.plan["first_outer_uid"]))
        except (wire.Closed, TimeoutError) as error:
            raise Failure(f"the jail did not start: {self._last_words() or 'no answer'}") from error

    def _last_words(self) -> str:
        """What the inside complained of."""
        return self._log.read_text(errors="replace").strip()[-2000:]

    def grow(self, weight: Weight) -> None:
        """Start a zygote, and those it grows from, unless they are there; they get warm while others work.

        Raises:
            Lost: the jail is gone.
        """
        if weight in self._sockets:
            return
        parent = PARENTS[weight]
        self.grow(parent)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_WARM_S)
        self._sockets[weight] = ours
        self._warming.add(weight)
        there, back = self._nursery.entrances(), self._cgroup.entrances()
        try:
            order = {"do": "grow", "weight": weight, "groups": len(there)}
            self._send(parent, order, (theirs.fileno(), *there, *back))
        finally:
            theirs.close()
            for fd in there + back:
                os.close(fd)

    def control(self, weight: Weight) -> socket.socket:
        """The socket of a zygote that is ready.

        Raises:
            Lost: it did not become ready.
        """
        self.grow(weight)
        control = self._sockets[weight]
        if weight in self._warming:
            try:
                answer = wire.receive(control)[0]
            except (wire.Closed, OSError) as error:
                raise Lost(f"the {weight} zygote did not become ready: {self._last_words()}") from error
            self._warming.discard(weight)
            _bound(control)
            if not answer["ready"]:
                self._unfit.add(weight)
        return control

    def fit(self, weight: Weight) -> Weight:
        """The zygote for programs of this weight, once it is ready: this one, or if it turned out to be one that
        must not be forked, one below.

        Raises:
            Lost: it did not become ready.
        """
        self.control(weight)
        return self.fit(PARENTS[weight]) if weight in self._unfit else weight

    def is_ready(self, weight: Weight) -> bool:
        """Whether a zygote is there, and takes orders without having to be waited for."""
        control = self._sockets.get(weight)
        return control is not None and (weight not in self._warming or readable(control, 0.0))

    def start(self, weight: Weight, order: Start, fds: list[int]) -> None:
        """Have a zygote start a program."""
        self._send(weight, order, tuple(fds))

    def tell(self, weight: Weight, do: str, key: int) -> None:
        """Have a zygote `kill` or `interrupt` a program, say how much `cpu` it took, or `pin` what it wrote."""
        self._send(weight, {"do": do, "key": key}, ())

    def has_read(self, weight: Weight) -> bool:
        """Whether a zygote has taken all that it was sent."""
        unread = fcntl.ioctl(self._sockets[weight], termios.TIOCOUTQ, bytes(4))
        return not any(unread)

    def _send(self, weight: Weight, message: Any, fds: tuple[int, ...]) -> None:
        try:
            wire.send(self._sockets[weight], message, fds)
        except (wire.Closed, OSError) as error:
            raise Lost(f"the {weight} zygote is gone") from error

    def listen(self, weight: Weight, key: int) -> dict[str, Any] | None:
        """Take one message of a zygote; return it if it is about `key`, keep it if about another's end.

        Raises:
            Lost: the zygote is gone, or says that it could not start the program.
        """
        try:
            report = wire.receive(self._sockets[weight])[0]
        except (wire.Closed, OSError) as error:
            raise Lost(f"the {weight} zygote is gone") from error
        if "failed" in report and report["key"] == key:
            raise Lost(f"the {weight} zygote cannot go on: {report['failed']}")
        if "clean" in report:
            self._cleaning, self._dirty = None, not report["clean"]
            return None
        if report.get("cleaning"):
            self._cleaning = weight
        if report["key"] == key:
            return dict(report)
        if "status" in report:
            self.ended[report["key"]] = report
        return None

    def settle(self) -> None:
        """Wait until what the last program left is removed; where it cannot be, take a fresh scratch space.

        Sessions have a space of their own and are none the wiser.

        Raises:
            Lost: neither can be done.
        """
        deadline = time.monotonic() + CLEAN_S
        while (weight := self._cleaning) is not None:
            left = max(0.0, deadline - time.monotonic())
            if not readable(self._sockets[weight], left):
                raise Lost(f"the {weight} zygote does not get done with removing what a program left")
            self.listen(weight, _NO_PROGRAM)
        if self._dirty:
            self._renew()
            self._dirty = False

    def _renew(self) -> None:
        if self.plan["tier"] != "strict":
            raise Lost("what a program left could not be removed")
        log.warning("what a program left could not be removed: its scratch space is replaced")
        for weight in self._sockets:
            # One that is getting warm answers once it is.
            self.control(weight)
            mounts = weight == "bare"
            self._send(weight, {"do": "renew", "key": _NO_PROGRAM, "mount": mounts}, ())
            while self.listen(weight, _NO_PROGRAM) is None:
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


def _launch(fd: int, log: IO[bytes]) -> subprocess.Popen[bytes]:
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


def readable(sock: socket.socket | int, timeout_s: float) -> bool:
    """Wait for something to read, or the other end's closing; False when the time is over."""
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(timeout_s * 1000))


def _bound(control: socket.socket) -> None:
    """Bound every wait on a zygote. In the kernel, because Python's own timeouts cost a call each."""
    control.settimeout(None)
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        control.setsockopt(socket.SOL_SOCKET, direction, struct.pack("ll", int(SILENCE_S), 0))


def _map_users(pid: int, first: int) -> dict[str, Any]:
    try:
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{pid}/{kind}").write_text(f"0 {first} {tiers.USERS}")
    except OSError as error:
        return {"failed": str(error)}
    return {"mapped": True}
