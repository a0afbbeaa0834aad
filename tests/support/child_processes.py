"""The processes that another one started, and their priority."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def children(parent: int) -> list[int]:
    """The processes that a process started, and that have not ended."""
    found: list[int] = []
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # of a thread that ended meanwhile
            found += map(int, path.read_text().split())
    return found


def lower_priority(process: int, priority: int) -> None:
    """Of a process and all that it started or will start."""
    os.setpriority(os.PRIO_PROCESS, process, priority)
    for child in children(process):
        lower_priority(child, priority)
