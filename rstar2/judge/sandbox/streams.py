"""Holds the worker's ends of a program's standard input, output, errors and report."""

from __future__ import annotations

import fcntl
import os
import select
from typing import Any

from pydantic_core import to_json

from rstar2.judge.sandbox.inside.program import HEADER, NONCE
from rstar2.judge.schema import MAX_OUTPUT_BYTES, MAX_OUTPUT_JSON_BYTES

_CHUNK = 1 << 16
_F_SEAL_FUTURE_WRITE = 0x10
"""From linux/fcntl.h. F_SEAL_WRITE would fail (EBUSY) where the kernel is just moving a page of the file."""
_UNCHANGEABLE = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE
FLOOD_BYTES = 64 << 20
"""Bytes on one stream after which the program is killed; below, output is only cut."""


class Stream:
    """One output pipe, which the host's user `owner` (-1: the worker's own) may open by name (/dev/stdout).

    It keeps the first MAX_OUTPUT_BYTES and counts the rest.
    """

    def __init__(self, owner: int) -> None:
        self.fd, self.theirs = os.pipe2(os.O_CLOEXEC)
        os.fchown(self.theirs, owner, -1)
        os.set_blocking(self.fd, False)
        self.clear()

    def clear(self) -> None:
        """Forget what was read so far."""
        self._chunks: list[bytes] = []
        self._kept = 0
        self._seen = 0

    def read(self) -> bool:
        """Read what is there. False at the end of the stream."""
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
        """Read what is left, without waiting."""
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
        """What was kept, decoded as UTF-8, with U+FFFD for bytes that are not."""
        return self.data().decode(errors="replace")


class Streams:
    """The descriptors of one program or session. Call `close` in the end.

    Args:
        owner: the host's user who may open the pipes by name (/dev/stdin); -1 for the worker's own.
        channel: a descriptor that the process gets instead of the pipe for its report (a session's socket).
    """

    def __init__(self, stdin: str, owner: int, channel: int | None = None) -> None:
        self.stdout, self.stderr = Stream(owner), Stream(owner)
        self.ours = {stream.fd: stream for stream in (self.stdout, self.stderr)}
        self.report: Stream | None = None
        if channel is None:
            self.report = Stream(owner)
            self.ours[self.report.fd] = self.report
            channel = self.report.theirs
        self.names = ["stdin", "stdout", "stderr", "report"]
        self.theirs = [_input(stdin.encode()), self.stdout.theirs, self.stderr.theirs, channel]
        self._to_close = list(self.theirs)

    def add(self, name: str, fd: int) -> None:
        """Send a descriptor along; it is closed here once sent."""
        self.names.append(name)
        self.theirs.append(fd)
        self._to_close.append(fd)

    def sent(self) -> None:
        """Close the program's ends, which it has by now."""
        while self._to_close:
            os.close(self._to_close.pop())

    def register(self, poll: select.poll) -> None:
        for fd in self.ours:
            poll.register(fd, select.POLLIN)

    def read(self, fd: int, poll: select.poll) -> None:
        """Read what is there on one of our descriptors."""
        if not self.ours[fd].read():
            poll.unregister(fd)

    @property
    def flooded(self) -> bool:
        return any(stream.flooded for stream in self.ours.values())

    def drain(self) -> None:
        for stream in self.ours.values():
            stream.drain()

    def clear(self) -> None:
        for stream in self.ours.values():
            stream.clear()

    def reported(self, nonce: bytes) -> tuple[str, str]:
        """The program's report: (kind, text). `v`: its value; `m`: out of memory; empty: there is none."""
        data = self.report.data() if self.report is not None else b""
        kind, text = parse_report(data, nonce) or ("", "")
        return kind, _short_as_json(text)

    def output(self) -> dict[str, Any]:
        """The fields of a `RunResult` that hold what was printed."""
        fields: dict[str, Any] = {}
        for name, stream in (("stdout", self.stdout), ("stderr", self.stderr)):
            text = stream.text()
            fields[name] = _short_as_json(text)
            fields[f"{name}_truncated"] = stream.truncated or len(fields[name]) < len(text)
        return fields

    def close(self) -> None:
        self.sent()
        while self.ours:
            os.close(self.ours.popitem()[0])


def _short_as_json(text: str) -> str:
    """A text, or so much of its beginning as takes at most MAX_OUTPUT_JSON_BYTES in JSON."""
    most = MAX_OUTPUT_JSON_BYTES
    while 6 * len(text) > most and (size := len(to_json(text)) - len('""')) > most:
        text = text[: len(text) * most // size]
    return text


def parse_report(data: bytes, nonce: bytes) -> tuple[str, str] | None:
    """The (kind, text) of a report, or answer to a cell, that carries the nonce; None until it is complete.

    Only the package's own code inside knows the nonce.
    """
    length = int.from_bytes(data[1 + NONCE : HEADER], "big")
    if len(data) < HEADER + length or data[1 : 1 + NONCE] != nonce:
        return None
    return data[:1].decode(errors="replace"), data[HEADER : HEADER + length].decode(errors="replace")


def _input(data: bytes) -> int:
    """A descriptor that yields `data` and then ends."""
    return memory_file(data) if data else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def memory_file(data: bytes) -> int:
    """A descriptor of a new file in memory, at its beginning, which nobody can change.

    A pipe would not do: one may hold less than two pages, and then the worker would wait for the program to read.
    """
    fd = os.memfd_create("text", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _UNCHANGEABLE)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
