"""A session: one process that runs cell after cell in the same namespace.

The process stays under the program's control between cells, so what it says about a cell's end is the
program's own word, unlike a single run's end. The worker outside keeps the deadline and the processor time.
"""

from __future__ import annotations

import os

from rstar2.judge.sandbox.inside import program

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

SIGINT = 2
HEADER = 5
"""Bytes before each message on the channel: a kind, and the length of what follows, big-endian."""


class _Ended(Exception):
    """The worker closed the channel."""


class Session:
    """The channel cells come and go on, and the work folder."""

    def __init__(self, channel_fd: int, place: str) -> None:
        self.channel_fd, self.place = channel_fd, place

    def run(self) -> NoReturn:
        """Run cells until the channel closes or a cell leaves, then leave this process."""
        code = 1
        try:
            _Cells(self).serve()
        except _Ended:
            code = 0
        except SystemExit as leaving:
            code = program.wind_up(program.exit_code(leaving.code))
        finally:
            program.leave(code)


class _Cells:
    def __init__(self, session: Session) -> None:
        self._fd = session.channel_fd
        self._place = session.place
        self._count = 0
        self._namespace = program.become_main(f"{session.place}/{program.NAME}")
        # Not imported above: every program would pay for it.
        import signal

        self._signal, self._ignore = signal.signal, signal.SIG_IGN
        self._handler: Any = signal.getsignal(SIGINT)

    def serve(self) -> None:
        self._signal(SIGINT, self._ignore)
        while True:
            length = int.from_bytes(self._read(HEADER)[1:], "big")
            source = self._read(length).decode()
            self._count += 1
            kind, text = self._run(source)
            data = text.encode("utf-8", "backslashreplace")
            self._write(kind + len(data).to_bytes(HEADER - 1, "big") + data)

    def _run(self, source: str) -> tuple[bytes, str]:
        """(`v` and the value's repr, `o` without a value, `e` failed, `m` failed for want of memory)."""
        path = f"{self._place}/cell{self._count}.py"
        try:
            # An interrupt that comes too late must not hit this loop, hence the switching.
            self._signal(SIGINT, self._handler)
            try:
                value = program.execute(source, path, self._namespace)
                text = None if value is None else repr(value)
            finally:
                self._handler = self._signal(SIGINT, self._ignore)
                program.flush()
        except SystemExit:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a cell raises is its result
            program.show(error, source, path)
            return (b"m" if isinstance(error, MemoryError) else b"e"), ""
        return (b"o", "") if text is None else (b"v", text)

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = os.read(self._fd, count - len(data))
            if not chunk:
                raise _Ended
            data += chunk
        return data

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]
