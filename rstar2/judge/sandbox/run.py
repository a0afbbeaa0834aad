"""Waits for the end of a program.

Until the program ends, `wait_for_end` reads the program's output and enforces the program's limits of time and output.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rstar2.judge.sandbox.host.cgroups import Cgroup
from rstar2.judge.sandbox.jail import REPLY_TIMEOUT_S, Jail, JailLost, Report
from rstar2.judge.sandbox.streams import Streams
from rstar2.judge.sandbox.zygote_kinds import ZygoteKind
from rstar2.judge.schema import Outcome

_SIGKILL = 9


@dataclass
class ProgramEnd:
    """How a program ended."""

    limit: Outcome | None
    """Which limit the program had exceeded when it was killed, or None if it was not killed because of a limit."""
    exit_code: int
    """The program's exit code, or, as in `subprocess`, the negative number of the signal that ended the program."""
    cpu_s: float
    problem: str = ""
    """Why the zygote did not report the program's end after the command to kill the program. Empty if it reported the
    end. If this field is not empty, the jail must not be used again."""

    @classmethod
    def from_report(cls, report: Report, limit: Outcome | None) -> ProgramEnd:
        """Converts a zygote's report of a program's end.

        `limit` is the limit that the program had exceeded when the worker had it killed, or None.
        """
        return cls(report["exceeded"] or limit, os.waitstatus_to_exitcode(report["status"]), report["cpu_s"])

    def outcome(self, cgroup: Cgroup, kills: int, kind: str = "") -> Outcome:
        """Returns the program's outcome. A program with exit code 0 never has the outcome `memory`.

        Args:
            cgroup: the program's control group. If the kernel killed a process of the group for lack of memory, the
                outcome is `memory`.
            kills: how many processes of the group the kernel had killed for lack of memory before the program started.
            kind: the kind of the program's report. The kind `m` means that the program ran out of memory.
        """
        if self.limit is not None:
            return self.limit
        if self.exit_code == 0:
            return "ok"
        killed = self.exit_code == -_SIGKILL and cgroup.kills() > kills
        return "memory" if killed or kind == "m" else "error"


class Abort:
    """Lets another thread request the end of the running program."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._run_id: str | None = None
        self._requested = False

    @contextlib.contextmanager
    def watch(self, run_id: str) -> Iterator[int]:
        """Yields a file descriptor that becomes readable when another thread requests the end of this program."""
        with self._lock:
            self._run_id = run_id
        try:
            yield self._fd
        finally:
            with self._lock:
                self._run_id = None
                if self._requested:
                    self._requested = False
                    os.eventfd_read(self._fd)

    def request(self, run_id: str) -> None:
        """Request the end of a program. Does nothing if this program is not running."""
        with self._lock:
            if run_id == self._run_id:
                self._requested = True
                os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        os.close(self._fd)


def wait_for_end(
    jail: Jail, kind: ZygoteKind, key: int, streams: Streams, deadline: float, abort: int | None = None
) -> ProgramEnd:
    """Read a program's output until the zygote reports the program's end.

    Kill the program at the deadline, or if it writes too much output.

    Args:
        jail: the program's jail.
        kind: kind of the zygote from which the program was forked.
        key: the program's key.
        streams: the worker's ends of the program's streams.
        deadline: monotonic time at which the program is killed.
        abort: a file descriptor. If the descriptor becomes readable, the program is killed and gets the outcome
            `refused`.

    Raises:
        JailLost: the zygote died before the program reached a limit, or never received the start command.
    """
    control = jail.zygote_socket(kind)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    streams.register(poll)
    if abort is not None:
        poll.register(abort, select.POLLIN)
    limit: Outcome | None = None
    started = aborted = False
    try:
        while True:
            left = max(0.0, deadline - time.monotonic())
            for fd, _ in poll.poll(left * 1000):
                if fd == abort:
                    aborted = True
                    poll.unregister(fd)
                elif fd != control.fileno():
                    streams.read(fd, poll)
                elif (report := jail.receive_report(kind, key)) is not None:
                    streams.drain()
                    return ProgramEnd.from_report(report, limit)
            # The deadline is checked after the events, because this process itself may be late on a busy machine.
            if limit is not None and left == 0:
                raise JailLost(f"the {kind} zygote does not answer")
            if limit is None and (left == 0 or streams.flooded or aborted):
                limit = "timeout" if left == 0 else "output_limit" if streams.flooded else "refused"
                started = jail.has_read_all(kind)
                jail.send(kind, {"op": "kill", "key": key})
                deadline = time.monotonic() + REPLY_TIMEOUT_S
    except JailLost as error:
        if not started:
            raise
        streams.drain()
        return ProgramEnd(limit, -_SIGKILL, 0.0, problem=str(error))
