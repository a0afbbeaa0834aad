"""Counts and removes what programs write, in a process of its own, from which no program is forked.

Names of files that the process reads stay somewhere in its memory; a zygote's is inherited by later programs.
"""

from __future__ import annotations

import _socket
import os
import sys

from rstar2.judge.sandbox.inside import syscalls, wire
from rstar2.judge.sandbox.inside.scratch import Scratch, bytes_of_deleted_files, is_over_quota

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_SIGKILL = 9


class Cleaner:
    """The process, and a socket to it, which the zygotes forked later use too.

    Forked before the first program, because a program may have every process that its jail may have.
    Its methods raise wire.Closed if the process is gone.
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
        """Remove whatever a program left; False where something could not be removed, or not soon."""
        return bool(self._ask("clean"))

    def take_snapshot(self) -> None:
        """Record what is in the folders now as empty."""
        self._ask("take snapshot")

    def is_over_quota(self, folder: str, pids: list[int]) -> bool | None:
        """Whether a folder, and what these processes hold of files deleted from it, are more than a program may keep.

        None if something in the folder was moved or removed while it was measured.
        """
        return self._ask("is over quota", folder, pids)

    def _ask(self, *question: str | list[int]) -> bool | None:
        # An end for this answer alone: another zygote may be asking at the same time.
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            wire.send(self._socket, question, (theirs.fileno(),))
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
            case [_, folder, pids]:
                answer = is_over_quota(folder, bytes_of_deleted_files(pids, folder))
        asker = _socket.socket(fileno=fd)
        try:
            wire.send(asker, answer)
        except wire.Closed:  # the zygote has ended; the next one may still ask
            continue
        finally:
            asker.close()
