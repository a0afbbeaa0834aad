"""Shared fixtures for the tests of the judge: one server of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import redis
from support.waiting import TIMEOUT_S

from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.server.settings import ServerLimits
from rstar2.judge.service.settings import ServiceSettings
from rstar2.judge.service.start import JudgeHandle, start_service, stop_service

TOKEN = "s3cret"
MAX_QUEUED = 3
MAX_BODY_BYTES = 12 << 20


@pytest.fixture
def http(judge: JudgeHandle) -> Iterator[httpx.Client]:
    # Plain HTTP: loading the certificates for HTTPS would take longer than most tests.
    with httpx.Client(base_url=judge.url, timeout=TIMEOUT_S, trust_env=False, verify=False) as client:
        yield client


@pytest.fixture(scope="session")
def limited_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeHandle]:
    """A judge with one worker that requires TOKEN. It queues at most MAX_QUEUED programs, and the request bodies that
    it holds at a time have at most MAX_BODY_BYTES together.

    Its read timeout is long enough for a slow test.
    """
    folder = str(tmp_path_factory.mktemp("limited"))
    limits = ServerLimits(max_queued=MAX_QUEUED, max_body_bytes=MAX_BODY_BYTES, read_s=TIMEOUT_S)
    settings = ServiceSettings(folder=folder, workers=1, token=TOKEN, preload=False, limits=limits)
    process, handle = start_service(settings)
    yield handle
    stop_service(process)


@pytest.fixture(scope="session")
def running_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedRedis]:
    folder: Path = tmp_path_factory.mktemp("redis")
    embedded = EmbeddedRedis(folder, folder / "log")
    embedded.start()
    yield embedded
    embedded.stop()


@pytest.fixture
def server(running_server: EmbeddedRedis) -> EmbeddedRedis:
    """An empty queue."""
    with redis.Redis.from_url(running_server.url) as client:
        client.flushall()
    return running_server
