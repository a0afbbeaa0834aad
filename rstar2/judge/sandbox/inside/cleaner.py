"""Removes what programs left, in a process of its own, from which no program is forked.

Names of files that the process reads stay somewhere in its memory; a zygote's is inherited by later programs.
"""

from __future__ import annotations

import _socket
import os
import sys

from rstar2.judge.sandbox.inside import syscalls, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from rstar2.judge.sandbox.inside.scratch import Scratch

_SIGKILL = 9


class Cleaner:
    """The process, forked on creation, and the zygotes' end of a socket to it; one zygote uses it at a time.

    Its methods raise wire.Closed where the process is gone.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._socket, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _serve(theirs, scratch)
            except Exception:  # noqa: BLE001 - nothing above may run in this process, not even to print it
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)
        theirs.close()

    def clean(self) -> bool:
        """As Scratch.clean."""
        return self._ask("clean")

    def take_snapshot(self) -> None:
        """As Scratch.take_snapshot."""
        self._ask("take snapshot")

    def _ask(self, what: str) -> bool:
        wire.send(self._socket, what)
        return bool(wire.receive(self._socket)[0])


def _serve(requests: _socket.socket, scratch: Scratch) -> NoReturn:
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _SIGKILL)
    os.closerange(3, requests.fileno())
    os.closerange(requests.fileno() + 1, 1 << 16)
    while True:
        try:
            what = wire.receive(requests)[0]
        except wire.Closed:
            os._exit(0)
        if what == "clean":
            done = scratch.clean()
        else:
            scratch.take_snapshot()
            done = True
        wire.send(requests, done)
