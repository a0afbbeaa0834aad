"""The worker's ends of a program's standard input, standard output, standard error and report."""

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
"""The number of the seal F_SEAL_FUTURE_WRITE in linux/fcntl.h. The seal F_SEAL_WRITE is not used, because setting it
fails with EBUSY while the kernel moves a page of the file."""
_ALL_SEALS = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | _F_SEAL_FUTURE_WRITE
FLOOD_BYTES = 64 << 20
"""A program that writes more bytes than this to one stream is killed. Output that is not longer than this, but too long
for a result, is truncated."""


class Stream:
    """One output pipe of a program. A `Stream` stores the first MAX_OUTPUT_BYTES bytes. Later bytes are counted but not
    stored.

    Args:
        owner: the host's id of the user who may open the pipe by its name (/dev/stdout), or -1 for the worker's user.
    """

    def __init__(self, owner: int) -> None:
        self.fd, self.program_fd = os.pipe2(os.O_CLOEXEC)
        os.fchown(self.program_fd, owner, -1)
        os.set_blocking(self.fd, False)
        self.clear()

    def clear(self) -> None:
        """Discard all data that was read so far."""
        self._chunks: list[bytes] = []
        self._stored_bytes = 0
        self._read_bytes = 0

    def read(self) -> bool:
        """Read one chunk without waiting. Returns False at the end of the stream."""
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return True
        self._read_bytes += len(data)
        if data and self._stored_bytes < MAX_OUTPUT_BYTES:
            self._chunks.append(data[: MAX_OUTPUT_BYTES - self._stored_bytes])
            self._stored_bytes += len(self._chunks[-1])
        return bool(data)

    def drain(self) -> None:
        """Read all available data without waiting."""
        bytes_before = -1
        while self._read_bytes != bytes_before and not self.flooded:
            bytes_before = self._read_bytes
            self.read()

    @property
    def flooded(self) -> bool:
        return self._read_bytes > FLOOD_BYTES

    @property
    def truncated(self) -> bool:
        return self._read_bytes > self._stored_bytes

    def data(self) -> bytes:
        return b"".join(self._chunks)

    def text(self) -> str:
        """Returns the stored data decoded as UTF-8, with U+FFFD for invalid bytes."""
        return self.data().decode(errors="replace")


class Streams:
    """The file descriptors of one program or session. Call `close` when the program or session has ended.

    Args:
        stdin: the text that the program reads as standard input.
        owner: the host's id of the user who may open the pipes by their names (/dev/stdout), or -1 for the worker's
            user.
        channel: for a session, the socket that its process gets instead of a pipe for its report.
    """

    def __init__(self, stdin: str, owner: int, channel: int | None = None) -> None:
        self.stdout, self.stderr = Stream(owner), Stream(owner)
        self.by_fd = {stream.fd: stream for stream in (self.stdout, self.stderr)}
        self.report: Stream | None = None
        if channel is None:
            self.report = Stream(owner)
            self.by_fd[self.report.fd] = self.report
            channel = self.report.program_fd
        self.names = ["stdin", "stdout", "stderr", "report"]
        """The purpose of each descriptor in `program_fds`, in the same order."""
        self.program_fds = [
            _input(stdin.encode()),
            self.stdout.program_fd,
            self.stderr.program_fd,
            channel,
        ]
        """File descriptors that the program gets."""
        self._to_close = list(self.program_fds)

    def add(self, name: str, fd: int) -> None:
        """Add a file descriptor that the program gets. This process closes its copy after the descriptor was sent."""
        self.names.append(name)
        self.program_fds.append(fd)
        self._to_close.append(fd)

    def close_program_fds(self) -> None:
        """Close this process's copies of the program's ends of the pipes, after these were sent to the program."""
        while self._to_close:
            os.close(self._to_close.pop())

    def register(self, poll: select.poll) -> None:
        for fd in self.by_fd:
            poll.register(fd, select.POLLIN)

    def read(self, fd: int, poll: select.poll) -> None:
        """Read one chunk from the worker's end of a pipe.

        At the end of the stream, unregister the pipe's descriptor.
        """
        if not self.by_fd[fd].read():
            poll.unregister(fd)

    @property
    def flooded(self) -> bool:
        return any(stream.flooded for stream in self.by_fd.values())

    def drain(self) -> None:
        for stream in self.by_fd.values():
            stream.drain()

    def clear(self) -> None:
        for stream in self.by_fd.values():
            stream.clear()

    def reported(self, nonce: bytes) -> tuple[str, str]:
        """Returns the kind and the text of the program's report.

        The kind is `v` if the program has a value, `m` if it ran out of memory, and empty if there is no report.
        """
        data = self.report.data() if self.report is not None else b""
        kind, text = parse_report(data, nonce) or ("", "")
        return kind, _short_as_json(text)

    def output(self) -> dict[str, Any]:
        """Returns the fields of a `RunResult` that describe the program's output."""
        fields: dict[str, Any] = {}
        for name, stream in (("stdout", self.stdout), ("stderr", self.stderr)):
            text = stream.text()
            fields[name] = _short_as_json(text)
            fields[f"{name}_truncated"] = stream.truncated or len(fields[name]) < len(text)
        return fields

    def close(self) -> None:
        self.close_program_fds()
        while self.by_fd:
            os.close(self.by_fd.popitem()[0])


def _short_as_json(text: str) -> str:
    """Returns the text, truncated so that it takes at most MAX_OUTPUT_JSON_BYTES bytes as JSON."""
    max_bytes = MAX_OUTPUT_JSON_BYTES
    while 6 * len(text) > max_bytes and (size := len(to_json(text)) - len('""')) > max_bytes:
        text = text[: len(text) * max_bytes // size]
    return text


def parse_report(data: bytes, nonce: bytes) -> tuple[str, str] | None:
    """Returns the kind and the text of a program's report or of the answer to a cell.

    Returns None if the report is not complete or does not contain the nonce. Inside the jail, only the code of this
    package knows the nonce.
    """
    length = int.from_bytes(data[1 + NONCE : HEADER], "big")
    if len(data) < HEADER + length or data[1 : 1 + NONCE] != nonce:
        return None
    return data[:1].decode(errors="replace"), data[HEADER : HEADER + length].decode(errors="replace")


def _input(data: bytes) -> int:
    """Returns a file descriptor from which `data` can be read once."""
    return memory_file(data) if data else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def memory_file(data: bytes) -> int:
    """Creates a file in memory that nobody can change. Returns the file's descriptor, at position 0.

    A pipe is not used, because a pipe may hold less than two pages. The worker would then have to wait until the
    program reads.
    """
    fd = os.memfd_create("text", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _ALL_SEALS)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
