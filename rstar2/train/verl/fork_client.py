"""Runs `[-m MODULE | SCRIPT] ARGUMENTS…` in a fork of the fork server, or in a fresh interpreter where there is none.

It takes the place of the Python executable, for the trainer and for each of Ray's workers, and stands for the
forked process while that lives: passes signals on to it and ends with its exit code. It is started by path, as
`python -I -S fork_client.py …`, and imports next to nothing, because its start is what is to be saved.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from types import FrameType

SOCKET_VARIABLE = "RSTAR2_FORK_SERVER"
"""Environment variable with the name of the server's socket in the abstract namespace."""
PARENT_POLL_S = 1.0
"""How often the client looks whether its parent still lives."""
ANSWER_S = 300.0
"""How long the server may take to answer, its own imports included; a fresh interpreter runs the command then."""


def main() -> None:
    """Run the command that is on the command line; never returns."""
    arguments = sys.argv[1:]
    request = {"argv": arguments, "env": dict(os.environ), "cwd": os.getcwd(), "umask": _umask()}
    may_begin, begin = os.pipe()
    try:
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.settimeout(ANSWER_S)
        server.connect("\0" + os.environ[SOCKET_VARIABLE])
        body = json.dumps(request).encode()
        socket.send_fds(server, [len(body).to_bytes(8, "big")], [0, 1, 2, may_begin])
        os.close(may_begin)
        server.sendall(body)
        child = int.from_bytes(exactly(server, 8), "big")
    except (OSError, KeyError):
        # The server is an optimization: without it the command runs as it would have anyway.
        os.execv(sys.executable, [sys.executable, *arguments])
    server.settimeout(PARENT_POLL_S)

    def pass_on(number: int, frame: FrameType | None) -> None:
        try:
            os.kill(child, number)
        except ProcessLookupError:
            return

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, pass_on)
    # Only now: a signal sent in answer to the command's first output would otherwise end this process alone.
    _let_begin(begin)
    # Bounded by the child's life: the server answers when the child ends, and its own end closes the socket.
    status = _wait(server, child)
    if os.WIFSIGNALED(status):
        signal.signal(os.WTERMSIG(status), signal.SIG_DFL) if os.WTERMSIG(status) != signal.SIGKILL else None
        os.kill(os.getpid(), os.WTERMSIG(status))
    os._exit(os.waitstatus_to_exitcode(status))


def _let_begin(pipe: int) -> None:
    try:
        os.write(pipe, b"1")
    except BrokenPipeError:  # the child has ended already
        return
    finally:
        os.close(pipe)


def _wait(server: socket.socket, child: int) -> int:
    """The child's wait status; it is killed when this process's parent ends, as the child itself would notice."""
    parent = os.getppid()
    while True:
        try:
            return int.from_bytes(exactly(server, 8), "big")
        except TimeoutError:
            if os.getppid() != parent:
                os._exit(1)  # the server kills the child of a client that is gone
        except OSError:
            return int(signal.SIGKILL)


def _umask() -> int:
    current = os.umask(0o77)
    os.umask(current)
    return current


def exactly(sock: socket.socket, count: int) -> bytes:
    """So many bytes; an OSError where the other end left, or sent nothing in time."""
    received = b""
    while len(received) < count:
        part = sock.recv(count - len(received))
        if not part:
            raise ConnectionResetError("the other end closed the connection")
        received += part
    return received


if __name__ == "__main__":
    main()
