"""A judge that cannot start reports the cause at once and in one line, such as a full disk or a wrong password."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis
from support.small_disk import small_disk

from rstar2.errors import RStarError, UserError
from rstar2.judge.queue.embedded_redis import EmbeddedRedis
from rstar2.judge.service.settings import ServiceSettings
from rstar2.judge.service.start import start_service, stop_service

pytestmark = pytest.mark.slow
DISK = 1 << 20


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[EmbeddedRedis]:
    """A Redis server that the user runs."""
    server = EmbeddedRedis(tmp_path / "redis", tmp_path / "redis.log")
    server.start()
    yield server
    server.stop()


def _refusal(folder: Path, redis_url: str | None = None) -> RStarError:
    with pytest.raises(RStarError) as error:
        start_service(ServiceSettings(folder=str(folder), workers=1, redis_url=redis_url, preload=False))
    return error.value


def test_on_a_full_disk_the_reason_is_named_whatever_part_meets_it_first(tmp_path: Path) -> None:
    """The less disk space is left, the earlier the start fails: at the lock, the logs, the queue or the worker."""
    messages = []
    for free_kb in range(0, 40, 4):
        with small_disk(tmp_path / f"disk{free_kb}", DISK) as disk:
            (disk / "fill").write_bytes(bytes(DISK - (free_kb << 10)))
            settings = ServiceSettings(folder=str(disk / "judge"), workers=1, preload=False)
            try:
                process, _ = start_service(settings)
            except RStarError as error:
                messages.append(str(error))
            else:
                stop_service(process)
                break
    assert len(messages) >= 3
    for message in messages:
        assert re.search("no space left", message, re.IGNORECASE), message
        assert "did not answer within" not in message


def test_a_queue_that_stores_nothing_ends_the_start_instead_of_letting_workers_try_on(
    tmp_path: Path, queue: EmbeddedRedis
) -> None:
    with redis.Redis.from_url(queue.url) as client:
        client.config_set("maxmemory", 1)
    error = _refusal(tmp_path / "judge", queue.url)
    assert "cannot store anything: " in error.message
    assert "maxmemory" in error.message


def test_a_wrong_password_is_not_taken_for_a_server_that_does_not_answer(
    tmp_path: Path, queue: EmbeddedRedis
) -> None:
    error = _refusal(tmp_path / "judge", queue.url.replace(queue.password, quote("secr@t", safe="")))
    assert isinstance(error, UserError)
    assert f"the Redis server at redis://127.0.0.1:{queue.port}/0 refuses this judge" in error.message
    assert "secr" not in str(error)


def test_a_server_that_wants_a_password_is_told_as_that(tmp_path: Path, queue: EmbeddedRedis) -> None:
    error = _refusal(tmp_path / "judge", f"redis://127.0.0.1:{queue.port}/0")
    assert isinstance(error, UserError)
    assert error.message.endswith(
        f"at redis://127.0.0.1:{queue.port}/0 refuses this judge: it requires a password"
    )
    assert "--redis redis://:PASSWORD@HOST:PORT" in error.hint


@pytest.mark.parametrize(
    "url",
    [
        "redis://:se@cr/et@127.0.0.1:6379/0",
        "redis://:se/cret@127.0.0.1:6379",
        "redis://:se#cret@127.0.0.1:6379",
        "redis://:se?cret@127.0.0.1:6379",
        "redis://:[secret@127.0.0.1:6379",
        "redis://:secret",
        "rediss://user:secret/@h",
        "unix://:se/cret@/tmp/socket",
        "http://:secret@127.0.0.1:6379",
    ],
)
def test_no_part_of_a_password_that_is_not_percent_encoded_is_shown(url: str, tmp_path: Path) -> None:
    error = _refusal(tmp_path / "judge", url)
    assert isinstance(error, UserError)
    assert "%40" in error.hint
    assert not re.search("secret|cret|cr/et|se@|se/|se#", str(error))
