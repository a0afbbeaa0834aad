"""How a client's programs travel: all of one event loop over one connection, again where it breaks, each wait
with an end.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import logging
import os
import re
import secrets
import weakref
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

import aiohttp
import yarl
from pydantic import TypeAdapter

from rstar2.errors import Failure
from rstar2.judge.client.call import Call
from rstar2.judge.schema import (
    MAX_BATCH,
    MAX_MESSAGE_BYTES,
    RunResult,
    StreamResponse,
)

TOGETHER_BYTES = 8 << 20
"""A message is sent before it grows longer, if it holds more than one program."""
ORDER_BYTES = 1024
"""More than an order takes besides its program."""
PLAIN_BYTES = 1 << 20
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 5.0
LONGEST_SENT_AWAY_S = 30.0
"""A judge that takes no connections is asked again no later, whatever its `Retry-After` says."""
CONNECTIONS = 512
"""At the same time, those for programs and for cells together; a cell takes one for as long as it runs."""
CONNECT_S = 10.0
HANG_UP_S = 1.0
DROP_S = 30.0
"""So long it is tried to tell an absent judge that a program is not wanted any more."""
KEEP_S = 30.0
"""How long an idle connection is kept; less than the judge keeps it, which could close it under a request."""
HEARTBEAT_S = 30.0
"""A connection on which nothing came for so long is tried with a ping, and given up if half as long later still
nothing has come."""
_ANSWERS = TypeAdapter(list[StreamResponse])
log = logging.getLogger(__name__)


class JudgeError(Failure):
    """The judge cannot be used: wrong token, or nothing like a judge at the URL."""


class Connection:
    """What a client holds for one event loop.

    Args:
        url, token, patience_s: as of the client.

    Raises:
        JudgeError: it is no URL of a judge.
    """

    def __init__(self, url: str, token: str | None, patience_s: float) -> None:
        _check_url(url, token)
        # httpx takes four times the processor time for a request, and knows no WebSockets.
        self.http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=KEEP_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        assert self.http.connector is not None
        weakref.finalize(self, _let_go, self.http.connector, os.getpid())
        self.url = url
        self.patience_s = patience_s
        self.loop = asyncio.get_running_loop()
        self.socket: aiohttp.ClientWebSocketResponse | None = None
        self.writing = asyncio.Lock()
        """Keeps the messages of one connection in order."""
        # The judge knows a program by its id when it is asked again; nobody else must guess it.
        self.name = secrets.token_hex(16)
        self.numbers = itertools.count()
        self.calls: dict[str, Call] = {}
        """Those without an answer."""
        self.unsent: list[Call] = []
        self.unsaid: list[str] = []
        """Ids of programs to be taken back on this connection."""
        self.dropped: set[str] = set()
        """Those that the judge has still to confirm."""
        self.soon: asyncio.Handle | None = None
        """Sends what is unsent at the end of this turn of the loop."""
        self.talk: asyncio.Task[None] | None = None
        """Runs while there are calls."""
        self.writes: set[asyncio.Task[None]] = set()
        self.delay_s = FIRST_RETRY_S
        self.trouble = "it is silent"

    def add(self, call: Call) -> None:
        """Send a program, and see to it that it is answered."""
        call.run_id = f"{self.name}-{next(self.numbers)}"
        if not call.body:
            call.answer("invalid", "nested too deeply to be written as JSON")
            return
        if len(call.body) > MAX_MESSAGE_BYTES - ORDER_BYTES:
            call.answer(
                "invalid", f"the program and its input take more than {MAX_MESSAGE_BYTES} bytes as JSON"
            )
            return
        self.calls[call.run_id] = call
        call.timer = self.loop.call_later(self.patience_s + call.limit_s, self._overdue, call)
        call.result.add_done_callback(partial(self._over, call))
        self._send(call)

    def _send(self, call: Call) -> None:
        if call.result.done():
            return
        self.unsent.append(call)
        self._flush_soon()
        self._talk_on()

    def _talk_on(self) -> None:
        if self.talk is None or self.talk.done():
            self.talk = self.loop.create_task(self._talk())
            self.talk.add_done_callback(self._ended)

    def _overdue(self, call: Call) -> None:
        call.answer("lost", f"the judge at {self.url} did not answer in time: {self.trouble}")

    def _over(self, call: Call, _result: asyncio.Future[RunResult]) -> None:
        """A call has its result, from the judge or not."""
        if call.timer is not None:
            call.timer.cancel()
        if self.calls.pop(call.run_id, None) is None:
            return
        if call.sent:
            self.dropped.add(call.run_id)
            self.loop.call_later(DROP_S, self._confirmed, call.run_id)
            self.unsaid.append(call.run_id)
            self._flush_soon()
            self._talk_on()
        else:
            self._confirmed(call.run_id)

    def _confirmed(self, run_id: str) -> None:
        """A program is taken back, as far as we can see to it. End the talk where there is nothing more to hear."""
        self.dropped.discard(run_id)
        if not self.calls and not self.dropped and self.talk is not None:
            self.talk.cancel()
            self.talk = None

    def _flush_soon(self) -> None:
        """What is asked in one turn of the loop goes together."""
        if self.soon is None:
            self.soon = self.loop.call_soon(self._flush)

    def _flush(self) -> None:
        self.soon = None
        if self.socket is None:
            # All of it is said once there is a connection.
            self.unsent, self.unsaid = [], []
        elif messages := self._messages():
            write = self.loop.create_task(self._write(self.socket, self.writing, messages))
            self.writes.add(write)
            write.add_done_callback(self.writes.discard)

    def _messages(self) -> list[bytes]:
        """What there is to say, in messages of a good length."""
        orders = [b'{"id":"%b","cancel":true}' % run_id.encode() for run_id in self.unsaid]
        for call in self.unsent:
            if not call.result.done():
                call.sent = True
                orders.append(b'{"id":"%b","run":%b}' % (call.run_id.encode(), call.body))
        self.unsent, self.unsaid = [], []
        messages = []
        first = size = 0
        for place, order in enumerate(orders):
            if place > first and (size + len(order) > TOGETHER_BYTES or place - first == MAX_BATCH):
                messages.append(b"[%b]" % b",".join(orders[first:place]))
                size, first = 0, place
            size += len(order)
        if orders:
            messages.append(b"[%b]" % b",".join(orders[first:]))
        return messages

    async def _write(
        self, socket: aiohttp.ClientWebSocketResponse, turn: asyncio.Lock, messages: list[bytes]
    ) -> None:
        # Whoever reads hears of a broken connection, too.
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with turn:
                for message in messages:
                    await socket.send_frame(message, aiohttp.WSMsgType.TEXT)

    async def _talk(self) -> None:
        """Speak with the judge until every call has its answer, over new connections where one breaks."""
        # A connection that was idle may be closed without our knowledge, which is no sign of trouble.
        self.delay_s = FIRST_RETRY_S if self.socket is None else 0.0
        while self.calls or self.dropped:
            try:
                await self._exchange()
            # ValueError: what came was no answer of a judge.
            except (aiohttp.ClientError, _Busy, OSError, ValueError) as error:
                self.trouble = repr(error)
                await self._hang_up()
                asked_s = error.retry_after_s if isinstance(error, _Busy) else 0.0
                await asyncio.sleep(max(self.delay_s, min(asked_s, LONGEST_SENT_AWAY_S)))
                self.delay_s = min(max(self.delay_s * 2, FIRST_RETRY_S), LONGEST_RETRY_S)
            except JudgeError:
                # A later call is to try anew.
                await self._hang_up()
                raise

    def _ended(self, talk: asyncio.Task[None]) -> None:
        """Leave no call without an answer, however the talk ended."""
        if talk is not self.talk:
            return
        self.talk = None
        self.dropped.clear()
        error = None if talk.cancelled() else talk.exception()
        for call in self._forget():
            if error is None:
                call.result.cancel()
            else:
                call.fail(error if isinstance(error, JudgeError) else self._broken(error))

    async def _exchange(self) -> None:
        """Hear answers until there are none to come.

        Raises:
            JudgeError: the judge refuses what was sent, or the connection.
            aiohttp.ClientError, OSError, ValueError, _Busy: it is to be tried again.
        """
        if self.socket is None:
            self.socket, self.writing = await self._connect(), asyncio.Lock()
            self.unsent, self.unsaid = list(self.calls.values()), list(self.dropped)
            self._flush()
        while self.calls or self.dropped:
            message = await self.socket.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                said = f"{self.socket.close_code} {message.extra or message.data}"
                if self.socket.close_code == aiohttp.WSCloseCode.POLICY_VIOLATION:
                    raise JudgeError(f"the judge at {self.url} refused what it was sent: {said}")
                raise aiohttp.ClientConnectionError(f"the connection was closed: {said}")
            for answer in _ANSWERS.validate_json(message.data):
                self._hear(answer)

    def _hear(self, answer: StreamResponse) -> None:
        self.delay_s = FIRST_RETRY_S
        call = self.calls.get(answer.id)
        if call is None:
            self._confirmed(answer.id)
        elif answer.result is None:
            self.trouble = "its queue is full"
            self.loop.call_later(max(FIRST_RETRY_S, answer.retry_after_s), self._send, call)
        else:
            del self.calls[answer.id]
            call.give(answer.result)

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        """A new connection.

        Raises:
            JudgeError: the judge refuses it.
        """
        try:
            async with asyncio.timeout(CONNECT_S):
                return await self.http.ws_connect(
                    f"{self.url}/v1/runs/stream",
                    timeout=aiohttp.ClientWSTimeout(ws_close=HANG_UP_S),
                    heartbeat=HEARTBEAT_S,
                    max_msg_size=0,
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 429 or error.status >= 500:
                raise _Busy(error.status, retry_after_s(error.headers)) from error
            if error.status == 401:
                hint = "see `rstar2 judge status` for the right one"
                raise JudgeError(f"the judge at {self.url} wants another token", hint) from error
            if error.status >= 400:
                hint = "whatever passes its requests on must let WebSockets pass"
                raise JudgeError(f"the judge at {self.url} refused: HTTP {error.status}", hint) from error
            raise

    async def _hang_up(self) -> None:
        for write in self.writes:
            # It may be waiting for a connection that takes nothing any more.
            write.cancel()
        socket, self.socket = self.socket, None
        if socket is not None:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with asyncio.timeout(HANG_UP_S):
                    await socket.close()

    def _forget(self) -> list[Call]:
        """All calls, which are none of ours afterwards."""
        calls, self.calls = list(self.calls.values()), {}
        return calls

    def _broken(self, error: BaseException) -> JudgeError:
        return JudgeError(f"asking the judge at {self.url} failed: {error!r}")

    async def close(self) -> None:
        """Cancel what waits or is on its way, and close the connections."""
        for call in self._forget():
            call.result.cancel()
        tasks = [*self.writes, *([self.talk] if self.talk is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self.http.close()

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """One request, to be entered with `async with`; a redirection is an answer like any other."""
        # aiohttp warns of long bodies that are no streams; one is made anew for every try.
        data = io.BytesIO(body) if body and len(body) > PLAIN_BYTES else body
        return self.http.request(method, self.url + path, data=data, headers=headers, allow_redirects=False)


class _Busy(Exception):
    """The judge answers that it cannot, now."""

    def __init__(self, status: int, retry_after_s: float) -> None:
        super().__init__(f"HTTP {status}")
        self.retry_after_s = retry_after_s


@dataclass(frozen=True)
class Answer:
    """An answer of the judge, whole."""

    status: int
    text: str
    retry_after_s: float


def _check_url(url: str, token: str | None) -> None:
    """Refuse at once what no patience would mend.

    Raises:
        JudgeError: it is no URL, or names a user although there is a token.
    """
    try:
        parts = yarl.URL(url)
        fit = parts.scheme in ("http", "https") and bool((parts.host or "").strip(".")) and parts.port != 0
        fit = fit and not re.search(r"[\s\x00]", url) and not (token and parts.user)
    except ValueError:
        fit = False
    if not fit:
        raise JudgeError(f"{url!r} is not the URL of a judge", "give one such as http://127.0.0.1:8088")


def _let_go(connector: aiohttp.BaseConnector, pid: int) -> None:
    """Close what a client that was never closed leaves, which aiohttp would complain of."""
    if os.getpid() != pid:
        # After a fork: closing would take the connections out of the parent's own event loop.
        return
    with contextlib.suppress(Exception):
        # Its event loop may be over; what need not be waited for is done before the first wait.
        closing = connector.close().__await__()
        next(closing, None)


def retry_after_s(headers: Mapping[str, str] | None) -> float:
    """The seconds that `Retry-After` asks to wait; 0 where it names none, or a date."""
    text = (headers or {}).get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else 0.0


def headers_for(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key, "Content-Type": "application/json"}
