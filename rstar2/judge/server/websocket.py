"""Many programs of one client over one connection: the WebSocket at `/v1/runs/stream`.

The client sends JSON arrays of requests, `{"id", "run"}` or `{"id", "cancel": true}`; it gets JSON arrays of
responses in any order: `{"id", "result"}` for each program, `{"id", "retry_after_s"}` where the queue is full and
nothing was queued, `{"id", "cancelled": true}` for each that was to be cancelled. When the connection ends,
programs that nobody else waits for are cancelled. Asked for again under its id, a program that has a result is not
run again.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fastapi import APIRouter, WebSocket
from pydantic import ValidationError
from redis.exceptions import RedisError
from starlette.websockets import WebSocketDisconnect

from rstar2.judge.protocol_version import HEADER, PROTOCOL, unknown_fields
from rstar2.judge.schema import MAX_BATCH, RunRequest, RunResult, StreamRequest
from rstar2.judge.server.dispatcher import Dispatcher, IdReused, NotQueued, PendingRun, QueueFull
from rstar2.judge.server.http import invalid_result, validation_message

MAX_MESSAGE_CHARS = 8 << 20
"""A message is sent before it grows longer, if it holds more than one response."""
MAX_UNREAD_CHARS = 64 << 20
"""If a client leaves more than this unread, nothing is read from it until it has read some of it."""
STORED_AT_ONCE = 4
"""Results that are fetched from Redis for one message, when the client had left too much unread to keep them here."""
RETRY_AFTER_S = 0.25
REASON_BYTES = 120
"""Of the reason a connection is closed for; the protocol takes 123."""
_POLICY_VIOLATION = 1008
"""Close code: what came breaks the rules (RFC 6455, section 7.4.1)."""


def websocket_router(dispatcher: Dispatcher) -> APIRouter:
    router = APIRouter()

    @router.websocket("/v1/runs/stream")
    async def stream(socket: WebSocket) -> None:
        await socket.accept(headers=[(HEADER.lower().encode(), str(PROTOCOL).encode())])
        connection = StreamConnection(dispatcher, socket)
        # If the writer fails, the connection ends, and the client asks again on another.
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(connection.send_responses())
            try:
                while (message := await socket.receive())["type"] == "websocket.receive":
                    await connection.may_read.wait()
                    if (fault := connection.handle_message(message.get("text") or "")) is not None:
                        # Nothing may be sent after the close frame.
                        writer.cancel()
                        await socket.close(
                            _POLICY_VIOLATION, fault.encode()[:REASON_BYTES].decode(errors="ignore")
                        )
                        return
            finally:
                writer.cancel()
                connection.release_all()

    return router


@dataclass
class _Response:
    """One response that has still to be sent."""

    id: str
    kind: Literal["result", "retry_after_s", "cancelled"]
    text: str
    """As JSON; empty for a result to be fetched from Redis, because too much is unread here already."""
    run: PendingRun | None = None
    """Released once the response is sent, because only then does the client have the result."""

    def __str__(self) -> str:
        return f'{{"id":"{self.id}","{self.kind}":{self.text}}}'


def _reused(run_id: str) -> str:
    """The result, as JSON, of a program under whose id something else was asked for."""
    return RunResult(id=run_id, outcome="invalid", stderr=str(IdReused())).model_dump_json()


class StreamConnection:
    def __init__(self, dispatcher: Dispatcher, socket: WebSocket) -> None:
        self.dispatcher = dispatcher
        self.socket = socket
        self.unknown_fields = unknown_fields(socket.headers.get(HEADER))
        """What becomes of fields of this client's messages that this version does not know."""
        self.runs: dict[str, PendingRun] = {}
        """What this client waits for."""
        self.responses: deque[_Response] = deque()
        self.sending: list[_Response] = []
        self.unread_chars = 0
        """Characters of `responses`."""
        self.has_responses = asyncio.Event()
        self.may_read = asyncio.Event()
        """Little enough is unread, or the client is gone."""
        self.may_read.set()

    def handle_message(self, text: str) -> str | None:
        """Do what one message asks for. → what is wrong with it; nothing of it was done then."""
        try:
            items = json.loads(text)
        except (ValueError, RecursionError) as error:
            return f"not JSON: {error}"
        if not isinstance(items, list):
            return "not an array of requests"
        if len(items) > MAX_BATCH:
            return f"more than {MAX_BATCH} requests in one message"
        requests = []
        for index, item in enumerate(items):
            try:
                requests.append(StreamRequest.model_validate(item, extra=self.unknown_fields))
            except ValidationError as error:
                return f"{index}.{validation_message(error)}"
        for request in requests:
            if request.cancel:
                self._cancel(request.id)
            else:
                self._submit(request.id, request.run)
        return None

    def _cancel(self, run_id: str) -> None:
        run = self.runs.pop(run_id, None)
        if run is not None:
            self.dispatcher.release(run)
        else:
            # It may have been asked for on an earlier connection, of an HTTP process that was killed.
            self.dispatcher.cancel_unless_awaited(run_id)
        self._queue(_Response(run_id, "cancelled", "true"))

    def _submit(self, run_id: str, item: object) -> None:
        same = self.runs.get(run_id)
        try:
            if same is None:
                # First, because it costs least.
                self.dispatcher.check_capacity(1)
            request = RunRequest.model_validate(item, extra=self.unknown_fields)
        except ValidationError as error:
            self._queue(_Response(run_id, "result", invalid_result(run_id, error)))
            return
        except QueueFull as error:
            self._queue(_Response(run_id, "retry_after_s", str(error.retry_after_s)))
            return
        program = PendingRun.from_request(run_id, request)
        if same is None:
            run = self.runs[run_id] = self.dispatcher.submit(program)
            run.result.add_done_callback(partial(self._queue_result, run_id, run))
        elif same.fingerprint != program.fingerprint:
            # The first program under the id goes on, and its result follows.
            self._queue(_Response(run_id, "result", _reused(run_id)))

    def _queue_result(self, run_id: str, run: PendingRun, result: asyncio.Future[str]) -> None:
        if self.runs.get(run_id) is not run:
            return
        del self.runs[run_id]
        error = result.exception()
        if isinstance(error, NotQueued):
            self.dispatcher.release(run, delivered=False)
            self._queue(_Response(run_id, "retry_after_s", str(error.retry_after_s)))
        elif error is not None:
            self._queue(_Response(run_id, "result", _reused(run_id), run))
        elif self.unread_chars > MAX_UNREAD_CHARS:
            self.dispatcher.release(run, delivered=False)
            self._queue(_Response(run_id, "result", ""))
        else:
            self._queue(_Response(run_id, "result", result.result(), run))

    def _queue(self, response: _Response) -> None:
        self.responses.append(response)
        self.unread_chars += len(response.text)
        self.has_responses.set()
        if self.unread_chars > MAX_UNREAD_CHARS:
            self.may_read.clear()

    async def send_responses(self) -> None:
        try:
            while True:
                await self.has_responses.wait()
                self.has_responses.clear()
                while self.responses:
                    await self._send_message()
        except WebSocketDisconnect:
            # The task that reads notices it, too.
            self.may_read.set()

    async def _send_message(self) -> None:
        sending = self.sending = self._next_message()
        if not sending[0].text:
            await self._fetch_results(sending)
        await self.socket.send_text(f"[{','.join(map(str, sending))}]")
        for response in sending:
            if response.run is not None:
                self.dispatcher.release(response.run)
        self.sending = []
        if self.unread_chars <= MAX_UNREAD_CHARS:
            self.may_read.set()

    def _next_message(self) -> list[_Response]:
        """What goes into the next message: responses that are here, or a few to be fetched."""
        message = [self.responses.popleft()]
        size = len(message[0].text)
        while self.responses:
            more = len(self.responses[0].text)
            full = size + more > MAX_MESSAGE_CHARS or (not more and len(message) == STORED_AT_ONCE)
            if full or bool(more) != bool(size):
                break
            message.append(self.responses.popleft())
            size += more
        self.unread_chars -= size
        return message

    async def _fetch_results(self, responses: list[_Response]) -> None:
        """Fill in results that were left in Redis; the client asks again for those that cannot be fetched now."""
        try:
            results = await self.dispatcher.stored_results([response.id for response in responses])
        except RedisError:
            results = {}
        for response in responses:
            if (text := results.get(response.id)) is None:
                response.kind, text = "retry_after_s", str(RETRY_AFTER_S)
            response.text = text

    def release_all(self) -> None:
        """The client is gone."""
        for run in self.runs.values():
            self.dispatcher.release(run, delivered=False)
        self.runs.clear()
        for response in (*self.sending, *self.responses):
            if response.run is not None:
                self.dispatcher.release(response.run, delivered=False)
