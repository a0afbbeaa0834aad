"""The WebSocket that carries all programs of one event loop to the judge, and their results back.

Programs that are submitted at the same time share one message. If the connection breaks, the client connects again and
repeats the requests that have no result yet. A repeated request keeps its id, so that the judge does not run a program
a second time if its result already exists. The client waits for each result only for a limited time.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import secrets
import weakref
from functools import partial

import aiohttp
from pydantic import TypeAdapter
from pydantic_core import to_json

from rstar2.errors import Unavailable
from rstar2.judge.client import http
from rstar2.judge.client.http import JudgeError
from rstar2.judge.schema import (
    MAX_BATCH,
    MAX_MESSAGE_BYTES,
    MAX_TIMEOUT_S,
    Outcome,
    RunRequest,
    RunResult,
    StreamResponse,
)
from rstar2.retry import Backoff

MESSAGE_BYTES = 8 << 20
"""Maximum size in bytes of a message that contains more than one program."""
ENVELOPE_BYTES = 1024
"""Upper bound on the bytes that a WebSocket request takes in addition to its program."""
LONGEST_RETRY_AFTER_S = 30.0
"""The client waits at most this many seconds before it connects again, even if the judge's `Retry-After` asks for
more."""
CLOSE_S = 1.0
CANCEL_S = 30.0
"""If the judge does not answer, the client retries the cancellation of a program for this many seconds."""
HEARTBEAT_S = 30.0
"""The client sends a ping if nothing arrived for this many seconds. If nothing arrives within half this time after the
ping, the client closes the connection."""
WARN_S = 2.0
"""If an attempt to connect fails more than this many seconds after the first attempt, the client warns that no judge
answers. Because the pauses between attempts grow, this usually happens about 3 seconds after the first attempt."""
_RESPONSES = TypeAdapter(list[StreamResponse])
log = logging.getLogger(__name__)


class Call:
    """One program that has no result yet."""

    def __init__(self, run_id: str, body: bytes, result: asyncio.Future[RunResult]) -> None:
        self.run_id = run_id
        self.body = body
        self.result = result
        self.sent = False

    def answer(self, outcome: Outcome, reason: str) -> None:
        """Complete the call with a result that the client creates itself, without the judge."""
        if not self.result.done():
            self.result.set_result(RunResult(id=self.run_id, outcome=outcome, stderr=reason))


class Connection:
    """The connections of one client in one event loop.

    See `JudgeClient` for the arguments and `open_http` for the errors.
    """

    def __init__(self, url: str, token: str | None, wait_s: float) -> None:
        self.http = http.open_http(url, token)
        assert self.http.connector is not None
        weakref.finalize(self, http.close_unclosed, self.http.connector, os.getpid())
        self.url = url
        self.wait_s = wait_s
        self.loop = asyncio.get_running_loop()
        self.socket: aiohttp.ClientWebSocketResponse | None = None
        self.write_lock = asyncio.Lock()
        """A lock that keeps the messages on one WebSocket in order."""
        # Whoever knows the id of a program can get its result, so the ids must be hard to guess.
        self.name = secrets.token_hex(16)
        """Prefix of the ids of all programs that are sent over this connection."""
        self.numbers = itertools.count()
        self.calls: dict[str, Call] = {}
        """The calls that have no result yet, keyed by program id."""
        self.unsent: list[Call] = []
        self.unsent_cancels: list[str] = []
        """Ids of programs whose cancellation must still be sent on this WebSocket."""
        self.cancelled: set[str] = set()
        """Ids of programs whose cancellation the judge has not yet confirmed."""
        self.flush_is_due = False
        """Whether a call of `_flush` is already scheduled."""
        self.receiver: asyncio.Task[None] | None = None
        """The task that receives responses. The receiving task runs while there are calls without a result."""
        self.writers: set[asyncio.Task[None]] = set()
        self.judge = http.judge_service()
        """The retry service that decides whether an HTTP request is sent again. HTTP requests do not use the
        WebSocket."""
        self.backoff = Backoff(http.PAUSES.first_s, http.PAUSES.longest_s, http.PAUSES.jitter)
        self.last_problem = "no response"
        """Description of the last connection error. If a call gets no response in time, the call's result quotes this
        description."""
        self.may_warn = True
        """Whether to warn if no judge answers. False after the first answer, the first warning, or a call of
        `health`."""

    def warn_if_absent(self, since: float, wait_s: float, cause: str) -> None:
        """Log a warning, once, if nothing has answered at the URL for `WARN_S` seconds.

        Args:
            since: event-loop time of the client's first attempt to reach the judge.
            wait_s: seconds for which the client waits for the judge.
            cause: why the last attempt failed.
        """
        if self.may_warn and self.loop.time() - since >= WARN_S:
            self.may_warn = False
            log.warning(
                "no judge answers at %s yet (%s); waiting up to %g s. Start one with `rstar2 judge up --detach`.",
                self.url,
                cause,
                wait_s,
            )

    def submit(self, request: RunRequest) -> asyncio.Future[RunResult]:
        """Send a program.

        Returns a future that gets the program's result. Cancelling the future cancels the program.
        """
        run_id = f"{self.name}-{next(self.numbers)}"
        call = Call(run_id, _encode(request), self.loop.create_future())
        if not call.body:
            call.answer("invalid", "the request is nested too deeply to be written as JSON")
        elif len(call.body) > MAX_MESSAGE_BYTES - ENVELOPE_BYTES:
            call.answer(
                "invalid", f"the program and its input take more than {MAX_MESSAGE_BYTES} bytes as JSON"
            )
        else:
            self.calls[run_id] = call
            timer = self.loop.call_later(self.wait_s + _time_limit_s(request), self._give_up, call)
            call.result.add_done_callback(partial(self._call_done, call, timer))
            self.unsent.append(call)
            self._flush_soon()
        return call.result

    def _send_again(self, call: Call) -> None:
        if not call.result.done():
            self.unsent.append(call)
            self._flush_soon()

    def _flush_soon(self) -> None:
        """Schedule `_flush`, so that all calls made in one iteration of the event loop are sent together."""
        if not self.flush_is_due:
            self.flush_is_due = True
            writer = self.loop.create_task(self._flush())
            self.writers.add(writer)
            writer.add_done_callback(self._writer_ended)
        if self.receiver is None or self.receiver.done():
            self.receiver = self.loop.create_task(self._receive())
            self.receiver.add_done_callback(self._receiver_ended)

    async def _flush(self) -> None:
        """Send all unsent calls and cancellations, in messages of at most `MESSAGE_BYTES`."""
        self.flush_is_due = False
        unsent, cancels = self.unsent, self.unsent_cancels
        self.unsent, self.unsent_cancels = [], []
        if self.socket is None:
            # They are sent again when there is a connection.
            return
        socket, lock = self.socket, self.write_lock
        requests = [b'{"id":"%b","cancel":true}' % run_id.encode() for run_id in cancels]
        for call in unsent:
            if not call.result.done():
                call.sent = True
                requests.append(b'{"id":"%b","run":%b}' % (call.run_id.encode(), call.body))
        messages: list[list[bytes]] = []
        size = 0
        for request in requests:
            if not messages or size + len(request) > MESSAGE_BYTES or len(messages[-1]) == MAX_BATCH:
                messages.append([])
                size = 0
            messages[-1].append(request)
            size += len(request)
        # If the connection is broken, the receiver notices it and connects again.
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with lock:
                for message in messages:
                    await socket.send_frame(b"[%b]" % b",".join(message), aiohttp.WSMsgType.TEXT)

    def _give_up(self, call: Call) -> None:
        call.answer("lost", f"the judge at {self.url} did not answer in time: {self.last_problem}")

    def _call_done(self, call: Call, timer: asyncio.TimerHandle, _result: asyncio.Future[RunResult]) -> None:
        """Clean up after a call that has a result or was cancelled. Cancel the call's program if it may still run."""
        timer.cancel()
        if self.calls.pop(call.run_id, None) is None:
            return
        if call.sent:
            self.cancelled.add(call.run_id)
            self.loop.call_later(CANCEL_S, self._cancel_confirmed, call.run_id)
            self.unsent_cancels.append(call.run_id)
            self._flush_soon()
        else:
            self._cancel_confirmed(call.run_id)

    def _cancel_confirmed(self, run_id: str) -> None:
        """Stop waiting for a cancellation to be confirmed.

        If no response is left to receive, end the task that receives responses.
        """
        self.cancelled.discard(run_id)
        if not self.calls and not self.cancelled and self.receiver is not None:
            self.receiver.cancel()
            self.receiver = None

    async def _receive(self) -> None:
        """Receive responses until every call has its result. Connect again whenever the connection breaks."""
        # An idle connection may have been closed unnoticed. That is not a failure, so the first retry does not wait.
        self.backoff.reset(at_once=self.socket is not None)
        began = self.loop.time()
        while self.calls or self.cancelled:
            try:
                await self._receive_on_one_connection()
            # ValueError: a message that no judge can have sent.
            except (aiohttp.ClientError, Unavailable, OSError, ValueError) as error:
                self.last_problem = http.describe(error)
                if not isinstance(error, Unavailable):  # an Unavailable is an answer with an HTTP status
                    self.warn_if_absent(began, self.wait_s, self.last_problem)
                await self._close_socket()
                retry_after_s = error.retry_after_s if isinstance(error, Unavailable) else 0.0
                await asyncio.sleep(max(self.backoff.next_s(), min(retry_after_s, LONGEST_RETRY_AFTER_S)))
            except JudgeError:
                # The next call connects again.
                await self._close_socket()
                raise

    def _receiver_ended(self, receiver: asyncio.Task[None]) -> None:
        """Fail or cancel all remaining calls, because nothing receives their results any more."""
        if receiver is not self.receiver:
            return
        self.receiver = None
        self.cancelled.clear()
        error = None if receiver.cancelled() else receiver.exception()
        if error is not None:
            self._fail_calls(error)
        for call in self._take_calls():
            call.result.cancel()

    def _writer_ended(self, writer: asyncio.Task[None]) -> None:
        """If the task `writer` failed, fail all calls, because the calls' requests may never have been sent."""
        self.writers.discard(writer)
        if not writer.cancelled() and (error := writer.exception()) is not None:
            self._fail_calls(error)

    def _fail_calls(self, error: BaseException) -> None:
        """Make all calls raise this error, wrapped in a JudgeError unless the error is already a JudgeError."""
        unexpected = JudgeError(f"the connection to the judge at {self.url} failed: {error!r}")
        for call in self._take_calls():
            if not call.result.done():
                call.result.set_exception(error if isinstance(error, JudgeError) else unexpected)

    async def _receive_on_one_connection(self) -> None:
        """Receive responses until every call has its result and every cancellation is confirmed.

        Raises:
            JudgeError: the judge refuses a message or the connection.
            aiohttp.ClientError, OSError, ValueError, Unavailable: the connection failed. After a failed connection, the
                caller connects again.
        """
        if self.socket is None:
            self.socket, self.write_lock = await self._connect(), asyncio.Lock()
            self.may_warn = False
            self.unsent, self.unsent_cancels = list(self.calls.values()), list(self.cancelled)
            self._flush_soon()
        while self.calls or self.cancelled:
            message = await self.socket.receive()
            if message.type is not aiohttp.WSMsgType.TEXT:
                reason = f"{self.socket.close_code} {message.extra or message.data}"
                if self.socket.close_code == aiohttp.WSCloseCode.POLICY_VIOLATION:
                    raise JudgeError(f"the judge at {self.url} refused a message: {reason}")
                raise aiohttp.ClientConnectionError(f"the connection was closed: {reason}")
            for response in _RESPONSES.validate_json(message.data):
                self._handle_response(response)

    def _handle_response(self, response: StreamResponse) -> None:
        self.backoff.reset()
        call = self.calls.get(response.id)
        if call is None:
            self._cancel_confirmed(response.id)
        elif response.result is None:
            self.last_problem = "it cannot queue programs now"
            self.loop.call_later(max(http.PAUSES.first_s, response.retry_after_s), self._send_again, call)
        else:
            del self.calls[response.id]
            if not call.result.done():
                call.result.set_result(response.result)

    async def _connect(self) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket to the judge.

        Raises:
            JudgeError: the judge, or a proxy in front of it, refuses the connection.
            Unavailable: the judge accepts no connections now.
        """
        try:
            async with asyncio.timeout(http.CONNECT_S):
                return await self.http.ws_connect(
                    f"{self.url}/v1/runs/stream",
                    timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_S),
                    heartbeat=HEARTBEAT_S,
                    max_msg_size=0,
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in http.RETRIED_STATUSES or error.status >= 500:
                retry_after_s = http.retry_after_s(error.headers)
                raise Unavailable(f"HTTP {error.status}", retry_after_s=retry_after_s) from error
            if refused := http.access_refused(self.url, error.status, error.headers):
                raise refused from error
            if error.status >= 400:
                hint = "A proxy in front of the judge must allow WebSockets."
                message = f"the judge at {self.url} refused the connection: HTTP {error.status}"
                raise JudgeError(message, hint) from error
            raise

    async def _close_socket(self) -> None:
        for writer in self.writers:
            # A writer may wait for ever on a broken connection.
            writer.cancel()
        self.flush_is_due = False
        socket, self.socket = self.socket, None
        if socket is not None:
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with asyncio.timeout(CLOSE_S):
                    await socket.close()

    def _take_calls(self) -> list[Call]:
        """Remove all calls from `self.calls` and return the calls."""
        calls, self.calls = list(self.calls.values()), {}
        return calls

    async def close(self) -> None:
        """Cancel all calls, and close the connections."""
        for call in self._take_calls():
            call.result.cancel()
        tasks = [*self.writers, *([self.receiver] if self.receiver is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._close_socket()
        await self.http.close()


def _encode(request: RunRequest) -> bytes:
    """Returns a request as JSON. Invalid fields are kept, because the judge reports them to the user.

    Returns b"" if the request cannot be written as JSON.
    """
    fields = vars(request)
    with contextlib.suppress(ValueError):
        return to_json(fields, inf_nan_mode="constants")
    with contextlib.suppress(ValueError, RecursionError):
        return json.dumps(fields, default=repr).encode()
    return b""


def _time_limit_s(request: RunRequest) -> float:
    """Returns the program's own time limit in seconds, or 0 if the judge would reject that limit."""
    limit: object = request.timeout_s
    return float(limit) if isinstance(limit, int | float) and 0 < limit <= MAX_TIMEOUT_S else 0.0
