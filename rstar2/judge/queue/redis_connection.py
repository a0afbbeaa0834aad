"""Connections to Redis: redis-py's clients for what is rare, bare connections for what happens to every program.

redis-py's client takes a connection from a pool, guards each half of an exchange with a timer and a task of its
own, and measures; for one short script that is several times the work of sending it. The bare ones speak RESP2,
in which a reply is a list, a text, a number or None. None of them tries anything twice: who asks knows when to
ask again.
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
"""Its name and its arguments."""
Name = TypeVar("Name")
"""What the caller names a command; its reply is found by the same name."""
REPLY_S = 5.0
"""Redis replies within this time, or the connection is given up."""
CONNECT_S = 2.0
# It is declared for commands of one word.
_pack: Any = hiredis.pack_command


def sync_client(redis_url: str, timeout_s: float = REPLY_S) -> redis.Redis:
    """A client of redis-py with decoded replies."""
    return redis.Redis.from_url(
        redis_url,
        decode_responses=True,
        socket_timeout=timeout_s,
        socket_connect_timeout=min(timeout_s, CONNECT_S),
        retry=redis.retry.Retry(NoBackoff(), 0),
    )


def execute(client: redis.Redis, command: Command) -> Any:
    """Carry out one command with a client of redis-py, whose types do not know how. → its reply."""
    untyped: Any = client
    return untyped.execute_command(*command)


def async_client(redis_url: str) -> Any:
    """The same for an event loop. Any: redis-py's own types do not know what is decoded."""
    return redis.asyncio.Redis.from_url(
        redis_url,
        decode_responses=True,
        socket_timeout=REPLY_S,
        socket_connect_timeout=CONNECT_S,
        retry=redis.asyncio.retry.Retry(NoBackoff(), 0),
    )


class _Connection:
    """One connection, made anew when it is next used after it broke."""

    def __init__(self, redis_url: str) -> None:
        # redis-py's own types do not know what is decoded.
        pool: Any = redis.asyncio.ConnectionPool.from_url(
            redis_url,
            decode_responses=True,
            protocol=2,
            # The time is taken once for a whole exchange.
            socket_timeout=None,
            socket_connect_timeout=CONNECT_S,
        )
        self._connection = pool.make_connection()

    async def _connected(self) -> Any:
        """The connection, made if there is none."""
        if not self._connection.is_connected:
            await self._connection.connect()
        return self._connection

    async def close(self) -> None:
        await self._connection.disconnect(nowait=True)


class RedisConnection(_Connection):
    """Sends commands. Use it from one task at a time."""

    async def execute(self, commands: Mapping[Name, Command]) -> dict[Name, Any]:
        """Send commands together. Returns their replies by the names of the commands.

        The reply to a command that Redis refused is a ResponseError. The other commands were carried out.

        Raises:
            RedisError: no reply in time. Some of the commands may have been carried out.
        """
        if not commands:
            return {}
        try:
            async with asyncio.timeout(REPLY_S):
                connection = await self._connected()
                await connection.send_packed_command([b"".join(map(_pack, commands.values()))])
                return {name: await self._reply(connection) for name in commands}
        except BaseException as error:
            # A reply that comes late must not be taken for one to the next command.
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
    """The same for code without an event loop. Use it from one thread at a time.

    Args:
        client: has decoded replies; where it connects to, and for how long, is taken from it.
    """

    def __init__(self, client: redis.Redis) -> None:
        # redis-py's own types do not know what is decoded.
        pool: Any = client.connection_pool
        self._connection = pool.connection_class(**{**pool.connection_kwargs, "protocol": 2})

    def execute(self, commands: Mapping[Name, Command]) -> dict[Name, Any]:
        """Send commands together. → their replies, by the names of the commands; RedisError where one fails."""
        if not commands:
            return {}
        connection = self._connection
        try:
            connection.send_packed_command([b"".join(map(_pack, commands.values()))], check_health=False)
            return {name: connection.read_response() for name in commands}
        except BaseException:
            # As above.
            connection.disconnect()
            raise


class Subscription(_Connection):
    """Receives what is published on one channel."""

    def __init__(self, redis_url: str, channel: str) -> None:
        super().__init__(redis_url)
        self.channel = channel
        self.awaits_pong = False
        """Whether the server was sent a PING, and has sent nothing since."""

    async def subscribe(self) -> None:
        """Receive what is published from now on; RedisError where that is not confirmed in time."""
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
        """Wait for the next message; `check` ends the wait where the connection has died.

        Raises:
            RedisError: the connection broke. What was published meanwhile is not received.
        """
        while True:
            kind, *rest = await self._connection.read_response()
            self.awaits_pong = False
            if kind == "message":
                return str(rest[1])

    async def check(self) -> None:
        """Close a connection on which the last PING was not answered, else send one. Call it every few seconds."""
        if self.awaits_pong:
            await self.close()
        elif self._connection.is_connected:
            self.awaits_pong = True
            await self._connection.send_packed_command([_pack(("PING",))])
