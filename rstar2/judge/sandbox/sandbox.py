"""The sandbox as a worker uses it: chooses the tier, builds the jail, runs programs and opens sessions."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from functools import partial
from pathlib import Path

from rstar2.errors import Failure, UserError
from rstar2.judge.sandbox import escape_tests, tiers
from rstar2.judge.sandbox.host.cgroups import Cgroup
from rstar2.judge.sandbox.host.removal import Removal
from rstar2.judge.sandbox.host.users import USERS_PER_JAIL
from rstar2.judge.sandbox.inside.program import NONCE
from rstar2.judge.sandbox.inside.scratch import MAX_MB
from rstar2.judge.sandbox.jail import Jail, JailLost, set_timeouts, wait_readable
from rstar2.judge.sandbox.protocol import JailSpec, StartCommand
from rstar2.judge.sandbox.run import Abort, wait_for_end
from rstar2.judge.sandbox.session import Session
from rstar2.judge.sandbox.streams import Streams, memory_file
from rstar2.judge.sandbox.zygote_kinds import PARENTS, PROFILE_PROGRAMS, ZygoteKind, zygote_kind_for
from rstar2.judge.schema import ISOLATION_ORDER, Isolation, RunRequest, RunResult

_MIB = 1 << 20
_KERNEL_BYTES = 64 * _MIB
"""Page tables and kernel memory of a program, which its own limit does not count."""
_PROFILE_RUNS = 4
"""Runs before a profile: the interpreter specializes code that runs repeatedly, which changes what is written."""
_PROFILE_TIMEOUT_S = 10.0
_STAY = "import time\nprint(flush=True)\ntime.sleep(60)\n"
log = logging.getLogger(__name__)


class Sandbox:
    """Runs one program at a time, each in a new process of a jail that is built once.

    Use it from one thread; only `abort`, and the methods of its sessions, may be called from any.

    Args:
        root: a folder for this sandbox alone, for its mount point and work files; made if missing.
        tier: the tier to use; None takes the best that this machine offers, which is never `none`.
        minimum: refuse to start below this tier.

    Raises:
        UserError: the tier asked for is below the minimum.
    """

    def __init__(self, root: Path, tier: Isolation | None = None, minimum: Isolation = "strict") -> None:
        least = ISOLATION_ORDER.index(minimum)
        if tier is not None and ISOLATION_ORDER.index(tier) < least:
            raise UserError(
                f"isolation {tier!r} is below the minimum {minimum!r}",
                "Ask for a stronger tier, or lower the minimum if you accept what it does not enforce.",
            )
        self._root = root.resolve()
        self._removal = Removal(self._root)
        best: tuple[Isolation, ...] = ("strict", "landlock")
        self._tiers = [tier] if tier else [name for name in best if ISOLATION_ORDER.index(name) >= least]
        self._spec: JailSpec | None = None
        self._jail: Jail | None = None
        self._all_zygotes = False
        self._key = 0
        self._baseline = 0
        self._sessions: dict[int, Session] = {}
        self._profiling_failed = False
        """The jail was lost while a zygote was profiled."""
        self._abort = Abort()

    def start(self) -> None:
        """Build the jail of the best tier available, and run the escape tests in it.

        Raises:
            Failure: no tier at or above the minimum could be built and passed its escape tests.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        # What sessions and programs of a killed worker left.
        for path in self._root.glob("session*"):
            self._removal.take(path, wait=False)
        self._removal.sweep()
        reasons = []
        for tier in self._tiers:
            try:
                self._start_tier(tier)
                return
            except Failure as error:
                reasons.append(f"{tier}: {error.message}")
        raise Failure(
            "no isolation at or above the minimum is available here: " + "; ".join(reasons),
            "Run as root, or allow user namespaces (sysctl kernel.unprivileged_userns_clone=1), "
            "or lower the minimum.",
        )

    def _start_tier(self, tier: Isolation) -> None:
        *fallbacks, last = tiers.jail_specs(tier, self._root)
        for spec in (*fallbacks, last):
            try:
                self._spec = spec
                self._build()
                escape_tests.run_escape_tests(self.run, spec, self._root)
                return
            except (Failure, OSError) as error:
                self._drop_jail()
                if spec is last:
                    raise (
                        error if isinstance(error, Failure) else Failure(f"{self._root}: {error}")
                    ) from error

    @property
    def isolation(self) -> Isolation:
        """The tier in force."""
        return self._started_spec()["tier"]

    def exceptions(self) -> list[str]:
        """What the tier in force does not enforce on this machine, one sentence each."""
        jail = self._open_jail()
        return tiers.exceptions(jail.spec, jail.cgroup)

    def _started_spec(self) -> JailSpec:
        if self._spec is None:
            raise Failure("the sandbox has not been started", "Call start() first.")
        return self._spec

    def _build(self) -> Jail:
        spec = self._started_spec()
        if spec["tier"] != "strict":
            # What the last program of a lost jail wrote there must not be there for the next.
            self._removal.take(Path(spec["work_dir"]))
            os.mkdir(spec["work_dir"])
        self._jail = Jail(spec, self._removal.take)
        self._jail.cgroup.limit_processes(tiers.MAX_PROCESSES + 64)
        self._baseline = self._jail.cgroup.used()
        if self._all_zygotes:
            self.start_zygotes()
        return self._jail

    def start_zygotes(self) -> None:
        """Start every zygote now, unless that was done; without this each starts when a program first needs it."""
        if self._all_zygotes and self._jail is not None:
            return
        self._all_zygotes = True
        jail = self._open_jail()
        for kind in PARENTS:
            jail.start_zygote(kind)

    def _open_jail(self) -> Jail:
        """The jail, emptied of the program before; built if it was lost."""
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
                return self._run_once(request, run_id)
            except JailLost as error:
                reason = str(error)
                self._drop_jail(reason)
        return RunResult(id=run_id, outcome="lost", stderr=reason, isolation=self.isolation)

    def _run_once(self, request: RunRequest, run_id: str) -> RunResult:
        jail = self._open_jail()
        kind = self._prepare_zygote(jail, zygote_kind_for(request.code), request.memory_mb)
        kills = jail.cgroup.kills()
        with contextlib.closing(Streams(request.stdin, tiers.program_host_uid(jail.spec))) as streams:
            began = time.monotonic()
            nonce = os.urandom(NONCE)
            command = self._start_process(jail, kind, streams, request.memory_mb, nonce, request.code)
            with self._abort.watch(run_id) as abort:
                end = wait_for_end(jail, kind, command["key"], streams, began + request.timeout_s, abort)
            wall_s = time.monotonic() - began
            report_kind, text = streams.reported(nonce)
            outcome = end.outcome(jail.cgroup, kills, report_kind)
            if end.problem:
                self._drop_jail(end.problem)
            return RunResult(
                id=run_id,
                outcome=outcome,
                value=text if report_kind == "v" and outcome == "ok" else None,
                exit_code=end.exit_code,
                cpu_s=end.cpu_s,
                wall_s=wall_s,
                isolation=self.isolation,
                **streams.output(),
            )

    def _prepare_zygote(self, jail: Jail, kind: ZygoteKind, memory_mb: int) -> ZygoteKind:
        """Wait for the zygote, and set the memory limit to what the zygotes hold and the program may take."""
        kind = jail.usable_kind(kind)
        jail.cgroup.limit_memory(self._baseline + memory_mb * _MIB + _KERNEL_BYTES)
        return kind

    def _start_process(
        self,
        jail: Jail,
        kind: ZygoteKind,
        streams: Streams,
        memory_mb: int,
        nonce: bytes = b"",
        code: str = "",
        session: int = 0,
    ) -> StartCommand:
        """Have a zygote fork a process for a program, or for the session of this number (not 0). → the command."""
        self._key += 1
        is_memory_counted = jail.cgroup.memory is not None
        if not session:
            streams.add("code", memory_file(nonce + code.encode(errors="surrogatepass")))
        command = StartCommand(
            op="start",
            key=self._key,
            fds=streams.names,
            session=session > 0,
            private_scratch=(
                session > 0
                or tiers.is_one_user(jail.spec)
                or _looks_itself_up(code)
                # The shared one may take more memory than this program, and nothing else would count that.
                or (jail.spec["tier"] == "strict" and not is_memory_counted and memory_mb < MAX_MB)
            ),
            beside_sessions=bool(self._sessions) and tiers.counts_sessions(jail.spec),
            uid=tiers.program_uid(jail.spec, session),
            memory_mb=memory_mb,
            most_memory=0 if is_memory_counted else memory_mb * _MIB + _KERNEL_BYTES,
            work_dir=self._work_dir(jail.spec, session),
        )
        jail.send(kind, command, tuple(streams.theirs))
        streams.sent()
        return command

    def _work_dir(self, spec: JailSpec, session: int) -> str:
        if not session or spec["tier"] == "strict":
            return spec["work_dir"]
        self._removal.sweep()
        folder = self._root / f"session{session}"
        folder.mkdir(exist_ok=True)
        return str(folder)

    def profile_next_zygote(self) -> bool:
        """Have one more zygote record which pages programs write, so that its forks take less time.

        Call it when there is no program to run: it takes about a tenth of a second, once per zygote.
        → whether there was one with its libraries loaded that had not been profiled.

        For speed only: see `inside.prefault`.
        """
        if self._jail is None or self._profiling_failed:
            return False
        for kind in PROFILE_PROGRAMS:
            if kind not in self._jail.profiled and self._jail.is_preloaded(kind):
                self._jail.profiled.add(kind)
                try:
                    self._profile(kind)
                except JailLost as error:
                    # A new jail, but no more profiling in it.
                    self._profiling_failed = True
                    self._drop_jail(str(error))
                return True
        return False

    def _profile(self, kind: ZygoteKind) -> None:
        jail = self._open_jail()
        program = RunRequest(code=PROFILE_PROGRAMS[kind], timeout_s=_PROFILE_TIMEOUT_S)
        if self._prepare_zygote(jail, kind, program.memory_mb) != kind:
            return
        for _ in range(_PROFILE_RUNS):
            self._run_once(program, "profile")
        with contextlib.closing(Streams("", tiers.program_host_uid(jail.spec))) as streams:
            code = program.code + _STAY
            key = self._start_process(jail, kind, streams, program.memory_mb, bytes(NONCE), code)["key"]
            if wait_readable(streams.stdout.fd, _PROFILE_TIMEOUT_S):
                # What the zygote writes for a program from start to end counts, too.
                self._run_once(program, "profile")
                log.info("%s zygote: %s", kind, jail.query(kind, "prefault", key, "prefaulted"))
            if jail.ended.pop(key, None) is None:
                end = wait_for_end(jail, kind, key, streams, time.monotonic())
                if end.problem:
                    raise JailLost(end.problem)

    def abort(self, run_id: str) -> None:
        """Kill a program, unless it has ended, and all it started; its result is `refused`."""
        self._abort.request(run_id)

    def open_session(self, memory_mb: int = 1024, kind: ZygoteKind = "full") -> Session:
        """Start a process that keeps its state from cell to cell.

        Args:
            memory_mb: MiB the session may take in all.
            kind: the zygote to fork it from, that is, which libraries are loaded at once.

        Raises:
            Failure: it could not be started.
        """
        number = next(n for n in range(1, USERS_PER_JAIL // 2) if n not in self._sessions)
        try:
            jail = self._open_jail()
            kind = self._prepare_zygote(jail, kind, memory_mb)
            with contextlib.ExitStack() as undo:
                session = self._open_session(jail, kind, number, memory_mb, undo)
                undo.pop_all()
        except JailLost as error:
            self._drop_jail(str(error))
            raise Failure(f"the session could not be started: {error}") from error
        self._sessions[number] = session
        return session

    def _open_session(
        self, jail: Jail, kind: ZygoteKind, number: int, memory_mb: int, undo: contextlib.ExitStack
    ) -> Session:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        undo.callback(ours.close)
        owner = tiers.program_host_uid(jail.spec, number)
        streams = undo.enter_context(contextlib.closing(Streams("", owner, theirs.detach())))
        control, zygotes_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(control.close)
        set_timeouts(control)
        streams.add("control", zygotes_end.detach())
        cgroup = Cgroup()
        undo.callback(cgroup.close)
        cgroup.limit_processes(tiers.MAX_PROCESSES + 8)
        cgroup.limit_memory(memory_mb * _MIB + _KERNEL_BYTES)
        for fd in cgroup.open_process_lists():
            streams.add("group", fd)
        command = self._start_process(jail, kind, streams, memory_mb, session=number)
        on_close = partial(self._close_session, number, cgroup, Path(command["work_dir"]))
        return Session(jail.spec["tier"], control, streams, ours, cgroup, on_close)

    def _close_session(self, number: int, cgroup: Cgroup, work_dir: Path) -> None:
        cgroup.close()
        if work_dir.is_relative_to(self._root):
            self._removal.take(work_dir, wait=False)
        # Last: then the next session may have its number, and so its user and folder.
        del self._sessions[number]

    def _drop_jail(self, reason: str = "") -> None:
        """Kill everything inside, for a reason where it was not planned. The next program has a new jail built."""
        if reason:
            inside = f"\n{tail}" if self._jail is not None and (tail := self._jail.log_tail()) else ""
            log.warning("the jail is lost, with %d sessions in it: %s%s", len(self._sessions), reason, inside)
        if self._jail is not None:
            self._jail.close()
            self._jail = None
        for session in list(self._sessions.values()):
            session.end(f"its jail is gone: {reason}" if reason else "the sandbox was closed")

    def close(self) -> None:
        """End the jail and everything in it, sessions too."""
        self._drop_jail()
        if self._spec is not None and self._spec["tier"] != "strict":
            # What the last program left there; where it cannot be moved now, the next sandbox tries again.
            with contextlib.suppress(OSError):
                self._removal.take(Path(self._spec["work_dir"]), wait=False)
        self._removal.close()
        self._abort.close()


def _looks_itself_up(code: str) -> bool:
    """Whether a program may look itself up in /proc, where the jail's own shows other process ids."""
    return "/proc" in code or "psutil" in code
