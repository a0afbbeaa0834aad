"""Waiting for a program: reading its output, keeping its deadline, hearing of its end from its zygote."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rstar2.judge.sandbox.jail import REPLY_TIMEOUT_S, Jail, JailLost
from rstar2.judge.sandbox.streams import Streams
from rstar2.judge.sandbox.zygote_kinds import ZygoteKind
from rstar2.judge.schema import Outcome

_SIGKILL = 9
_SETTLE_S = 0.003
"""How long output may wait in its pipe. Most programs end sooner, and cost one awakening, not several."""


@dataclass
class ProgramEnd:
    """How a program ended."""

    verdict: Outcome | None
    """The limit it hit, as the worker saw it; None for none."""
    exit_code: int
    """As subprocess has it: negative for a signal."""
    cpu_s: float
    problem: str = ""
    """Why nothing was heard of its end, though it was told to; its jail is no use any more."""


def program_end(report: dict[str, Any], verdict: Outcome | None) -> ProgramEnd:
    return ProgramEnd(verdict, os.waitstatus_to_exitcode(report["status"]), report["cpu_s"])


class Abort:
    """Lets another thread end the program that runs."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._run_id: str | None = None
        self._requested = False

    @contextlib.contextmanager
    def watch(self, run_id: str) -> Iterator[int]:
        """For the length of one program: a descriptor that becomes readable when its end is asked for."""
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
        """Ask for the end of a program, unless it is over."""
        with self._lock:
            if run_id == self._run_id:
                self._requested = True
                os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        os.close(self._fd)


def wait_for_end(
    jail: Jail, kind: ZygoteKind, key: int, streams: Streams, deadline: float, abort: int | None = None
) -> ProgramEnd:
    """Read a program's output until its zygote reports its end; kill it at the deadline or for flooding.

    Args:
        deadline: on the monotonic clock.
        abort: a descriptor; the program is killed, and its verdict `refused`, when it becomes readable.

    Raises:
        Lost: the zygote died before the program met a limit, or never took the order to start it.
    """
    control = jail.zygote_socket(kind)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    if abort is not None:
        poll.register(abort, select.POLLIN)
    verdict: Outcome | None = None
    begun = False
    settling = True
    aborted = False
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0 and verdict is not None:
                raise JailLost(f"the {kind} zygote does not answer")
            if verdict is None and (left <= 0 or streams.flooded or aborted):
                verdict = "timeout" if left <= 0 else "output_limit" if streams.flooded else "refused"
                begun = jail.has_read_all(kind)
                jail.command(kind, "kill", key)
                left = REPLY_TIMEOUT_S
                deadline = time.monotonic() + left
            events = poll.poll((min(left, _SETTLE_S) if settling else left) * 1000)
            if settling and not events:
                settling = False
                streams.register(poll)
            for fd, _ in events:
                if fd == abort:
                    aborted = True
                    poll.unregister(fd)
                elif fd != control.fileno():
                    streams.read(fd, poll)
                elif (report := jail.listen(kind, key)) is not None:
                    streams.drain()
                    return program_end(report, verdict)
    except JailLost as error:
        if not begun:
            raise
        return ProgramEnd(verdict, -_SIGKILL, 0.0, problem=str(error))
