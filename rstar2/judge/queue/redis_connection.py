"""Speaking with Redis over bare connections of redis-py, for what happens to every program.

redis-py's client takes a connection from a pool, guards each half of an exchange with a timer and a task of
its own, and measures; for one short script that is several times the work of sending it.

All speak RESP2, in which an answer is a list, a text, a number or None.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import hiredis
import redis.asyncio
from redis.exceptions import ResponseError

Command = Sequence[str | int | float]
"""Its name and its arguments."""
ANSWER_S = 5.0
"""Redis answers within this time, or the connection is given up."""
CONNECT_S = 2.0


class _Bare:
    """One connection, made anew when it is next used after it broke.

    Args:
        redis_url: the queue.
    """

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

    async def _send(self, commands: Sequence[Command]) -> None:
        connection = self._connection
        if not connection.is_connected:
            await connection.connect()
        await connection.send_packed_command(_packed(commands))

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.disconnect(nowait=True)


class RedisConnection(_Bare):
    """Sends commands. Use it from one task at a time."""

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Send commands together. → their answers.

        Raises:
            RedisError: no answer in time, or one that is an error; some of the commands may have been obeyed.
        """
        if not commands:
            return []
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._send(commands)
                answers = [await self._answer() for _ in commands]
        except BaseException as error:
            # An answer that comes late must not be taken for one to what is asked next.
            await self.close()
            if isinstance(error, TimeoutError):
                raise redis.TimeoutError(f"no answer in {ANSWER_S:.0f} s") from error
            raise
        return _unless_error(answers)

    async def _answer(self) -> Any:
        try:
            return await self._connection.read_response()
        except ResponseError as error:
            return error


class SyncRedisConnection:
    """The same for code without an event loop. Use it from one thread at a time.

    Args:
        client: has decoded responses; where it connects to, and for how long, is taken from it.
    """

    def __init__(self, client: redis.Redis) -> None:
        # redis-py's own types do not know what is decoded.
        pool: Any = client.connection_pool
        self._connection = pool.connection_class(**{**pool.connection_kwargs, "protocol": 2})

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """See `RedisConnection.ask`."""
        if not commands:
            return []
        connection = self._connection
        try:
            connection.send_packed_command(_packed(commands), check_health=False)
            answers = [self._answer() for _ in commands]
        except BaseException:
            # As above.
            connection.disconnect()
            raise
        return _unless_error(answers)

    def _answer(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as error:
            return error


def _packed(commands: Sequence[Command]) -> list[bytes]:
    # It is declared for commands of one word.
    pack: Any = hiredis.pack_command
    return [b"".join([pack(tuple(command)) for command in commands])]


def _unless_error(answers: list[Any]) -> list[Any]:
    for answer in answers:
        if isinstance(answer, ResponseError):
            raise answer
    return answers


class Subscription(_Bare):
    """Hears what is published on one channel.

    Args:
        redis_url: the queue.
        channel: its name.
    """

    def __init__(self, redis_url: str, channel: str) -> None:
        super().__init__(redis_url)
        self.channel = channel
        self._asked = False
        """Whether the server was asked for a sign of life, and has said nothing since."""

    async def begin(self) -> None:
        """Have Redis tell from now on what is published.

        Raises:
            RedisError: no answer in time, or one that is an error.
        """
        await self.close()
        self._asked = False
        try:
            async with asyncio.timeout(ANSWER_S):
                await self._send([("SUBSCRIBE", self.channel)])
                await self._connection.read_response()
        except TimeoutError as error:
            await self.close()
            raise redis.TimeoutError(f"no answer in {ANSWER_S:.0f} s") from error

    async def next(self) -> str:
        """Wait, without end, for what is published next.

        Raises:
            RedisError: the connection broke. What was published meanwhile is not told.
        """
        while True:
            kind, *rest = await self._connection.read_response()
            self._asked = False
            if kind == "message":
                return str(rest[1])

    async def check(self) -> None:
        """Break a connection that has died in silence. To be called again and again, `ANSWER_S` apart or less."""
        if self._asked:
            await self.close()
        elif self._connection.is_connected:
            self._asked = True
            await self._send([("PING",)])
