"""Bare connections to a real Redis server: each reply belongs to its command, and every wait has a limit."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from support.waiting import TIMEOUT_S, wait_until

from rstar2.judge.queue import redis_connection
from rstar2.judge.queue.embedded_redis import SOCKET_PATH_BYTES, EmbeddedRedis
from rstar2.judge.queue.redis_connection import Command, RedisConnection, Subscription, SyncRedisConnection

ECHO = "return ARGV[1]"
CHANNEL = "news"


@contextmanager
def frozen(server: EmbeddedRedis) -> Iterator[None]:
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


def numbered(*commands: Command) -> dict[int, Command]:
    """Returns the commands, keyed by their position."""
    return dict(enumerate(commands))


def echo(text: str) -> tuple[str | int, ...]:
    return ("EVAL", ECHO, 0, text)


async def test_an_error_is_the_reply_to_its_command_alone(server: EmbeddedRedis) -> None:
    commands = RedisConnection(server.local_url)
    assert await commands.execute(numbered(echo("a"), echo("b"))) == {0: "a", 1: "b"}
    replies = await commands.execute(numbered(echo("c"), ("EVAL", "no lua", 0), echo("d")))
    assert isinstance(replies.pop(1), redis.ResponseError)
    assert replies == {0: "c", 2: "d"}
    assert await commands.execute(numbered(echo("e"))) == {0: "e"}
    assert await commands.execute({}) == {}
    await commands.close()


async def test_an_answer_that_comes_late_is_none_to_what_is_asked_next(
    server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_connection, "REPLY_S", TIMEOUT_S)
    commands = RedisConnection(server.url)
    assert await commands.execute(numbered(echo("before"))) == {0: "before"}
    with monkeypatch.context() as patch, frozen(server):
        patch.setattr(redis_connection, "REPLY_S", 1.0)
        with pytest.raises(redis.TimeoutError):
            await commands.execute(numbered(echo("late")))
    assert await commands.execute(numbered(echo("after"))) == {0: "after"}
    task = asyncio.create_task(commands.execute(numbered(("BLPOP", "nothing", 0))))
    with redis.Redis.from_url(server.url) as client:
        await asyncio.to_thread(wait_until, lambda: client.info("clients")["blocked_clients"])
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await commands.execute(numbered(echo("again"))) == {0: "again"}
    await commands.close()


def test_the_same_without_an_event_loop(server: EmbeddedRedis) -> None:
    url = server.local_url
    with redis.Redis.from_url(url, decode_responses=True, socket_timeout=TIMEOUT_S) as client:
        commands = SyncRedisConnection(client)
        assert commands.execute(numbered(echo("a"), echo("b"))) == {0: "a", 1: "b"}
        with pytest.raises(redis.ResponseError):
            commands.execute(numbered(("EVAL", "no lua", 0), echo("c")))
        assert commands.execute(numbered(echo("before"))) == {0: "before"}
        # This short timeout is for the current connection only, not for the next one.
        commands._connection._sock.settimeout(1.0)
        with frozen(server), pytest.raises(redis.TimeoutError):
            commands.execute(numbered(echo("late")))
        assert commands.execute(numbered(echo("after"))) == {0: "after"}


async def test_subscription_come_in_order_and_a_broken_connection_is_told(server: EmbeddedRedis) -> None:
    subscription = Subscription(server.local_url, CHANNEL)
    with redis.Redis.from_url(server.url) as client:
        for _ in range(2):
            await subscription.subscribe()
            await subscription.check()
            for text in ("1\n2", "3"):
                client.publish(CHANNEL, text)
            assert [await subscription.next(), await subscription.next()] == ["1\n2", "3"]
            waits = asyncio.create_task(subscription.next())
            await asyncio.sleep(0)
            client.client_kill_filter(_type="pubsub")
            with pytest.raises(redis.RedisError):
                await asyncio.wait_for(waits, TIMEOUT_S)
    await subscription.close()


async def test_a_connection_that_died_in_silence_is_found_out(server: EmbeddedRedis) -> None:
    subscription = Subscription(server.url, CHANNEL)
    await subscription.subscribe()
    waits = asyncio.create_task(subscription.next())
    for _ in range(3):
        await subscription.check()
        await asyncio.to_thread(wait_until, lambda: not subscription.awaits_pong)
    assert not waits.done()
    with frozen(server):
        await subscription.check()
        await asyncio.sleep(0)
        assert not waits.done()
        await subscription.check()
        with pytest.raises(redis.RedisError):
            await asyncio.wait_for(waits, TIMEOUT_S)
    await subscription.close()


def test_a_folder_that_holds_no_local_socket_is_reached_by_the_network(tmp_path: Path) -> None:
    embedded = EmbeddedRedis(tmp_path, tmp_path / "log")
    # The server cannot remove this folder, so its bind to the socket fails.
    (tmp_path / "socket").mkdir()
    embedded.start()
    try:
        assert embedded.local_url == embedded.url
    finally:
        embedded.stop()


def test_a_folder_too_deep_for_a_local_socket_is_reached_by_the_network(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 30)
    assert len(str(folder)) > SOCKET_PATH_BYTES
    embedded = EmbeddedRedis(folder, tmp_path / "log")
    embedded.start()
    try:
        assert embedded.local_url == embedded.url
        with redis.Redis.from_url(embedded.local_url) as client:
            assert client.ping()
    finally:
        embedded.stop()
