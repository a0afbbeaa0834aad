"""Waiting for a program: reading its output, keeping its deadline, hearing of its end from its zygote."""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass
from typing import Any

from rstar2.judge.sandbox.enclosure import SILENCE_S, Enclosure, Lost
from rstar2.judge.sandbox.streams import Streams
from rstar2.judge.sandbox.weights import Weight
from rstar2.judge.schema import Outcome

_QUIET_S = 0.003
"""How long output may wait in its pipe. Most programs end sooner, and cost one awakening, not several."""


@dataclass
class Ending:
    """How a program ended."""

    verdict: Outcome | None
    """The limit it hit, as the worker saw it; None for none."""
    exit_code: int
    """As subprocess has it: negative for a signal."""
    cpu_s: float
    clean: bool
    """Whether all it wrote could be removed."""


def ending(report: dict[str, Any], verdict: Outcome | None) -> Ending:
    return Ending(verdict, os.waitstatus_to_exitcode(report["status"]), report["cpu_s"], report["clean"])


def wait_for_end(jail: Enclosure, weight: Weight, key: int, streams: Streams, deadline: float) -> Ending:
    """Read a program's output until its zygote reports its end; kill it at the deadline or for flooding.

    Args:
        deadline: on the monotonic clock.

    Raises:
        Lost: the zygote died or does not answer.
    """
    control = jail.control(weight)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    verdict: Outcome | None = None
    quiet = True
    while True:
        left = deadline - time.monotonic()
        if left <= 0 and verdict is not None:
            raise Lost(f"the {weight} zygote does not answer")
        if verdict is None and (left <= 0 or streams.flooded):
            verdict = "timeout" if left <= 0 else "output_limit"
            jail.tell(weight, "kill", key)
            left = SILENCE_S
            deadline = time.monotonic() + left
        events = poll.poll((min(left, _QUIET_S) if quiet else left) * 1000)
        if quiet and not events:
            quiet = False
            streams.register(poll)
        for fd, _ in events:
            if fd != control.fileno():
                streams.read(fd, poll)
            elif (report := jail.listen(weight, key)) is not None:
                streams.drain()
                return ending(report, verdict)
