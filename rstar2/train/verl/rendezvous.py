"""Has VERL's workers find each other at a port that the kernel gives to nothing else; works by being imported.

VERL 0.9.1 asks for any free port and gives it back; a worker listens there seconds later. The kernel gives such ports
to connections too, so on a busy machine now and then one was taken, and the training failed at its start. VERL's worker
groups also take a range of ports, which its trainers do not set. The range is that of the trainer's machine, though
the first worker's node uses it.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

from verl.single_controller.ray import RayWorkerGroup

from rstar2.processes import unassigned_ports


def _with_ports(original: Callable[..., None]) -> Callable[..., None]:
    """Stands in for `RayWorkerGroup.__init__`: the first free port from a random one on."""

    @functools.wraps(original)
    def init(group: RayWorkerGroup, *args: Any, **kwargs: Any) -> None:
        if ports := unassigned_ports():
            # Not from the end: VERL's search ends there.
            first = random.SystemRandom().choice(ports[: len(ports) // 2])
            kwargs.setdefault("master_port_range", [first, ports.stop])
        original(group, *args, **kwargs)

    return init


RayWorkerGroup.__init__ = _with_ports(RayWorkerGroup.__init__)
