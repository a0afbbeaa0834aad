"""Start of the inside: build the jail, become its first process, serve programs.

Started by the worker as a fresh interpreter with a fixed environment, one control socket and nothing else.
This process only builds and then waits: its death takes the jail with it, and the jail's death ends it.
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
"""One for each weight; those that grow later share none with those before."""


def main(control_fd: int) -> None:
    """Build the jail, serve, and in each process forked for a program, run it."""
    task = _serve(control_fd)
    # The frames of what served are gone by now: a program that looks up its stack finds its own order only.
    if task is not None:
        task.run()


def _serve(control_fd: int) -> program.Program | session.SessionLoop | None:
    """Build what the plan says and serve on the control socket until it closes. None: nothing to run."""
    control = _socket.socket(fileno=fcntl.fcntl(control_fd, fcntl.F_DUPFD_CLOEXEC, 64))
    os.close(control_fd)
    # Programs get their descriptors as 0 to 3, so nothing of ours may ever lie there.
    while os.open(os.devnull, os.O_RDONLY) < 4:
        pass
    spec: JailSpec = wire.receive(control)[0]
    # The worker that started this process may keep to one of them.
    zygote.set_affinity(spec["cpus"])
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
    return zygote.serve(spec, control, rings)


def _ask_for_mapping(control: _socket.socket) -> None:
    """Have the worker, which stayed outside, write this process's user mapping."""
    wire.send(control, {"map": os.getpid()})
    answer = wire.receive(control)[0]
    if "failed" in answer:
        raise OSError(answer["failed"])
    syscalls.become_user(0)
