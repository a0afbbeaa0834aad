"""Sends and receives messages between the worker and the zygotes. A message is a value and a list of file descriptors.

Values are encoded with `marshal`. `marshal` is safe here because both ends use the same version of Python and of this
package, and programs have no access to the sockets that carry these messages.
"""

from __future__ import annotations

import _socket
import array
import marshal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MAX_MESSAGE = 64 * 1024
"""Maximum number of bytes of one message. Longer data, such as source code, is written to a file in memory, and the
file's descriptor is sent."""
_MAX_FDS = 16
_FD_SPACE = _socket.CMSG_SPACE(_MAX_FDS * 4)


class Closed(Exception):
    """The process at the other end has closed the socket or has died."""


def send(sock: _socket.socket, message: Any, fds: tuple[int, ...] = ()) -> None:
    """Send one message. Raises Closed if the other end of the socket is closed."""
    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    try:
        sock.sendmsg([marshal.dumps(message)], ancillary)
    except (BrokenPipeError, ConnectionResetError) as error:
        raise Closed from error


def receive(sock: _socket.socket) -> tuple[Any, list[int]]:
    """Wait for one message.

    Returns the value and the file descriptors, which are closed on exec. Raises Closed if the other end of the socket
    is closed.
    """
    try:
        data, ancillary, _, _ = sock.recvmsg(MAX_MESSAGE, _FD_SPACE, _socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError as error:
        raise Closed from error
    if not data:
        raise Closed
    fds = array.array("i")
    for _, _, block in ancillary:
        fds.frombytes(block)
    return marshal.loads(data), fds.tolist()
