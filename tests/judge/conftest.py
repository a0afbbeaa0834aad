"""What the tests of the judge share."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from rstar2.judge.service import JudgeHandle


@pytest.fixture
def http(judge: JudgeHandle) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=judge.url, timeout=30.0, trust_env=False) as client:
        yield client
