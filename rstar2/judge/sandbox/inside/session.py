"""A session: one process that runs cell after cell in the same namespace.

The process stays under the program's control between cells, so what it says about a cell's end is the
program's own word, unlike a single run's end. Each cell comes with a nonce that its answer must carry, and
which the cell cannot come by with a write or by looking at frames and objects; code that replaces functions
of this module, or searches this process's memory, can. The worker outside keeps the deadline and the
processor time, and takes a cell for ended only when this process waits for the next.
"""

from __future__ import annotations

import builtins
import os

from rstar2.judge.sandbox.inside import program
from rstar2.judge.sandbox.inside.program import NONCE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

SIGINT = 2
LENGTH = 4
"""Bytes of the length that is sent, big-endian, after a cell's nonce and before its source."""
# A cell may replace names in modules, and the built-in ones.
_receive, _getpid = os.read, os.getpid
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]


class _Ended(Exception):
    """The worker closed the channel."""


class SessionLoop:
    """The channel cells come and go on, and the work folder."""

    def __init__(self, channel_fd: int, work_dir: str) -> None:
        self.channel_fd, self.work_dir = channel_fd, work_dir

    def run(self) -> NoReturn:
        """Run cells until the channel closes or a cell leaves, then leave this process."""
        code = 1
        try:
            _Cells(self).serve()
        except _Ended:
            code = 0
        except SystemExit as leaving:
            code = program.finalize(program.exit_code(leaving.code))
        finally:
            program.exit_now(code)


class _Cells:
    def __init__(self, session: SessionLoop) -> None:
        self._fd = session.channel_fd
        self._work_dir = session.work_dir
        self._pid = _getpid()
        self._count = 0
        self._namespace = program.make_main_module(f"{session.work_dir}/{program.NAME}")
        # Not imported above: every program would pay for it.
        import signal

        self._signal, self._ignore = signal.signal, signal.SIG_IGN
        self._handler: Any = signal.getsignal(SIGINT)

    def serve(self) -> None:
        self._signal(SIGINT, self._ignore)
        while True:
            # While the cell runs, its nonce is nowhere but on this frame's stack, which no Python code can
            # look at.
            self._answer(self._read(NONCE), self._run(self._read_source()))

    def _read_source(self) -> str:
        return self._read(int.from_bytes(self._read(LENGTH), "big")).decode()

    def _run(self, source: str) -> tuple[bytes, bytes]:
        """(`v` and the value's repr, `o` without a value, `e` failed, `m` failed for want of memory)."""
        self._count += 1
        path = f"{self._work_dir}/cell{self._count}.py"
        try:
            # An interrupt that comes too late must not hit this loop, hence the switching.
            self._signal(SIGINT, self._handler)
            try:
                value = program.execute(source, path, self._namespace)
                text = None if value is None else program.repr_bytes(value)
            finally:
                self._handler = self._signal(SIGINT, self._ignore)
                program.flush()
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a cell raises is its result
            program.print_exception(error, source, path)
            return (b"m" if isinstance(error, MemoryError) else b"e"), b""
        return (b"o", b"") if text is None else (b"v", text)

    def _answer(self, nonce: bytes, answer: tuple[bytes, bytes]) -> None:
        if _getpid() != self._pid:
            # A child that the cell forked and that came to the cell's end: it is not the session.
            program.exit_now(program.finalize(0))
        program.send_report(self._fd, answer[0], nonce, answer[1])

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = _receive(self._fd, count - len(data))
            if not chunk:
                raise _Ended
            data += chunk
        return data
