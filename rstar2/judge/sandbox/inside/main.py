"""The first code in a new jail: it builds the jail and becomes the first zygote. In a process that was forked for a
program, `main` runs that program.

The worker starts this code in a new interpreter with a fixed environment and one control socket. In the strict tier,
the process that the worker starts only builds the jail and then waits outside the new PID namespace. If the waiting
process dies, the kernel kills the jail. If the jail dies, the waiting process ends.
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
"""Number of zygotes. There is one zygote of each kind."""


def main(control_fd: int) -> None:
    """Build the jail and carry out the worker's commands.

    In each process that is forked for a program, run that program.
    """
    forked = _serve(control_fd)
    # The zygote's frames no longer exist here, so a program that walks its stack finds only its own frames.
    if forked is not None:
        forked.run()


def _serve(control_fd: int) -> program.Program | session.CellLoop | None:
    """Build the jail and carry out commands from the control socket until the socket closes.

    In a process that was forked for a program, returns the code to run. In every other process, returns None.
    """
    control = _socket.socket(fileno=fcntl.fcntl(control_fd, fcntl.F_DUPFD_CLOEXEC, 64))
    os.close(control_fd)
    # Programs get descriptors 0 to 3, so this fills these numbers.
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
    """Ask the worker, which is outside the user namespace, to write this process's user mapping."""
    wire.send(control, {"map": os.getpid()})
    answer = wire.receive(control)[0]
    if "failed" in answer:
        raise OSError(answer["failed"])
    syscalls.become_user(0)
