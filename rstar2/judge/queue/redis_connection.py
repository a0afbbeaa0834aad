"""Connections to Redis: redis-py clients for rare commands, and bare connections for frequent commands.

For each command, a redis-py client takes a connection from a pool, starts timers and tasks, and records metrics. For a
short script, this work takes several times as much CPU time as sending the script, so frequent commands use bare
connections. Bare connections use the RESP2 protocol, in which a reply is a list, a text, a number or None. No
connection in this module retries a command, because only the caller knows whether a retry is safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, TypeVar

import hiredis
import redis.asyncio
import redis.asyncio.retry
import redis.retry
from redis.backoff import NoBackoff

Command = tuple[str | int | float, ...]
"""A Redis command: its name and its arguments."""
Name = TypeVar("Name")
"""A caller that sends several commands together chooses a name for each command. The command's reply has the same
name."""
REPLY_S = 5.0
"""Seconds to wait for a reply of Redis. If no reply arrives in this time, the connection is closed."""
CONNECT_S = 2.0
# Typed as Any because hiredis declares it only for commands of one word.
_pack: Any = hiredis.pack_command


def sync_client(redis_url: str, timeout_s: float = REPLY_S) -> redis.Redis:
    """Returns a redis-py client that decodes replies to text and never retries a command."""
    return redis.Redis.from_url(
        redis_url,
        decode_responses=True,
        socket_timeout=timeout_s,
        socket_connect_timeout=min(timeout_s, CONNECT_S),
        retry=redis.retry.Retry(NoBackoff(), 0),
    )


def execute(client: redis.Redis, command: Command) -> Any:
    """Send one command with a redis-py client and return the command's reply."""
    # Typed as Any because redis-py declares no types for `execute_command`.
    untyped: Any = client
    return untyped.execute_command(*command)


def async_client(redis_url: str) -> Any:
    """Returns an asyncio redis-py client that decodes replies to text and never retries a command.

    The return type is Any because redis-py's own types do not say that replies are decoded.
    """
    return redis.asyncio.Redis.from_url(
        redis_url,
        decode_responses=True,
        socket_timeout=REPLY_S,
        socket_connect_timeout=CONNECT_S,
        retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
    )


class _Connection:
    """An asyncio connection to Redis, without a pool.

    If the connection breaks, the next use of this object connects again.
    """

    def __init__(self, redis_url: str) -> None:
        # Typed as Any because redis-py's own types do not know that replies are decoded.
        pool: Any = redis.asyncio.ConnectionPool.from_url(
            redis_url,
            decode_responses=True,
            protocol=2,
            # `RedisConnection.execute` limits the time of a whole exchange instead.
            socket_timeout=None,
            socket_connect_timeout=CONNECT_S,
        )
        self._connection = pool.make_connection()

    async def _connected(self) -> Any:
        """Connect if necessary, and return the connection."""
        if not self._connection.is_connected:
            await self._connection.connect()
        return self._connection

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)


class RedisConnection(_Connection):
    """An asyncio connection that sends commands to Redis. Use a `RedisConnection` from only one task at a time."""

    async def execute(self, commands: Mapping[Name, Command]) -> dict[Name, Any]:
        """Send commands in one exchange. Returns a dict from each command's name to its reply.

        If Redis refuses a command, the reply to this command is a ResponseError, and Redis still carries out the
        remaining commands.

        Raises:
            RedisError: the connection failed, or no reply came in time. Redis may have carried out some of the
            commands.
        """
        if not commands:
            return {}
        try:
            async with asyncio.timeout(REPLY_S):
                connection = await self._connected()
                await connection.send_packed_command([b"".join(map(_pack, commands.values()))])
                return {name: await self._reply(connection) for name in commands}
        except BaseException as error:
            # The connection is closed because a late reply must not be read as the reply to the next command.
            await self.close()
            if isinstance(error, TimeoutError):
                raise redis.TimeoutError(f"no reply in {REPLY_S:.0f} s") from error
            raise

    async def _reply(self, connection: Any) -> Any:
        try:
            return await connection.read_response()
        except redis.ResponseError as error:
            return error


class SyncRedisConnection:
    """A connection to Redis for code without an event loop. Use a connection from only one thread at a time.

    Args:
        client: a redis-py client that decodes replies. The connection uses the client's address and timeouts.
    """

    def __init__(self, client: redis.Redis) -> None:
        # Typed as Any because redis-py's own types do not know that replies are decoded.
        pool: Any = client.connection_pool
        self._connection = pool.connection_class(**{**pool.connection_kwargs, "protocol": 2})

    def execute(self, commands: Mapping[Name, Command]) -> dict[Name, Any]:
        """Send commands in one exchange. Returns a dict from each command's name to its reply.

        Raises RedisError if the connection or any of the commands fails.
        """
        if not commands:
            return {}
        connection = self._connection
        try:
            connection.send_packed_command([b"".join(map(_pack, commands.values()))], check_health=False)
            return {name: connection.read_response() for name in commands}
        except BaseException:
            # See `RedisConnection.execute`.
            connection.disconnect()
            raise


class Subscription(_Connection):
    """Receives the messages that are published on one channel."""

    def __init__(self, redis_url: str, channel: str) -> None:
        super().__init__(redis_url)
        self.channel = channel
        self.awaits_pong = False
        """Whether nothing was received since the last PING was sent."""

    async def subscribe(self) -> None:
        """Subscribe to the channel. Raises RedisError if Redis does not confirm the subscription in time."""
        await self.close()
        self.awaits_pong = False
        try:
            async with asyncio.timeout(REPLY_S):
                connection = await self._connected()
                await connection.send_packed_command([_pack(("SUBSCRIBE", self.channel))])
                await connection.read_response()
        except TimeoutError as error:
            await self.close()
            raise redis.TimeoutError(f"no reply in {REPLY_S:.0f} s") from error

    async def next(self) -> str:
        """Wait for the next message and return it. If the connection has died, a call of `check` ends the wait.

        Raises:
            RedisError: the connection broke. Messages that are published before the next `subscribe` are lost.
        """
        while True:
            kind, *rest = await self._connection.read_response()
            self.awaits_pong = False
            if kind == "message":
                return str(rest[1])

    async def check(self) -> None:
        """Send a PING, or close the connection if the last PING was not answered. Call `check` every few seconds."""
        if self.awaits_pong:
            await self.close()
        elif self._connection.is_connected:
            self.awaits_pong = True
            await self._connection.send_packed_command([_pack(("PING",))])
