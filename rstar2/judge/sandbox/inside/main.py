"""The first code that runs inside: builds the jail, becomes its first zygote, and in each fork runs a program.

The worker starts it as a fresh interpreter with a fixed environment, one control socket and nothing else. In
the strict tier this first process only builds and then waits outside the new PID namespace: its death takes the
jail with it, and the jail's death ends it.
"""

from __future__ import annotations

import _socket
import fcntl
import os
import sys

from rstar2.judge.sandbox.inside import namespaces, program, session, syscalls, wire, zygote
from rstar2.judge.sandbox.inside.prefault import open_rings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rstar2.judge.sandbox.protocol import JailSpec


_ZYGOTES = 4
"""One of each kind; a zygote that is started later shares nothing with the earlier ones."""


def main(control_fd: int) -> None:
    """Build the jail and serve; in each process that is forked for a program, run that."""
    forked = _serve(control_fd)
    # The zygote's frames are gone by now: a program that walks its stack finds only itself.
    if forked is not None:
        forked.run()


def _serve(control_fd: int) -> program.Program | session.CellLoop | None:
    """Build the jail and serve on the control socket until it closes. None: there is nothing to run."""
    control = _socket.socket(fileno=fcntl.fcntl(control_fd, fcntl.F_DUPFD_CLOEXEC, 64))
    os.close(control_fd)
    # Programs get their descriptors as 0 to 3, so none of ours may be there.
    while os.open(os.devnull, os.O_RDONLY) < 4:
        pass
    spec: JailSpec
    spec, fds = wire.receive(control)
    sys.path[:] = spec["sys_path"]
    rings = open_rings(_ZYGOTES)
    os.setsid()
    os.umask(0o022)
    try:
        if spec["tier"] == "strict":
            if namespaces.enter_namespaces(spec, lambda: _ask_for_mapping(control)):
                return None
            namespaces.enter_root(spec)
        zygote.prepare(spec)
    except OSError as error:
        wire.send(control, {"failed": str(error)})
        return None
    wire.send(control, {"ready": True})
    return zygote.serve(spec, control, rings, usage=fds[0] if fds else -1)


def _ask_for_mapping(control: _socket.socket) -> None:
    """Have the worker, which is still outside, write this process's user mapping."""
    wire.send(control, {"map": os.getpid()})
    answer = wire.receive(control)[0]
    if "failed" in answer:
        raise OSError(answer["failed"])
    syscalls.become_user(0)
