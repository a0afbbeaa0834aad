"""A program's standard input, output and value, as the worker holds them."""

from __future__ import annotations

import contextlib
import os
import select
from typing import Self

from rstar2.judge.schema import MAX_OUTPUT_BYTES

_PIPE_BYTES = 65536
_CHUNK = 1 << 18
FLOOD_BYTES = 64 << 20
"""Bytes on one stream after which a program is killed instead of only being cut short."""


class Stream:
    """One output pipe: keeps the first MAX_OUTPUT_BYTES and counts the rest."""

    def __init__(self) -> None:
        self.fd, self.theirs = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.theirs, True)
        self._chunks: list[bytes] = []
        self._kept = 0
        self.seen = 0

    def read(self) -> bool:
        """Take what is there; False at the end."""
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return True
        self.seen += len(data)
        if data and self._kept < MAX_OUTPUT_BYTES:
            self._chunks.append(data[: MAX_OUTPUT_BYTES - self._kept])
            self._kept += len(self._chunks[-1])
        return bool(data)

    def drain(self) -> None:
        """Take what is left without waiting."""
        while True:
            before = self.seen
            if not self.read() or self.seen == before:
                return

    @property
    def truncated(self) -> bool:
        return self.seen > self._kept

    def data(self) -> bytes:
        return b"".join(self._chunks)

    def text(self) -> str:
        """What was kept as UTF-8, with U+FFFD for what is none."""
        return self.data().decode(errors="replace")


class Streams:
    """The descriptors of one program. Ours are closed at the end, theirs once the program has them."""

    def __init__(self, stdin: str) -> None:
        self.stdout, self.stderr, self.report = Stream(), Stream(), Stream()
        self._ours = {stream.fd: stream for stream in (self.stdout, self.stderr, self.report)}
        outputs = (self.stdout.theirs, self.stderr.theirs, self.report.theirs)
        self._borrowed = [*outputs]
        self.theirs: tuple[int, ...] = (self._input(stdin), *outputs)

    def _input(self, text: str) -> int:
        """A descriptor that yields `text` and then ends."""
        data = text.encode()
        if not data:
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        elif len(data) <= _PIPE_BYTES:
            fd, writer = os.pipe2(os.O_CLOEXEC)
            os.write(writer, data)
            os.close(writer)
        else:
            return self._hold_bytes(data)
        self._borrowed.append(fd)
        return fd

    def hold(self, text: str) -> int:
        """A descriptor of a file in memory that holds `text`."""
        return self._hold_bytes(text.encode())

    def _hold_bytes(self, data: bytes) -> int:
        fd = os.memfd_create("text", os.MFD_CLOEXEC)
        self._borrowed.append(fd)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def started(self) -> None:
        """The program has its descriptors; let go of them."""
        while self._borrowed:
            os.close(self._borrowed.pop())

    def register(self, poll: select.poll) -> None:
        for fd in self._ours:
            poll.register(fd, select.POLLIN)

    def read(self, fd: int, poll: select.poll) -> None:
        """Take what is there on one of our descriptors."""
        if not self._ours[fd].read():
            poll.unregister(fd)

    @property
    def flooded(self) -> bool:
        return any(stream.seen > FLOOD_BYTES for stream in self._ours.values())

    def drain(self) -> None:
        for stream in self._ours.values():
            stream.drain()

    @property
    def value(self) -> str | None:
        """The repr the program reported. It is the program's own word."""
        data = self.report.data()
        return data[1:].decode(errors="replace") if data[:1] == b"v" else None

    @property
    def out_of_memory(self) -> bool:
        """The program said that it ended for want of memory; believed only of programs that failed anyway."""
        return self.report.data()[:1] == b"m"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.started()
        for fd in self._ours:
            with contextlib.suppress(OSError):
                os.close(fd)
