"""`Sandbox`, the worker's interface: chooses the isolation tier, builds the jail, runs programs and opens sessions."""

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
"""Bytes that a program may use for page tables and kernel memory, in addition to its memory limit."""
_PROFILE_RUNS = 4
"""Before a zygote is profiled, a typical program runs this many times. The interpreter replaces repeated code by
specialized code, so the first runs write to other memory pages than later runs."""
_PROFILE_TIMEOUT_S = 10.0
_SLEEP_CODE = "import time\nprint(flush=True)\ntime.sleep(60)\n"
log = logging.getLogger(__name__)


class Sandbox:
    """Runs one program at a time.

    Each program gets a new process in the sandbox's jail. Only one thread may use a `Sandbox`. Other threads may call
    only `abort` and the methods of the sandbox's sessions.

    Args:
        root: a folder that only this sandbox uses, for its mount point and work files. The folder is created if
            missing.
        tier: the isolation tier. If None, the tier is the strongest that this machine supports, but never `none`.
        minimum: the weakest acceptable tier.

    Raises:
        UserError: `tier` is below `minimum`.
    """

    def __init__(self, root: Path, tier: Isolation | None = None, minimum: Isolation = "strict") -> None:
        least = ISOLATION_ORDER.index(minimum)
        if tier is not None and ISOLATION_ORDER.index(tier) < least:
            raise UserError(
                f"isolation {tier!r} is below the minimum {minimum!r}",
                f"Use a stronger tier, or lower the minimum if you accept what {tier!r} does not enforce.",
            )
        self._root = root.resolve()
        self._removal = Removal(self._root)
        best: tuple[Isolation, ...] = ("strict", "landlock")
        self._tiers = [tier] if tier else [name for name in best if ISOLATION_ORDER.index(name) >= least]
        self._spec: JailSpec | None = None
        self._jail: Jail | None = None
        self._all_zygotes = False
        """Whether all zygotes are started as soon as a jail is built."""
        self._key = 0
        self._baseline = 0
        """Bytes of memory that the jail used before it ran a program."""
        self._sessions: dict[int, Session] = {}
        self._profiling_failed = False
        """Whether the jail was lost while a zygote was profiled."""
        self._abort = Abort()

    def start(self) -> None:
        """Build a jail of the strongest available tier, and run the escape tests in this jail.

        Raises:
            Failure: for every tier at or above the minimum, the jail could not be built or failed the escape tests.
        """
        self._root.mkdir(parents=True, exist_ok=True)
        # An earlier worker that was killed may have left folders of sessions and programs.
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
            "no isolation tier at or above the minimum is available here: " + "; ".join(reasons),
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
        """The isolation tier of the jail."""
        return self._started_spec()["tier"]

    def exceptions(self) -> list[str]:
        """Returns sentences about what the isolation tier does not enforce on this machine."""
        jail = self._open_jail()
        return tiers.exceptions(jail.spec, jail.cgroup)

    def _started_spec(self) -> JailSpec:
        if self._spec is None:
            raise Failure("the sandbox has not been started", "Call start() first.")
        return self._spec

    def _build(self) -> Jail:
        spec = self._started_spec()
        if spec["tier"] != "strict":
            # The next program must not find files of the last program of a lost jail.
            self._removal.take(Path(spec["work_dir"]))
            os.mkdir(spec["work_dir"])
        self._jail = Jail(spec, self._removal.take)
        self._jail.cgroup.limit_processes(tiers.MAX_PROCESSES + 64)
        self._baseline = self._jail.cgroup.used()
        if self._all_zygotes:
            self.start_zygotes()
        return self._jail

    def start_zygotes(self) -> None:
        """Start every zygote that is not running.

        If this method is not called, each zygote starts when a program first needs the zygote.
        """
        if self._all_zygotes and self._jail is not None:
            return
        self._all_zygotes = True
        jail = self._open_jail()
        for kind in PARENTS:
            jail.start_zygote(kind)

    def _open_jail(self) -> Jail:
        """Wait until the files of the last program are removed, and return the jail.

        If the jail was lost, build a new jail.
        """
        if self._jail is not None:
            try:
                self._jail.wait_until_clean()
                return self._jail
            except JailLost as error:
                self._drop_jail(str(error))
        return self._build()

    def run(self, request: RunRequest, run_id: str) -> RunResult:
        """Run one program, and kill all processes that it started.

        Nothing that the program does can make this method raise an exception.

        Raises:
            Failure: the jail was lost and could not be built again.
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
        """Wait for a zygote, and set the memory limit of the jail's control group.

        Returns the kind of zygote to fork from.

        The memory limit is the sum of the memory of the zygotes and the memory that the program may use.
        """
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
        """Make a zygote fork a process for a program or a session. Returns the command that was sent to the zygote.

        Args:
            jail: the jail that contains the zygote.
            kind: kind of the zygote to fork from.
            streams: the worker's ends of the streams of the process.
            memory_mb: memory limit in MiB.
            nonce: bytes that the program's report must contain.
            code: the program's source.
            session: number of the session, or 0 for a program.
        """
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
                # The shared scratch space may use more memory than this program may, and nothing else limits that.
                or (jail.spec["tier"] == "strict" and not is_memory_counted and memory_mb < MAX_MB)
            ),
            beside_sessions=bool(self._sessions) and tiers.counts_sessions(jail.spec),
            uid=tiers.program_uid(jail.spec, session),
            memory_mb=memory_mb,
            max_memory_bytes=0 if is_memory_counted else memory_mb * _MIB + _KERNEL_BYTES,
            work_dir=self._work_dir(jail.spec, session),
        )
        jail.send(kind, command, tuple(streams.program_fds))
        streams.close_program_fds()
        return command

    def _work_dir(self, spec: JailSpec, session: int) -> str:
        if not session or spec["tier"] == "strict":
            return spec["work_dir"]
        self._removal.sweep()
        folder = self._root / f"session{session}"
        folder.mkdir(exist_ok=True)
        return str(folder)

    def profile_next_zygote(self) -> bool:
        """Profile one zygote: record the memory pages to which programs write, so that its forks take less time.

        Call this method when there is no program to run. Profiling takes about 0.1 s for each zygote. Profiling exists
        only for speed: see `inside.prefault`.

        Returns whether a zygote was profiled. Returns False if each zygote was already profiled or has not yet loaded
        its libraries.
        """
        if self._jail is None or self._profiling_failed:
            return False
        for kind in PROFILE_PROGRAMS:
            if kind not in self._jail.profiled and self._jail.is_preloaded(kind):
                self._jail.profiled.add(kind)
                try:
                    self._profile(kind)
                except JailLost as error:
                    # The next jail is not profiled.
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
            code = program.code + _SLEEP_CODE
            key = self._start_process(jail, kind, streams, program.memory_mb, bytes(NONCE), code)["key"]
            if wait_readable(streams.stdout.fd, _PROFILE_TIMEOUT_S):
                # This run makes the zygote write the pages that it writes for each program, from start to end.
                self._run_once(program, "profile")
                log.info("%s zygote: %s", kind, jail.query(kind, "prefault", key, "prefaulted"))
            if jail.ended.pop(key, None) is None:
                end = wait_for_end(jail, kind, key, streams, time.monotonic())
                if end.problem:
                    raise JailLost(end.problem)

    def abort(self, run_id: str) -> None:
        """Kill a running program and all processes that it started. The killed program gets the outcome `refused`."""
        self._abort.request(run_id)

    def open_session(self, memory_mb: int = 1024, kind: ZygoteKind = "full") -> Session:
        """Start a process that keeps its state from cell to cell.

        Args:
            memory_mb: memory limit of the whole session in MiB.
            kind: kind of the zygote to fork from, which determines the libraries that are already loaded.

        Raises:
            Failure: the session could not be started.
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
        channel, session_channel = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        undo.callback(channel.close)
        owner = tiers.program_host_uid(jail.spec, number)
        streams = undo.enter_context(contextlib.closing(Streams("", owner, session_channel.detach())))
        control, zygote_control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(control.close)
        set_timeouts(control)
        streams.add("control", zygote_control.detach())
        cgroup = Cgroup()
        undo.callback(cgroup.close)
        cgroup.limit_processes(tiers.MAX_PROCESSES + 8)
        cgroup.limit_memory(memory_mb * _MIB + _KERNEL_BYTES)
        for fd in cgroup.open_process_lists():
            streams.add("group", fd)
        command = self._start_process(jail, kind, streams, memory_mb, session=number)
        on_close = partial(self._close_session, number, cgroup, Path(command["work_dir"]))
        return Session(jail.spec["tier"], control, streams, channel, cgroup, on_close)

    def _close_session(self, number: int, cgroup: Cgroup, work_dir: Path) -> None:
        cgroup.close()
        if work_dir.is_relative_to(self._root):
            self._removal.take(work_dir, wait=False)
        # This comes last, because the next session may get this number, and with it the user and the folder.
        del self._sessions[number]

    def _drop_jail(self, reason: str = "") -> None:
        """Kill all processes of the jail and forget the jail. A new jail is built for the next program.

        Args:
            reason: why the jail was lost. The reason is empty if the sandbox is being closed.
        """
        if reason:
            errors = f"\n{tail}" if self._jail is not None and (tail := self._jail.log_tail()) else ""
            log.warning("the jail is lost, with %d sessions in it: %s%s", len(self._sessions), reason, errors)
        if self._jail is not None:
            self._jail.close()
            self._jail = None
        for session in list(self._sessions.values()):
            session.end(f"its jail is gone: {reason}" if reason else "the sandbox was closed")

    def close(self) -> None:
        """End all processes of the jail, including the processes of sessions."""
        self._drop_jail()
        if self._spec is not None and self._spec["tier"] != "strict":
            # Remove the files of the last program. If the folder cannot be moved now, the next sandbox tries again.
            with contextlib.suppress(OSError):
                self._removal.take(Path(self._spec["work_dir"]), wait=False)
        self._removal.close()
        self._abort.close()


def _looks_itself_up(code: str) -> bool:
    """Returns whether a program may look up its own process in /proc.

    If so, the program needs its own /proc, because the /proc that all programs of the jail share lists it under another
    process id than os.getpid() returns.
    """
    return "/proc" in code or "psutil" in code
