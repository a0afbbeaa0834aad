"""Waits for events in tests, with limits that fit the slowest machine."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMEOUT_S = 300.0


def wait_until(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Poll a condition until it holds. The intervals between polls grow with time.

    Raises:
        AssertionError: The condition does not hold in time.
    """
    started = time.monotonic()
    while not condition():
        waited = time.monotonic() - started
        assert waited < timeout_s, f"waited {timeout_s:g} s in vain"
        time.sleep(min(0.005 + waited / 20, 0.1))
