"""Start of the inside: build the jail, become its first process, serve programs.

Started by the worker as a fresh interpreter with a fixed environment, one control socket and nothing else.
This process only builds and then waits: its death takes the jail with it, and the jail's death ends it.
"""

from __future__ import annotations

import _socket
import os
import sys

from rstar2.judge.sandbox.inside import jail, kernel, wire, zygote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rstar2.judge.sandbox.plan import Plan


def main(control_fd: int) -> None:
    """Build what the plan says and serve on the control socket until it closes."""
    control = _socket.socket(fileno=control_fd)
    plan: Plan = wire.receive(control)[0]
    sys.path[:] = plan["sys_path"]
    os.setsid()
    try:
        if plan["tier"] == "strict":
            if jail.enter_namespaces(plan, lambda: _ask_for_mapping(control)):
                return
            jail.enter_root(plan)
        zygote.prepare(plan)
    except OSError as error:
        wire.send(control, {"failed": str(error)})
        return
    wire.send(control, {"ready": True})
    zygote.main(plan, control)


def _ask_for_mapping(control: _socket.socket) -> None:
    """Have the worker, which stayed outside, write this process's user mapping."""
    wire.send(control, {"map": os.getpid()})
    answer = wire.receive(control)[0]
    if "failed" in answer:
        raise OSError(answer["failed"])
    kernel.become_user(0)
