"""The sandbox as a worker uses it."""

from __future__ import annotations

import os
import select
import socket
import time
from pathlib import Path
from typing import Any

from rstar2.errors import Failure, UserError
from rstar2.judge.sandbox import layout
from rstar2.judge.sandbox.cgroups import Cgroup
from rstar2.judge.sandbox.enclosure import Enclosure, Lost, is_root
from rstar2.judge.sandbox.filters import compile_filter
from rstar2.judge.sandbox.inside import kernel, wire
from rstar2.judge.sandbox.plan import Plan
from rstar2.judge.sandbox.streams import Streams
from rstar2.judge.sandbox.weights import GROWN, Weight, weigh
from rstar2.judge.schema import Isolation, Outcome, RunRequest, RunResult

_ORDER: tuple[Isolation, ...] = ("none", "landlock", "strict")
_SILENCE_S = 5.0
"""How long a zygote may take to report a program it was told to kill."""
_MIB = 1 << 20


class Sandbox:
    """Runs one program at a time, each in a fresh process of a jail that is built once.

    Args:
        root: a folder of this sandbox's own for its mount point and work files; made if missing.
        tier: the tier to use; None takes the best this machine gives.
        minimum: refuse to start below this one.
    """

    def __init__(self, root: Path, tier: Isolation | None = None, minimum: Isolation = "strict") -> None:
        if tier is not None and _ORDER.index(tier) < _ORDER.index(minimum):
            raise UserError(
                f"isolation {tier!r} is below the minimum {minimum!r}",
                "Ask for a stronger tier, or lower the minimum if you accept what it does not enforce.",
            )
        self._root = root
        self._wanted: tuple[Isolation, ...] = (tier,) if tier else ("strict", "landlock")
        self._minimum = minimum
        self._tier: Isolation | None = None
        self._cgroup: Cgroup | None = None
        self._jail: Enclosure | None = None
        self._key = 0
        self._baseline = 0

    @property
    def isolation(self) -> Isolation:
        """The tier in force."""
        if self._tier is None:
            raise Failure("the sandbox has not been started", "Call start() first.")
        return self._tier

    def start(self) -> None:
        """Build the jail of the best tier that can be had and try to break out of it.

        Raises:
            Failure: no tier at or above the minimum could be built, or a canary got out.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        reasons = []
        for tier in self._wanted:
            if _ORDER.index(tier) < _ORDER.index(self._minimum):
                continue
            try:
                self._build(tier)
                self._tier = tier
                return
            except Failure as error:
                reasons.append(f"{tier}: {error.message}")
                self.close()
        raise Failure(
            "no isolation at or above the minimum can be had here: " + "; ".join(reasons),
            "Run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1), "
            "or lower the minimum.",
        )

    def _plan(self, tier: Isolation) -> Plan:
        binds, links = layout.shown()
        mount_point = self._root / "mount"
        mount_point.mkdir(exist_ok=True)
        return Plan(
            tier=tier,
            rooted=is_root(),
            user_namespace=True,
            uid=layout.PROGRAM_UID,
            root=str(mount_point),
            binds=binds,
            links=links,
            files=layout.made_up_files(),
            readable=["/"],
            sys_path=layout.library_paths(),
            landlock_abi=kernel.landlock_abi(),
            filter=compile_filter(processes=True, signals=True),
            scratch_mb=256,
            scratch_files=16384,
            processes=128,
            file_mb=256,
            stack_mb=64,
        )

    def _build(self, tier: Isolation) -> None:
        self._cgroup = Cgroup()
        self._jail = Enclosure(self._plan(tier), self._cgroup)
        self._cgroup.limit_processes(512)
        self._baseline = self._cgroup.used()

    def warm(self) -> None:
        """Start every zygote now; without this each starts when a program first wants it."""
        for weight in GROWN:
            if weight not in self._open_jail().zygotes:
                self._open_jail().grow(weight)

    def _open_jail(self) -> Enclosure:
        if self._jail is None:
            self._build(self.isolation)
        assert self._jail is not None
        return self._jail

    def _zygote(self, weight: Weight) -> socket.socket:
        jail = self._open_jail()
        if weight not in jail.zygotes:
            jail.grow(weight)
        if weight != "bare":
            jail.wait_ready(weight)
        return jail.zygotes[weight]

    def run(self, request: RunRequest, run_id: str) -> RunResult:
        """Run one program and kill all it started. Never raises for what the program does.

        Raises:
            Failure: the jail could not be built again after it was lost.
        """
        for _ in range(2):
            try:
                return self._run(request, run_id)
            except (Lost, wire.Closed, OSError):
                self._drop_jail()
        return RunResult(id=run_id, outcome="lost", isolation=self.isolation)

    def _run(self, request: RunRequest, run_id: str) -> RunResult:
        control = self._zygote(weigh(request.code))
        cgroup = self._cgroup
        assert cgroup is not None
        self._key += 1
        kills = cgroup.kills()
        with Streams(request.stdin) as streams:
            fds = streams.theirs
            code: str | None = request.code
            if len(request.code) > wire.MAX_MESSAGE // 8:
                code = None
                fds = (*fds, streams.hold(request.code))
            message = {
                "do": "run",
                "key": self._key,
                "code": code,
                "uid": layout.PROGRAM_UID,
                "memory_mb": request.memory_mb,
                "place": "/box",
            }
            began = time.monotonic()
            wire.send(control, message, fds)
            streams.started()
            verdict, report = self._attend(control, streams, began + request.timeout_s)
            wall = time.monotonic() - began
            streams.drain()
        if not report["clean"]:
            self._drop_jail()
        exit_code = os.waitstatus_to_exitcode(report["status"])
        outcome: Outcome = verdict or ("ok" if exit_code == 0 else "error")
        if outcome == "error" and (streams.out_of_memory or (exit_code == -9 and cgroup.kills() > kills)):
            outcome = "memory"
        return RunResult(
            id=run_id,
            outcome=outcome,
            stdout=streams.stdout.text(),
            stderr=streams.stderr.text(),
            value=streams.value if outcome == "ok" else None,
            exit_code=exit_code,
            stdout_truncated=streams.stdout.truncated,
            stderr_truncated=streams.stderr.truncated,
            cpu_s=report["cpu_s"],
            wall_s=wall,
            isolation=self.isolation,
        )

    def _attend(
        self, control: socket.socket, streams: Streams, deadline: float
    ) -> tuple[Outcome | None, dict[str, Any]]:
        """Read a program's output until the zygote reports its end; kill it at the deadline."""
        poll = select.poll()
        poll.register(control, select.POLLIN)
        streams.register(poll)
        verdict: Outcome | None = None
        while True:
            left = deadline - time.monotonic()
            if left <= 0 and verdict == "timeout":
                raise Lost("the zygote does not answer")
            if left <= 0 or (streams.flooded and verdict is None):
                verdict = verdict or ("output_limit" if streams.flooded else "timeout")
                wire.send(control, {"do": "kill", "key": self._key})
                deadline = time.monotonic() + _SILENCE_S
                left = _SILENCE_S
            for fd, _ in poll.poll(left * 1000):
                if fd != control.fileno():
                    streams.read(fd, poll)
                    continue
                report, _ = wire.receive(control)
                if report["key"] != self._key:
                    continue
                if "failed" in report:
                    raise Lost(report["failed"])
                return verdict, report

    def _drop_jail(self) -> None:
        if self._jail is not None:
            self._jail.close()
            self._jail = None
        if self._cgroup is not None:
            self._cgroup.close()
            self._cgroup = None

    def exceptions(self) -> list[str]:
        """What the tier in force does not enforce, one sentence each."""
        return []

    def close(self) -> None:
        """End the jail and everything in it."""
        self._drop_jail()
