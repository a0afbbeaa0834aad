"""Counts what programs take and removes what they leave, in a process of its own, from which no program is forked.

Names of files that the process reads stay somewhere in its memory; a zygote's is inherited by later programs.
"""

from __future__ import annotations

import _socket
import os
import sys

from rstar2.judge.sandbox.inside import syscalls, wire
from rstar2.judge.sandbox.inside.memory import memory_bytes
from rstar2.judge.sandbox.inside.scratch import Scratch, bytes_of_deleted_files, is_over_quota

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

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

    def exceeded_limit(self, pids: list[int], most_memory: int, folder: str) -> str | None:
        """The outcome for a limit that a program has exceeded (`memory` or `output_limit`), or nothing.

        Args:
            pids: its processes.
            most_memory: bytes that they may have together; 0: do not count.
            folder: where they write, if there is no file system with a quota; empty: do not count.

        Returns:
            None if it could not be measured, above all because something in the folder was moved or removed meanwhile.
        """
        answer: str | None = self._ask("check", pids, most_memory, folder)
        return answer

    def _ask(self, *question: str | int | list[int]) -> Any:
        # An end for this answer alone: another zygote may be asking at the same time.
        ours, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            wire.send(self._socket, question, (theirs.fileno(),))
            theirs.close()
            return wire.receive(ours)[0]
        finally:
            theirs.close()
            ours.close()


def _exceeded_limit(pids: list[int], most_memory: int, folder: str) -> str | None:
    """As `Cleaner.exceeded_limit`."""
    if most_memory and memory_bytes(pids, enough=most_memory) > most_memory:
        return "memory"
    if not folder:
        return ""
    over = is_over_quota(folder, bytes_of_deleted_files(pids, folder))
    return None if over is None else "output_limit" if over else ""


def _serve(requests: _socket.socket, scratch: Scratch) -> NoReturn:
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, _SIGKILL)
    os.closerange(3, requests.fileno())
    os.closerange(requests.fileno() + 1, 1 << 16)
    answer: bool | str | None
    has_failed = False
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
            case ["check", pids, most_memory, folder]:
                try:
                    answer = _exceeded_limit(pids, most_memory, folder)
                except Exception:  # noqa: BLE001 - one program that cannot be measured must not end all the others
                    answer = None
                    # Only the first one: a program that causes it may do so at every check.
                    if not has_failed:
                        sys.excepthook(*sys.exc_info())
                    has_failed = True
        asker = _socket.socket(fileno=fd)
        try:
            wire.send(asker, answer)
        except wire.Closed:  # the zygote has ended; the next one may still ask
            continue
        finally:
            asker.close()
