"""The sandbox as a worker uses it."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

from rstar2.errors import Failure, UserError
from rstar2.judge.sandbox import escape_tests, tiers
from rstar2.judge.sandbox.cgroups import Cgroup
from rstar2.judge.sandbox.cpu_affinity import CpuAffinity
from rstar2.judge.sandbox.inside import wire
from rstar2.judge.sandbox.inside.program import NONCE
from rstar2.judge.sandbox.inside.scratch import remove_contents
from rstar2.judge.sandbox.jail import Jail, JailLost, wait_readable
from rstar2.judge.sandbox.protocol import JailSpec, StartCommand
from rstar2.judge.sandbox.run import Abort, ProgramEnd, wait_for_end
from rstar2.judge.sandbox.session import Session
from rstar2.judge.sandbox.streams import Streams
from rstar2.judge.sandbox.zygote_kinds import PARENTS, PROFILE_PROGRAMS, ZygoteKind, zygote_kind_for
from rstar2.judge.schema import Isolation, Outcome, RunRequest, RunResult

_MIB = 1 << 20
_SIGKILL = 9
_PROCESS_READERS = ("/proc", "psutil")
"""Words of programs that look themselves up in /proc, where the jail's own shows other process ids."""
_OVERHEAD_S = 0.0008
"""Processor seconds of the worker and its zygote for one program, about."""
_KERNEL_BYTES = 64 * _MIB
"""Page tables and kernel memory of a program, which its own limit does not count."""
_PROFILE_RUNS = 4
"""How often a rehearsal is done before its pages count: the interpreter changes code that runs repeatedly."""
_SLEEP = "import time\nprint(flush=True)\ntime.sleep(60)\n"
_PROFILE_TIMEOUT_S = 10.0
log = logging.getLogger(__name__)


