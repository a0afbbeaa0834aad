"""Waits for events in tests, with bounds that no machine is too slow for."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

TIMEOUT_S = 300.0
_FIRST_ANSWERS = (
    "rstar2.engines.retry.FIRST_ANSWER_S",
    "rstar2.engines.models.FIRST_ANSWER_S",
    "rstar2.engines.vllm._MODELS_S",
    "rstar2.eval.methods.chat._MODELS_S",
    "rstar2.eval.target.FIRST_ANSWER_S",
    "rstar2.data.mixture.rewrite._CHECK_S",
)


def wait_until(condition: Callable[[], object], timeout_s: float = TIMEOUT_S) -> None:
    """Poll until the condition holds.

    Raises:
        AssertionError: it does not hold in time.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain"
        time.sleep(0.005)


def wait_long_for_first_answers(patch: pytest.MonkeyPatch) -> None:
    """Give servers that commands of this process ask for the first time as long as tests wait for events.

    The product waits for seconds, for the sake of people with a wrong URL; a test's server may be held up as long.
    """
    for name in _FIRST_ANSWERS:
        patch.setattr(name, TIMEOUT_S)
    patch.setattr("rstar2.engines.models.ask_served.__defaults__", (TIMEOUT_S,))
