"""The process behind a session, inside the jail: it runs cell after cell in the same namespace.

The process stays under the program's control between cells, so what it reports of a cell's end is the
program's own claim, unlike the end of a program. Each cell comes with a nonce that its answer must carry, and
which the cell cannot obtain by a write or by looking at frames and objects; code that replaces functions of
this module, or searches this process's memory, can. The worker outside keeps the deadline and the CPU time,
and takes a cell for ended only when this process waits for the next.
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
"""Bytes of the length, big-endian, that is sent between a cell's nonce and its source."""
# A cell may replace names in modules, and the built-in ones.
_receive, _getpid, _exit = os.read, os.getpid, os._exit
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]


class _ChannelClosed(Exception):
    """The worker closed the channel."""


class CellLoop:
    """Reads cells from a descriptor, runs them, and answers on the same descriptor."""

    def __init__(self, channel_fd: int, work_dir: str) -> None:
        self._fd = channel_fd
        self._work_dir = work_dir
        self._count = 0

    def run(self) -> NoReturn:
        """Run cells until the channel closes or a cell exits, then end this process."""
        # Not imported above: every program would pay for it.
        import signal

        self._signal, self._ignore = signal.signal, signal.SIG_IGN
        self._handler: Any = signal.getsignal(SIGINT)
        self._pid = _getpid()
        self._namespace = program.make_main_module(f"{self._work_dir}/{program.NAME}")
        code = 1
        try:
            self._serve()
        except _ChannelClosed:
            code = 0
        except SystemExit as request:
            code = program.finalize(program.exit_code(request.code))
        finally:
            _exit(code)

    def _serve(self) -> None:
        self._signal(SIGINT, self._ignore)
        while True:
            # While the cell runs, its nonce is only on this frame's stack, which no Python code can look at.
            self._answer(self._read(NONCE), self._run_cell(self._read_source()))

    def _read_source(self) -> str:
        return self._read(int.from_bytes(self._read(LENGTH), "big")).decode()

    def _run_cell(self, source: str) -> tuple[bytes, bytes]:
        """(`v` and the value's repr, `o` without a value, `e` failed, `m` failed for lack of memory)."""
        self._count += 1
        path = f"{self._work_dir}/cell{self._count}.py"
        try:
            # Switched for each cell, because an interrupt that comes too late must not hit this loop.
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
            # A child that the cell forked and that reached the cell's end: it is not the session.
            _exit(program.finalize(0))
        program.send_report(self._fd, answer[0], nonce, answer[1])

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = _receive(self._fd, count - len(data))
            if not chunk:
                raise _ChannelClosed
            data += chunk
        return data
