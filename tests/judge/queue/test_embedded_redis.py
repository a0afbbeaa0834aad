"""The embedded Redis server."""

from __future__ import annotations

import shutil
from pathlib import Path

import redis
from support.waiting import TIMEOUT_S

from rstar2.judge.queue.embedded_redis import EmbeddedRedis


def test_it_starts_again_also_after_its_folder_was_removed(tmp_path: Path) -> None:
    server = EmbeddedRedis(tmp_path / "data", tmp_path / "log")
    process = server.start()
    try:
        shutil.rmtree(server.folder)
        process.kill()
        process.wait(TIMEOUT_S)
        server.restart()
        with redis.Redis.from_url(server.url) as client:
            assert client.ping()
        assert server.folder.stat().st_mode & 0o777 == 0o700
    finally:
        server.stop()
