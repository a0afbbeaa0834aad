"""Counts and removes what programs leave, in a process of its own, from which no program is forked.

Names of files that the process reads stay somewhere in its memory; a zygote's is inherited by later programs.
"""

from __future__ import annotations

import _socket
import os
import sys

from rstar2.judge.sandbox.inside import syscalls, wire
from rstar2.judge.sandbox.inside.scratch import Scratch, is_over_quota

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SIGKILL = 9


class Cleaner:
    """The process, forked when it is first needed, and a socket to it, which the zygotes forked later use too.

    For speed only: a zygote that shares its memory with nobody writes to it without copies.
    Its methods raise wire.Closed where the process is gone.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._socket: _socket.socket | None = None
        self.pid = -1
        """-1 until it runs."""

    def _running(self) -> _socket.socket:
        if self._socket is None:
            self._socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
            self.pid = os.fork()
            if self.pid == 0:
                try:
                    _serve(theirs, self._scratch)
                except Exception:  # noqa: BLE001 - nothing above may run in this process, not even to print it
                    sys.excepthook(*sys.exc_info())
                finally:
                    os._exit(1)
            theirs.close()
        return self._socket

    def clean(self) -> bool:
        """Remove whatever a program left; False where something could not be removed, or not soon."""
        return bool(self._ask("clean"))

    def take_snapshot(self) -> None:
        """Record what is in the folders now as empty."""
        if self._socket is not None:
            self._ask("take snapshot")

    def is_over_quota(self, folder: str) -> bool | None:
        """Whether a folder holds more than a program may keep; None where it changed while it was measured."""
        return self._ask("is over quota", folder)

    def _ask(self, *question: str) -> bool | None:
        # An end for this answer alone: another zygote may be asking at the same time.
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            wire.send(self._running(), question, (theirs.fileno(),))
            theirs.close()
            answer: bool | None = wire.receive(ours)[0]
            return answer
        finally:
            theirs.close()
            ours.close()


def _serve(requests: _socket.socket, scratch: Scratch) -> NoReturn:
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _SIGKILL)
    os.closerange(3, requests.fileno())
    os.closerange(requests.fileno() + 1, 1 << 16)
    answer: bool | None
    while True:
        try:
            question, (fd,) = wire.receive(requests)
        except wire.Closed:
            os._exit(0)
        match question:
            case ["clean"]:
                answer = scratch.clean()
            case ["take snapshot"]:
                scratch.take_snapshot()
                answer = True
            case [_, folder]:
                answer = is_over_quota(folder)
        asker = _socket.socket(fileno=fd)
        try:
            wire.send(asker, answer)
        except wire.Closed:  # the zygote has ended; the next one may still ask
            continue
        finally:
            asker.close()