class Sandbox:
    """Runs one program at a time, each in a fresh process of a jail that is built once.

    Use it from one thread; only `abort` is for any.

    Args:
        root: a folder of this sandbox's own for its mount point and work files; made if missing.
        tier: the tier to use; None takes the best this machine gives, which is never `none`.
        minimum: refuse to start below this one.

    Raises:
        UserError: the tier asked for is below the minimum.
    """

    def __init__(self, root: Path, tier: Isolation | None = None, minimum: Isolation = "strict") -> None:
        if tier is not None and tiers.ORDER.index(tier) < tiers.ORDER.index(minimum):
            raise UserError(
                f"isolation {tier!r} is below the minimum {minimum!r}",
                "Ask for a stronger tier, or lower the minimum if you accept what it does not enforce.",
            )
        self._root = root.resolve()
        least = tiers.ORDER.index(minimum)
        wanted: tuple[Isolation, ...] = (tier,) if tier else ("strict", "landlock")
        self._tiers = [name for name in wanted if tiers.ORDER.index(name) >= least]
        self._spec: JailSpec | None = None
        self._cgroup: Cgroup | None = None
        self._preload_cgroup: Cgroup | None = None
        self._jail: Jail | None = None
        self._start_all = False
        self._affinity: CpuAffinity | None = None
        self._used_s = 0.0
        """Processor seconds that programs, and what is done around them, took so far."""
        self._key = 0
        self._baseline = 0
        self._sessions: dict[int, Session] = {}
        self._profiling_failed = False
        """A rehearsal cost us the jail."""
        self._abort = Abort()

    def start(self) -> None:
        """Build the jail of the best tier that can be had, and have canaries try to get out of it.

        Raises:
            Failure: no tier at or above the minimum could be built and held its canaries.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        reasons = []
        for tier in self._tiers:
            try:
                self._start_tier(tier)
                return
            except Failure as error:
                reasons.append(f"{tier}: {error.message}")
        raise Failure(
            "no isolation at or above the minimum can be had here: " + "; ".join(reasons),
            "Run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1), "
            "or lower the minimum.",
        )

    def _start_tier(self, tier: Isolation) -> None:
        specs = tiers.jail_specs(tier, self._root)
        for number, spec in enumerate(specs):
            try:
                self._spec = spec
                self._build()
                escape_tests.run_escape_tests(self.run, spec, self._root)
                return
            except (Failure, OSError) as error:
                self._drop_jail()
                if number == len(specs) - 1:
                    raise (
                        error if isinstance(error, Failure) else Failure(f"{self._root}: {error}")
                    ) from error

    @property
    def isolation(self) -> Isolation:
        """The tier in force."""
        return self._started_spec()["tier"]

    def exceptions(self) -> list[str]:
        """What the tier in force does not enforce on this machine, one sentence each."""
        spec = self._started_spec()
        self._open_jail()
        assert self._cgroup is not None
        return tiers.exceptions(spec, self._cgroup)

    def _started_spec(self) -> JailSpec:
        if self._spec is None:
            raise Failure("the sandbox has not been started", "Call start() first.")
        return self._spec

    def _build(self) -> Jail:
        spec = self._started_spec()
        if spec["tier"] != "strict":
            # What the last program of a lost jail wrote there must not be there for the next.
            os.makedirs(spec["work_dir"], exist_ok=True)
            remove_contents(spec["work_dir"], set())
        self._cgroup, self._preload_cgroup = Cgroup(), Cgroup()
        self._jail = Jail(spec, self._cgroup, self._preload_cgroup)
        self._cgroup.limit_processes(tiers.MAX_PROCESSES + 64)
        self._baseline = self._cgroup.used()
        if self._start_all:
            self.start_zygotes()
        return self._jail

    def start_zygotes(self) -> None:
        """Start every zygote now; without this each starts when a program first wants it."""
        self._start_all = True
        jail = self._open_jail()
        for kind in PARENTS:
            jail.start_zygote(kind)

    def set_affinity(self, affinity: CpuAffinity) -> None:
        """From now on keep the zygotes, and the thread that runs programs, to one processor."""
        self._affinity = affinity

    def _open_jail(self) -> Jail:
        """The jail, with nothing in it of the program before; built if there is none."""
        if self._jail is not None:
            try:
                self._jail.wait_until_clean()
                return self._jail
            except JailLost as error:
                self._drop_jail(str(error))
        return self._build()

    def run(self, request: RunRequest, run_id: str) -> RunResult:
        """Run one program and kill all it started. Never raises for what the program does.

        Raises:
            Failure: the jail could not be built again after it was lost.
        """
        reason = ""
        for _ in range(2):
            try:
                return self._run(request, run_id)
            except JailLost as error:
                reason = str(error)
                self._drop_jail(reason)
        return RunResult(id=run_id, outcome="lost", stderr=reason, isolation=self.isolation)

    def _run(self, request: RunRequest, run_id: str) -> RunResult:
        jail = self._open_jail()
        kind = self._ready(jail, zygote_kind_for(request.code), request.memory_mb)
        assert self._cgroup is not None
        kills = self._cgroup.kills()
        spec = self._started_spec()
        owner = tiers.host_uid(spec, tiers.program_uid(spec, 0))
        with Streams(request.stdin, owner) as streams:
            began = time.monotonic()
            order = self._start_program(jail, kind, request, streams)
            with self._abort.watch(run_id) as abort:
                end = wait_for_end(jail, kind, self._key, streams, began + request.timeout_s, abort)
            wall = time.monotonic() - began
            self._used_s += end.cpu_s + _OVERHEAD_S
            killed = end.exit_code == -_SIGKILL and self._cgroup.kills() > kills
            if end.problem:
                self._drop_jail(end.problem)
            tag, text = streams.reported(order["nonce"])
            outcome = _outcome(end, for_memory=killed or tag == "m")
            return RunResult(
                id=run_id,
                outcome=outcome,
                stdout=streams.stdout.text(),
                stderr=streams.stderr.text(),
                value=text if tag == "v" and outcome == "ok" else None,
                exit_code=end.exit_code,
                stdout_truncated=streams.stdout.truncated,
                stderr_truncated=streams.stderr.truncated,
                cpu_s=end.cpu_s,
                wall_s=wall,
                isolation=self.isolation,
            )

    def _start_program(
        self, jail: Jail, kind: ZygoteKind, request: RunRequest, streams: Streams
    ) -> StartCommand:
        """Have a program begin. → the order that went in."""
        self._key += 1
        code: str | None = request.code
        if len(request.code) > wire.MAX_MESSAGE // 8:
            streams.add_text("code", request.code)
            code = None
        order = self._order(code, streams, request.memory_mb)
        order["private_scratch"] = any(word in request.code for word in _PROCESS_READERS)
        jail.start(kind, order, streams.theirs)
        streams.sent()
        return order

    def profile_next_zygote(self) -> bool:
        """Have one more zygote learn what programs write, so that its forks take less time.

        To be called when there is nothing else to run: it takes about a tenth of a second, once for each.

        Returns:
            Whether there was one that is warm and had not learnt it.
        """
        if self._jail is None or self._profiling_failed:
            return False
        for kind in PROFILE_PROGRAMS:
            if kind not in self._jail.profiled and self._jail.is_preloaded(kind):
                self._jail.profiled.add(kind)
                try:
                    self._profile(kind)
                except JailLost as error:
                    # A fresh jail, but not for this again.
                    self._profiling_failed = True
                    self._drop_jail(str(error))
                return True
        return False

    def _profile(self, kind: ZygoteKind) -> None:
        """See `rehearse`."""
        jail = self._open_jail()
        usual = RunRequest(code=PROFILE_PROGRAMS[kind], timeout_s=_PROFILE_TIMEOUT_S)
        stays = RunRequest(code=usual.code + _SLEEP)
        if self._ready(jail, kind, usual.memory_mb) != kind:
            return
        for _ in range(_PROFILE_RUNS):
            self._run(usual, "rehearsal")
        owner = tiers.host_uid(jail.spec, tiers.program_uid(jail.spec, 0))
        over = False
        with Streams("", owner) as streams:
            key = self._start_program(jail, kind, stays, streams)["key"]
            if wait_readable(streams.stdout.fd, _PROFILE_TIMEOUT_S):
                # What the zygote writes for a program from beginning to end counts, too.
                self._run(usual, "rehearsal")
                jail.command(kind, "prefault", key)
                answer: dict[str, Any] = {}
                while "prefaulted" not in answer:
                    answer = jail.listen(kind, key) or {}
                    over = over or "status" in answer
                log.info("%s zygote: %s", kind, answer)
            over = jail.ended.pop(key, None) is not None or over
            if not over and (end := wait_for_end(jail, kind, key, streams, time.monotonic())).problem:
                raise JailLost(end.problem)

    def abort(self, run_id: str) -> None:
        """Kill a program, unless it is over, and all it started; its result is `refused`."""
        self._abort.request(run_id)

    def _ready(self, jail: Jail, kind: ZygoteKind, memory_mb: int) -> ZygoteKind:
        """Wait for the zygote, and set the memory limit to what the zygotes take and the program may take."""
        assert self._cgroup is not None
        kind = jail.usable_kind(kind)
        self._cgroup.limit_memory(self._baseline + memory_mb * _MIB + _KERNEL_BYTES)
        return kind

    def _order(self, code: str | None, streams: Streams, memory_mb: int) -> StartCommand:
        spec = self._started_spec()
        return StartCommand(
            op="start",
            key=self._key,
            code=code,
            fds=streams.names,
            session=False,
            private_scratch=False,
            nonce=os.urandom(NONCE),
            uid=tiers.program_uid(spec, 0),
            cpu=-1 if self._affinity is None else self._affinity.update(self._used_s),
            memory_mb=memory_mb,
            work_dir=spec["work_dir"],
        )

    def open_session(self, memory_mb: int = 1024, kind: ZygoteKind = "full") -> Session:
        """Start a process that keeps its state from cell to cell.

        Args:
            memory_mb: MiB the session may take in all.
            kind: the zygote to fork it from, that is, which libraries are there at once.

        Raises:
            Failure: it could not be started.
        """
        try:
            jail = self._open_jail()
            kind = self._ready(jail, kind, memory_mb)
            slot = next(
                number for number in range(1, tiers.USERS_PER_JAIL // 2) if number not in self._sessions
            )
            with contextlib.ExitStack() as undo:
                session = self._open_session(jail, kind, slot, memory_mb, undo)
                undo.pop_all()
        except JailLost as error:
            self._drop_jail(str(error))
            raise Failure(f"the session could not be started: {error}") from error
        self._sessions[slot] = session
        return session

    def _open_session(
        self, jail: Jail, kind: ZygoteKind, slot: int, memory_mb: int, undo: contextlib.ExitStack
    ) -> Session:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        undo.callback(ours.close)
        uid = tiers.program_uid(jail.spec, slot)
        streams = undo.enter_context(Streams("", tiers.host_uid(jail.spec, uid), theirs.detach()))
        cgroup = Cgroup()
        undo.callback(cgroup.close)
        cgroup.limit_processes(tiers.MAX_PROCESSES + 8)
        cgroup.limit_memory(memory_mb * _MIB + _KERNEL_BYTES)
        for fd in cgroup.open_process_lists():
            streams.add("group", fd)
        self._key += 1
        order = self._order(None, streams, memory_mb)
        order["session"] = order["private_scratch"] = True
        order["nonce"] = b""
        order["uid"] = uid
        if self.isolation != "strict":
            order["work_dir"] = str(self._root / f"session{slot}")
            os.makedirs(order["work_dir"], exist_ok=True)
        jail.start(kind, order, streams.theirs)
        streams.sent()
        on_close = partial(self._close_session, slot, cgroup, Path(order["work_dir"]))
        return Session(jail, kind, self._key, streams, ours, cgroup, on_close)

    def _close_session(self, slot: int, cgroup: Cgroup, work_dir: Path) -> None:
        del self._sessions[slot]
        cgroup.close()
        if work_dir.is_relative_to(self._root):
            with contextlib.suppress(OSError):
                remove_contents(str(work_dir), set())
                work_dir.rmdir()

    def _drop_jail(self, reason: str = "") -> None:
        """Kill everything inside. The next program has a new jail built.

        Args:
            reason: why, where this was not planned.
        """
        if reason:
            log.warning("the jail is given up, with %d sessions in it: %s", len(self._sessions), reason)
        if self._jail is not None:
            self._jail.close()
            self._jail = None
        for session in list(self._sessions.values()):
            session.end(f"the jail it lived in is gone: {reason}" if reason else "the sandbox was closed")
        for cgroup in (self._cgroup, self._preload_cgroup):
            if cgroup is not None:
                cgroup.close()
        self._cgroup = self._preload_cgroup = None

    def close(self) -> None:
        """End the jail and everything in it, sessions too."""
        self._drop_jail()
        self._abort.close()
        if self._affinity is not None:
            self._affinity.release()


def _outcome(end: ProgramEnd, *, for_memory: bool) -> Outcome:
    """What a program's end amounts to; want of memory is believed only of a program that failed."""
    if end.verdict is not None:
        return end.verdict
    if end.exit_code == 0:
        return "ok"
    return "memory" if for_memory else "error"
