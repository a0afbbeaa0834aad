"""The client of the fork server: it runs `[-m MODULE | SCRIPT] ARGUMENTS…` in a fork of the server.

If there is no server, the client runs the command in a new interpreter.

The client is started in place of the Python executable of the trainer and of each of Ray's workers. The client forwards
signals to the forked process, and exits with the exit code of the forked process. The client is started by its path, as
`python -I -S fork_client.py …`, and imports very little, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from types import FrameType

SOCKET_VARIABLE = "RSTAR2_FORK_SERVER"
"""The environment variable that contains the name of the server's socket in the abstract namespace."""
PARENT_POLL_S = 1.0
"""Seconds between two checks whether the client's parent process is still running."""
ANSWER_S = 300.0
"""Timeout in seconds for the server's response. The waiting time includes the server's own imports. If the server is
slower, a new interpreter runs the command."""


def main() -> None:
    """Runs the command that this process got as its arguments. The function never returns."""
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
        # The server only saves time. Without it the command runs in a new interpreter.
        os.execv(sys.executable, [sys.executable, *arguments])
    server.settimeout(PARENT_POLL_S)

    def pass_on(number: int, frame: FrameType | None) -> None:
        try:
            os.kill(child, number)
        except ProcessLookupError:
            return

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, pass_on)
    # The command begins only now that signals are forwarded. A signal in response to its first output would otherwise
    # end only this process.
    _let_begin(begin)
    # This wait ends with the child, when the server responds, or with the server, whose end closes the socket.
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
    """Waits for the forked child, and returns the child's wait status.

    If the parent of this process ends, this process ends too, and the server then kills the child. Without the fork
    server, the command itself would end when the parent of this process ends.
    """
    parent = os.getppid()
    while True:
        try:
            return int.from_bytes(exactly(server, 8), "big")
        except TimeoutError:
            if os.getppid() != parent:
                os._exit(1)  # the server then kills the child
        except OSError:
            return int(signal.SIGKILL)


def _umask() -> int:
    current = os.umask(0o77)
    os.umask(current)
    return current


def exactly(sock: socket.socket, count: int) -> bytes:
    """Receives exactly `count` bytes. Raises OSError if the other end closes the connection, or sends nothing within
    the socket's timeout."""
    received = b""
    while len(received) < count:
        part = sock.recv(count - len(received))
        if not part:
            raise ConnectionResetError("the other end closed the connection")
        received += part
    return received


if __name__ == "__main__":
    main()
