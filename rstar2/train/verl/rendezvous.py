"""Makes VERL's workers use a rendezvous port that the kernel does not assign to other connections.

VERL 0.9.1 picks a free port, and a worker listens on this port only some seconds later. On a busy machine, the kernel
sometimes assigned the port to another connection before the worker listened on it, and training failed immediately.
VERL's worker groups also accept a range of ports, which VERL's trainers do not set. Importing this module makes the
worker groups use a range of ports. The range is determined on the trainer's machine, but the port is used on the node
of the first worker.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

from verl.single_controller.ray import RayWorkerGroup

from rstar2.processes import unassigned_ports


def _with_ports(original: Callable[..., None]) -> Callable[..., None]:
    """Wraps `RayWorkerGroup.__init__`, so that VERL searches for a free port from a random port upwards."""

    @functools.wraps(original)
    def init(group: RayWorkerGroup, *args: Any, **kwargs: Any) -> None:
        if ports := unassigned_ports():
            # The start is in the first half of the range, because VERL searches only up to the end of the range.
            first = random.SystemRandom().choice(ports[: len(ports) // 2])
            kwargs.setdefault("master_port_range", [first, ports.stop])
        original(group, *args, **kwargs)

    return init


RayWorkerGroup.__init__ = _with_ports(RayWorkerGroup.__init__)
