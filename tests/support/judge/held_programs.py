"""Programs in a sandbox that run until the test lets them end, however long either of them takes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from support.process_table import descendants
from support.waiting import TIMEOUT_S

HELD = """
import signal, time
_released = []
signal.signal(signal.SIGWINCH, lambda *_: _released.append(True))
while not _released: time.sleep(0.005)
"""
"""The beginning of such a program, or cell: it waits here."""
_SCORE = "1000"
"""What the kernel notes of every program of a sandbox, and of no other process: kill it first if memory is short."""


def programs(worker: int) -> list[int]:
    """The processes of programs and sessions below a worker."""
    found = []
    for pid in descendants(worker):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/oom_score_adj").read_text().strip() == _SCORE:
                found.append(pid)
    return found


def release_until(condition: Callable[[], object], worker: int) -> None:
    """Let every held program below a worker continue, also those that begin only now, until a condition holds.

    Raises:
        AssertionError: it does not hold in time.
    """
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, f"waited {TIMEOUT_S:g} s in vain"
        for pid in programs(worker):
            # One that is not held, or not yet, ignores it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGWINCH)
        time.sleep(0.01)
