"""The WebSocket at `/v1/runs/stream`, on which one client runs many programs.

The client sends JSON arrays of requests: `{"id", "run"}` or `{"id", "cancel": true}`. The judge answers with JSON
arrays of responses, in any order:

- `{"id", "result"}`: the result of a program.
- `{"id", "retry_after_s"}`: the queue is full, and the program was not queued.
- `{"id", "cancelled": true}`: a program was cancelled.

When the connection ends, the judge cancels the connection's programs, except programs for which another client waits.
If a request is repeated under the same id, the program does not run again, and the judge sends the stored result, if
there is one.
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
"""Maximum number of characters in a message that contains more than one response."""
MAX_UNREAD_CHARS = 64 << 20
"""If a client leaves more than this many characters unread, the judge reads no requests from the client until the
client has read some responses."""
FETCHED_PER_MESSAGE = 4
"""If a client has too many unread responses, later results are left in Redis until they can be sent. One message
contains at most this many results that were left in Redis."""
RETRY_AFTER_S = 0.25
REASON_BYTES = 120
"""Maximum number of bytes of the reason in a close frame. The protocol allows 123 bytes (RFC 6455, section 5.5)."""
_POLICY_VIOLATION = 1008
"""WebSocket close code that the judge sends if a client's message is not valid. Source: RFC 6455, section 7.4.1."""


def websocket_router(dispatcher: Dispatcher) -> APIRouter:
    router = APIRouter()

    @router.websocket("/v1/runs/stream")
    async def stream(socket: WebSocket) -> None:
        await socket.accept(headers=[(HEADER.lower().encode(), str(PROTOCOL).encode())])
        connection = StreamConnection(dispatcher, socket)
        # If the writer fails, the connection ends, and the client repeats its requests on a new connection.
        async with asyncio.TaskGroup() as tasks:
            writer = tasks.create_task(connection.send_responses())
            try:
                while (message := await socket.receive())["type"] == "websocket.receive":
                    await connection.may_read.wait()
                    if (problem := connection.handle_message(message.get("text") or "")) is not None:
                        # No message may follow the close frame.
                        writer.cancel()
                        await socket.close(
                            _POLICY_VIOLATION, problem.encode()[:REASON_BYTES].decode(errors="ignore")
                        )
                        return
            finally:
                writer.cancel()
                connection.release_all()

    return router


@dataclass
class _Response:
    """One response that has not been sent yet."""

    id: str
    kind: Literal["result", "retry_after_s", "cancelled"]
    text: str
    """The value of the response as JSON, or empty if the result was left in Redis because the client had too many
    unread responses."""
    run: PendingRun | None = None
    """The run to release when the response has been sent."""

    def __str__(self) -> str:
        return f'{{"id":"{self.id}","{self.kind}":{self.text}}}'


def _id_reused_result(run_id: str) -> str:
    """Returns an `invalid` result, as JSON, for a program with the id of an earlier, different request."""
    return RunResult(id=run_id, outcome="invalid", stderr=str(IdReused())).model_dump_json()


class StreamConnection:
    """The programs and responses of one client's WebSocket."""

    def __init__(self, dispatcher: Dispatcher, socket: WebSocket) -> None:
        self.dispatcher = dispatcher
        self.socket = socket
        self.unknown_fields = unknown_fields(socket.headers.get(HEADER))
        """pydantic's `extra` setting for this client's messages."""
        self.runs: dict[str, PendingRun] = {}
        """The programs for which this client waits, keyed by id."""
        self.responses: deque[_Response] = deque()
        """Responses that have not been sent yet."""
        self.sending: list[_Response] = []
        """Responses of the message that is being sent."""
        self.unread_chars = 0
        """Total number of characters of `responses`."""
        self.has_responses = asyncio.Event()
        self.may_read = asyncio.Event()
        """This event is set while the next request may be read: few responses are unread, or the client is gone."""
        self.may_read.set()

    def handle_message(self, text: str) -> str | None:
        """Carry out all requests of one message.

        Returns None if the message is valid. If the message is not valid, none of its requests is carried out, and the
        method returns what is wrong with the message.
        """
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
            # An earlier connection, to an HTTP process that has died, may have started the program.
            self.dispatcher.cancel_unless_awaited(run_id)
        self._queue(_Response(run_id, "cancelled", "true"))

    def _submit(self, run_id: str, item: object) -> None:
        earlier_run = self.runs.get(run_id)
        try:
            if earlier_run is None:
                # This check comes first because it is the cheapest.
                self.dispatcher.check_capacity(1)
            request = RunRequest.model_validate(item, extra=self.unknown_fields)
        except ValidationError as error:
            self._queue(_Response(run_id, "result", invalid_result(run_id, error)))
            return
        except QueueFull as error:
            self._queue(_Response(run_id, "retry_after_s", str(error.retry_after_s)))
            return
        program = PendingRun.from_request(run_id, request)
        if earlier_run is None:
            run = self.runs[run_id] = self.dispatcher.submit(program)
            run.result.add_done_callback(partial(self._queue_result, run_id, run))
        elif earlier_run.fingerprint != program.fingerprint:
            # The first program under this id goes on, and its result follows later.
            self._queue(_Response(run_id, "result", _id_reused_result(run_id)))

    def _queue_result(self, run_id: str, run: PendingRun, result: asyncio.Future[str]) -> None:
        if self.runs.get(run_id) is not run:
            return
        del self.runs[run_id]
        error = result.exception()
        if isinstance(error, NotQueued):
            self.dispatcher.release(run, delivered=False)
            self._queue(_Response(run_id, "retry_after_s", str(error.retry_after_s)))
        elif error is not None:
            self._queue(_Response(run_id, "result", _id_reused_result(run_id), run))
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
            # The task that reads requests must wake up to notice the end of the connection.
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
        """Take the responses for the next message.

        The texts of these responses are either all in memory, or must all be fetched from Redis.
        """
        message = [self.responses.popleft()]
        size = len(message[0].text)
        while self.responses:
            next_size = len(self.responses[0].text)
            is_full = size + next_size > MAX_MESSAGE_CHARS or (
                not next_size and len(message) == FETCHED_PER_MESSAGE
            )
            if is_full or bool(next_size) != bool(size):
                break
            message.append(self.responses.popleft())
            size += next_size
        self.unread_chars -= size
        return message

    async def _fetch_results(self, responses: list[_Response]) -> None:
        """Fetch the results that were left in Redis.

        If a result cannot be fetched at the moment, the response for this result becomes a `retry_after_s`.
        """
        try:
            results = await self.dispatcher.stored_results([response.id for response in responses])
        except RedisError:
            results = {}
        for response in responses:
            if (text := results.get(response.id)) is None:
                response.kind, text = "retry_after_s", str(RETRY_AFTER_S)
            response.text = text

    def release_all(self) -> None:
        """Release all runs of this client, because its connection has ended."""
        for run in self.runs.values():
            self.dispatcher.release(run, delivered=False)
        self.runs.clear()
        for response in (*self.sending, *self.responses):
            if response.run is not None:
                self.dispatcher.release(response.run, delivered=False)
