"""One jail seen from outside: its first process, its zygotes, its end."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rstar2.errors import Failure
from rstar2.judge.sandbox import layout
from rstar2.judge.sandbox.cgroups import Cgroup
from rstar2.judge.sandbox.inside import wire
from rstar2.judge.sandbox.plan import Plan
from rstar2.judge.sandbox.weights import Weight

_BUILD_S = 30.0
_WARM_S = 120.0
_HOST_UIDS = 1_879_048_192
"""First of the outer users that a jail's users are mapped to: a range no distribution hands out."""
_UIDS = 65536


class Lost(Exception):
    """The jail died or stopped answering."""


class Enclosure:
    """Builds a jail from a plan and holds the sockets of its zygotes.

    Raises:
        Failure: the machine refuses what the plan asks for; the message says what.
    """

    def __init__(self, plan: Plan, cgroup: Cgroup | None) -> None:
        self._plan = plan
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        fd = theirs.fileno()
        start = (
            f"import sys; sys.path.insert(0, {layout.package_root()!r}); "
            f"from rstar2.judge.sandbox.inside.launch import main; main({fd})"
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-X", "utf8", "-c", start],
                env=layout.ENVIRONMENT,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[fd],
            )
        self.zygotes: dict[Weight, socket.socket] = {"bare": ours}
        try:
            if cgroup is not None:
                cgroup.add(self._process.pid)
            with contextlib.suppress(OSError):
                Path(f"/proc/{self._process.pid}/oom_score_adj").write_text("-500")
            self._shake_hands(ours)
        except BaseException:
            self.close()
            raise

    def _shake_hands(self, control: socket.socket) -> None:
        control.settimeout(_BUILD_S)
        wire.send(control, self._plan)
        while True:
            try:
                answer = wire.receive(control)[0]
            except (wire.Closed, TimeoutError) as error:
                raise Failure(f"the jail did not start: {self._last_words() or 'no answer'}") from error
            if "failed" in answer:
                raise Failure(f"the machine refuses the {self._plan['tier']} tier: {answer['failed']}")
            if "ready" in answer:
                control.settimeout(None)
                return
            wire.send(control, self._map_users(answer["map"]))

    def _map_users(self, pid: int) -> dict[str, Any]:
        try:
            for kind in ("uid_map", "gid_map"):
                Path(f"/proc/{pid}/{kind}").write_text(f"0 {_HOST_UIDS} {_UIDS}")
        except OSError as error:
            return {"failed": str(error)}
        return {"mapped": True}

    def _last_words(self) -> str:
        self._process.kill()
        return (self._process.stderr.read() if self._process.stderr else b"").decode(errors="replace").strip()

    def grow(self, weight: Weight) -> None:
        """Start a heavier zygote; it answers `ready` on its socket when it is warm."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.settimeout(_WARM_S)
        with theirs:
            try:
                wire.send(self.zygotes["bare"], {"do": "grow", "weight": weight}, (theirs.fileno(),))
            except (wire.Closed, OSError) as error:
                ours.close()
                raise Lost("the jail is gone") from error
        self.zygotes[weight] = ours

    def wait_ready(self, weight: Weight) -> None:
        """Wait until a grown zygote is warm."""
        control = self.zygotes[weight]
        if control.gettimeout() is None:
            return
        try:
            wire.receive(control)
        except (wire.Closed, OSError) as error:
            raise Lost(f"the {weight} zygote did not become ready: {self._last_words()}") from error
        control.settimeout(None)

    def close(self) -> None:
        """Kill everything inside and wait until it is gone."""
        for control in self.zygotes.values():
            control.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=2.0)
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def is_root() -> bool:
    return os.geteuid() == 0


def now() -> float:
    return time.monotonic()
