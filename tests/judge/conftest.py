"""One real judge for the tests of this folder: Valkey, HTTP process, two workers."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from rstar2.judge.service import JudgeHandle, running_judge


@pytest.fixture(scope="session")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeHandle]:
    with running_judge(tmp_path_factory.mktemp("judge")) as handle:
        yield handle


@pytest.fixture
def http(judge: JudgeHandle) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=judge.url, timeout=30.0, trust_env=False) as client:
        yield client
