"""Sandboxed programs that run until the test releases them."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from support.process_table import descendants
from support.waiting import TIMEOUT_S

WAIT_FOR_RELEASE = """
import signal, time
_released = []
signal.signal(signal.SIGWINCH, lambda *_: _released.append(True))
while not _released: time.sleep(0.005)
"""
"""The first lines of a program or cell that waits. It waits in these lines."""
_SCORE = "1000"
"""The oom_score_adj of sandboxed programs, and of no other process. The kernel kills them first if memory is short."""


def programs(worker: int) -> list[int]:
    """Return the processes of programs and sessions that descend from a worker."""
    pids = []
    for pid in descendants(worker):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == _SCORE:
                pids.append(pid)
    return pids


def release_until(condition: Callable[[], object], worker: int) -> None:
    """Release all waiting programs of a worker, including those that start later, until a condition holds.

    Raises:
        AssertionError: The condition does not hold in time.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {TIMEOUT_S:g} s in vain"
        for pid in programs(worker):
            # A program that does not wait, or does not wait yet, ignores the signal.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGWINCH)
        time.sleep(0.01)
