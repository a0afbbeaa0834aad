"""A program's standard input, output and value, as the worker holds them."""

from __future__ import annotations

import os
import select
from typing import Self

from rstar2.judge.sandbox.inside.program import HEADER, NONCE
from rstar2.judge.schema import MAX_OUTPUT_BYTES

_PIPE_BYTES = 65536
_CHUNK = 1 << 16
FLOOD_BYTES = 64 << 20
"""Bytes on one stream after which a program is killed instead of only being cut short."""


class Stream:
    """One output pipe: keeps the first MAX_OUTPUT_BYTES and counts the rest.

    Args:
        owner: see Streams.
    """

    def __init__(self, owner: int) -> None:
        self.fd, self.theirs = os.pipe2(os.O_CLOEXEC)
        os.fchown(self.theirs, owner, -1)
        os.set_blocking(self.fd, False)
        self.forget()

    def forget(self) -> None:
        """Start counting and keeping anew."""
        self._chunks: list[bytes] = []
        self._kept = 0
        self._seen = 0

    def read(self) -> bool:
        """Take what is there; False at the end."""
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return True
        self._seen += len(data)
        if data and self._kept < MAX_OUTPUT_BYTES:
            self._chunks.append(data[: MAX_OUTPUT_BYTES - self._kept])
            self._kept += len(self._chunks[-1])
        return bool(data)

    def drain(self) -> None:
        """Take what is left without waiting."""
        before = -1
        while self._seen != before and not self.flooded:
            before = self._seen
            self.read()

    @property
    def flooded(self) -> bool:
        return self._seen > FLOOD_BYTES

    @property
    def truncated(self) -> bool:
        return self._seen > self._kept

    def data(self) -> bytes:
        return b"".join(self._chunks)

    def text(self) -> str:
        """What was kept as UTF-8, with U+FFFD for what is none."""
        return self.data().decode(errors="replace")


class Streams:
    """The descriptors of one program or session. Close them with `close`, or use them in a `with`.

    Args:
        stdin: text on standard input.
        owner: the outer user who may open the pipes by name (/dev/stdin); -1 for the worker's.
        channel: a descriptor the process gets in place of the pipe for its value (a session's socket).
    """

    def __init__(self, stdin: str, owner: int, channel: int | None = None) -> None:
        self._owner = owner
        self.stdout, self.stderr = Stream(owner), Stream(owner)
        self.ours = {stream.fd: stream for stream in (self.stdout, self.stderr)}
        self.report: Stream | None = None
        if channel is None:
            self.report = Stream(owner)
            self.ours[self.report.fd] = self.report
            channel = self.report.theirs
        self._borrowed = [self.stdout.theirs, self.stderr.theirs, channel]
        self.names = ["stdin", "stdout", "stderr", "report"]
        self.theirs = [self._input(stdin), *self._borrowed[:3]]

    def _input(self, text: str) -> int:
        """A descriptor that yields `text` and then ends."""
        data = text.encode()
        if len(data) > _PIPE_BYTES:
            return self._hold(data)
        if not data:
            fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        else:
            fd, writer = os.pipe2(os.O_CLOEXEC)
            os.fchown(fd, self._owner, -1)
            os.write(writer, data)
            os.close(writer)
        self._borrowed.append(fd)
        return fd

    def add_text(self, name: str, text: str) -> None:
        """Send a long text along as a file in memory."""
        self.add(name, self._hold(text.encode()), borrowed=False)

    def add(self, name: str, fd: int, *, borrowed: bool = True) -> None:
        """Send a descriptor along; it is closed here once sent."""
        self.names.append(name)
        self.theirs.append(fd)
        if borrowed:
            self._borrowed.append(fd)

    def _hold(self, data: bytes) -> int:
        fd = os.memfd_create("text", os.MFD_CLOEXEC)
        self._borrowed.append(fd)
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
        return fd

    def sent(self) -> None:
        """The program has its descriptors; let go of them."""
        while self._borrowed:
            os.close(self._borrowed.pop())

    def register(self, poll: select.poll) -> None:
        for fd in self.ours:
            poll.register(fd, select.POLLIN)

    def read(self, fd: int, poll: select.poll) -> None:
        """Take what is there on one of our descriptors."""
        if not self.ours[fd].read():
            poll.unregister(fd)

    @property
    def flooded(self) -> bool:
        return any(stream.flooded for stream in self.ours.values())

    def drain(self) -> None:
        for stream in self.ours.values():
            stream.drain()

    def forget(self) -> None:
        for stream in self.ours.values():
            stream.forget()

    def reported(self, nonce: bytes) -> tuple[str, str]:
        """What the program said of itself: (kind, text). `v`: the value; `m`: out of memory; else nothing.

        What does not begin with the nonce was not said by our own code.
        """
        data = self.report.data() if self.report is not None else b""
        if data[1 : 1 + NONCE] != nonce:
            return "", ""
        length = int.from_bytes(data[1 + NONCE : HEADER], "big")
        return data[:1].decode(errors="replace"), data[HEADER : HEADER + length].decode(errors="replace")

    def close(self) -> None:
        self.sent()
        while self.ours:
            os.close(self.ours.popitem()[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
