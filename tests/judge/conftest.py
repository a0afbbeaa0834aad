"""What the tests of the judge share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.service.start import JudgeHandle


@pytest.fixture
def http(judge: JudgeHandle) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=judge.url, timeout=30.0, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    """A queue for all tests of a file; those that harm theirs have a fixture of their own."""
    folder: Path = tmp_path_factory.mktemp("redis")
    embedded = EmbeddedRedis(folder, folder / "log")
    embedded.start()
    yield embedded
    embedded.stop()
