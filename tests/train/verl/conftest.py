"""Shared fixtures for the tests of the code that runs inside VERL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.train.verl_queue import start_queue


@pytest.fixture(scope="module")
def verls_queue() -> Iterator[Any]:
    """The queue between VERL's agent loops and its trainer."""
    import ray

    tq = start_queue()
    yield tq
    tq.close()
    ray.shutdown()
