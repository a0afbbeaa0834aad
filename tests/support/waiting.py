"""Waits for events in tests, with bounds that no machine is too slow for."""

from __future__ import annotations

import time
from collections.abc import Callable

TIMEOUT_S = 300.0


def wait_until(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Poll until the condition holds.

    Raises:
        AssertionError: it does not hold in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain"
        time.sleep(0.005)
