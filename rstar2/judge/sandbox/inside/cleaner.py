"""The cleaner: a separate process that measures the memory and disk space of programs and removes their files.

The cleaner reads the names of programs' files, and these names stay in the cleaner's memory. No program is forked from
the cleaner, so no later program can find the names of the files. A zygote must not read the names of the files, because
later programs inherit the zygote's memory.
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
    """The cleaner's process, and a socket to this process. Zygotes that are forked later use the same cleaner.

    A program may start as many processes as the jail allows, and then the cleaner could not be forked. Therefore the
    cleaner is forked before the first program. The methods of `Cleaner` raise wire.Closed if the cleaner's process has
    ended.

    Args:
        scratch: the folders to which programs may write.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._socket, cleaner_socket = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        self.pid = os.fork()
        if self.pid == 0:
            try:
                _serve(cleaner_socket, scratch)
            except Exception:  # noqa: BLE001 - no code of the callers may run in this process
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(1)
        cleaner_socket.close()

    def clean(self) -> bool:
        """Remove all files that a program left.

        Returns False if some files could not be removed, or could not be removed in time.
        """
        return bool(self._request("clean"))

    def take_snapshot(self) -> None:
        """Record the current contents of the scratch folders. `clean` restores these contents."""
        self._request("take snapshot")

    def exceeded_limit(self, pids: list[int], max_memory_bytes: int, folder: str) -> str | None:
        """Check whether a program exceeds a limit.

        Args:
            pids: ids of the program's processes.
            max_memory_bytes: maximum number of bytes of memory that the processes may use together. If 0, memory is not
                measured.
            folder: the folder to which the processes write. If `folder` is empty, no folder is measured, for example
                because a quota of the file system already limits the folder.

        Returns:
            `memory` or `output_limit` if the program exceeds this limit, and an empty string if it exceeds no limit.
            Returns None if the folder could not be measured, usually because a file in the folder was moved or removed
            during the measurement.
        """
        answer: str | None = self._request("check", pids, max_memory_bytes, folder)
        return answer

    def _request(self, *request: str | int | list[int]) -> Any:
        # Each request has a new socket for its answer, because another zygote may send a request at the same time.
        answers, answers_end = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
        try:
            wire.send(self._socket, request, (answers_end.fileno(),))
            answers_end.close()
            return wire.receive(answers)[0]
        finally:
            answers_end.close()
            answers.close()


def _exceeded_limit(pids: list[int], max_memory_bytes: int, folder: str) -> str | None:
    """Does the work of `Cleaner.exceeded_limit` in the cleaner's process."""
    if max_memory_bytes and memory_bytes(pids, limit=max_memory_bytes) > max_memory_bytes:
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
            request, (fd,) = wire.receive(requests)
        except wire.Closed:
            os._exit(0)
        match request:
            case ["clean"]:
                answer = scratch.clean()
            case ["take snapshot"]:
                scratch.take_snapshot()
                answer = True
            case ["check", pids, max_memory_bytes, folder]:
                try:
                    answer = _exceeded_limit(pids, max_memory_bytes, folder)
                except Exception:  # noqa: BLE001 - a program that cannot be measured must not end other programs
                    answer = None
                    # Only the first exception is printed, because a program may cause one at every check.
                    if not has_failed:
                        sys.excepthook(*sys.exc_info())
                    has_failed = True
        answers_end = _socket.socket(fileno=fd)
        try:
            wire.send(answers_end, answer)
        except wire.Closed:  # this zygote has ended, but others may still send requests
            continue
        finally:
            answers_end.close()
