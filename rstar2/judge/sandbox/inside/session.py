"""The process of a session, inside the jail, which runs the session's cells one after another with the same variables.

The code of the cells controls this process, so what this process reports about a cell cannot be trusted. The kernel
reports the end of a program, but not the end of a cell. The worker sends each cell with a nonce that the cell's answer
must contain. A cell cannot find the nonce by inspecting frames and objects. But it can find the nonce by replacing
functions of this module or by searching this process's memory. Therefore the worker, outside the jail, enforces the
time limit and measures the CPU time. The worker regards a cell as ended only when this process waits for the next cell.
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
"""The length of a cell's source is sent between the nonce and the source, as a big-endian integer of this many
bytes."""
# Bound here because a cell may replace names in modules, and built-in names.
_receive, _getpid, _exit = os.read, os.getpid, os._exit
__builtins__ = dict(vars(builtins))  # type: ignore[assignment]


class _ChannelClosed(Exception):
    """The worker closed the channel."""


class CellLoop:
    """Reads cells from a file descriptor, runs the cells, and writes the cells' answers to the same descriptor."""

    def __init__(self, channel_fd: int, work_dir: str) -> None:
        self._fd = channel_fd
        self._work_dir = work_dir
        self._count = 0

    def run(self) -> NoReturn:
        """Run cells until the channel closes or a cell exits, then end this process."""
        # Imported here, because an import at the top would make the fork of every program slower.
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
            # While the cell runs, its nonce exists only on this frame's stack, which Python code cannot read.
            self._answer(self._read(NONCE), self._run_cell(self._read_source()))

    def _read_source(self) -> str:
        return self._read(int.from_bytes(self._read(LENGTH), "big")).decode()

    def _run_cell(self, source: str) -> tuple[bytes, bytes]:
        """Run a cell. Returns the kind and the text of the cell's answer.

        The kinds are `v` (the cell has a value, and the text is its repr), `o` (the cell has no value), `e` (the cell
        failed) and `m` (the cell failed for lack of memory).
        """
        self._count += 1
        path = f"{self._work_dir}/cell{self._count}.py"
        try:
            # The handler is set only during the cell, because a late interrupt must not end this loop.
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
            # This is a child process that the cell forked, not the session.
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
