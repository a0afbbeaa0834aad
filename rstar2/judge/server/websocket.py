"""One client's programs and their results over one connection: the WebSocket at `/v1/runs/stream`.

The client sends JSON arrays of orders, `{"id", "run"}` or `{"id", "cancel": true}`; it gets JSON arrays of
answers in any order: `{"id", "result"}` for each program, `{"id", "retry_after_s"}` where the queue is full and
nothing was queued, `{"id", "cancelled": true}` for each that was to be taken back. When the connection ends,
programs that nobody else waits for are taken back. Asked again under its id, a program that has a result is not
run again.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from fastapi import APIRouter, WebSocket
from pydantic import ValidationError
from redis.exceptions import RedisError
from starlette.websockets import WebSocketDisconnect

from rstar2.judge.schema import MAX_BATCH, RunRequest, RunResult, StreamRequest
from rstar2.judge.server.dispatcher import Dispatcher, PendingRun, QueueFull
from rstar2.judge.server.http import why
from rstar2.judge.server.runs import pending_run_of

TOGETHER_CHARS = 8 << 20
"""A message is sent before it grows longer, if it holds more than one answer."""
BACKLOG_CHARS = 64 << 20
"""A client that leaves so much unread is not listened to until it has read some of it."""
FETCHED_TOGETHER = 4
"""Results that are fetched from Redis for one message, of those that a client left unread for too long."""
FETCH_AGAIN_S = 0.25
REASON_BYTES = 120
"""Of the reason a connection is closed for; the protocol takes 123."""
_WRONG = 1008
"""Close code: what came breaks the rules (RFC 6455, section 7.4.1)."""


def websocket_router(dispatcher: Dispatcher) -> APIRouter:
    """The endpoint."""
    router = APIRouter()

    @router.websocket("/v1/runs/stream")
    async def stream(socket: WebSocket) -> None:
        if "origin" in socket.headers:
            # A page in somebody's browser: it may be from anywhere, and browsers let it through to loopback.
            await socket.close()
            return
        await socket.accept()
        talk = StreamConnection(dispatcher, socket)
        writer = asyncio.create_task(talk.write())
        try:
            while (message := await socket.receive())["type"] == "websocket.receive":
                await talk.room.wait()
                if (fault := talk.take(message.get("text") or "")) is not None:
                    # Nothing may be sent after the word that closes.
                    writer.cancel()
                    await socket.close(_WRONG, fault.encode()[:REASON_BYTES].decode(errors="ignore"))
                    return
        finally:
            writer.cancel()
            talk.leave()

    return router


@dataclass
class _Answer:
    """One answer that has still to be sent."""

    id: str
    kind: Literal["result", "retry_after_s", "cancelled"]
    text: str
    """As JSON; empty for a result to be fetched from Redis, because too much is unread here already."""
    pending_run: PendingRun | None = None
    """What it answers; to be left once it is sent, because only then is the result heard of."""

    def __str__(self) -> str:
        return f'{{"id":"{self.id}","{self.kind}":{self.text}}}'


class StreamConnection:
    """One connection."""

    def __init__(self, dispatcher: Dispatcher, socket: WebSocket) -> None:
        self.dispatcher = dispatcher
        self.socket = socket
        self.held: dict[str, PendingRun] = {}
        """What this client waits for."""
        self.answers: deque[_Answer] = deque()
        self.sending: list[_Answer] = []
        self.backlog = 0
        """Characters of `answers`."""
        self.news = asyncio.Event()
        self.room = asyncio.Event()
        """The backlog is short enough, or nobody reads any more."""
        self.room.set()

    def take(self, text: str) -> str | None:
        """Do what one message orders. → what is wrong with it; nothing of it was done then."""
        try:
            items = json.loads(text)
        except (ValueError, RecursionError) as error:
            return f"not JSON: {error}"
        if not isinstance(items, list):
            return "not an array of orders"
        if len(items) > MAX_BATCH:
            return f"more than {MAX_BATCH} orders in one message"
        orders = []
        for index, item in enumerate(items):
            try:
                orders.append(StreamRequest.model_validate(item))
            except ValidationError as error:
                return f"{index}.{why(error)}"
        for order in orders:
            if order.cancel:
                self._cancel(order.id)
            elif order.id not in self.held:
                self._ask(order.id, order.run)
        return None

    def _cancel(self, run_id: str) -> None:
        pending_run = self.held.pop(run_id, None)
        if pending_run is not None:
            self.dispatcher.leave(pending_run)
        else:
            # It may have been asked for on an earlier connection, of a front that was killed.
            self.dispatcher.drop(run_id)
        self._say(_Answer(run_id, "cancelled", "true"))

    def _ask(self, run_id: str, item: object) -> None:
        try:
            program = RunRequest.model_validate(item)
        except ValidationError as error:
            result = RunResult(id=run_id, outcome="invalid", stderr=why(error))
            self._say(_Answer(run_id, "result", result.model_dump_json()))
            return
        try:
            self.dispatcher.admit(1)
        except QueueFull as error:
            self._say(_Answer(run_id, "retry_after_s", str(error.retry_after_s)))
            return
        pending_run = self.held[run_id] = self.dispatcher.join(pending_run_of(run_id, program))
        pending_run.result.add_done_callback(partial(self._done, run_id, pending_run))

    def _done(self, run_id: str, pending_run: PendingRun, result: asyncio.Future[str]) -> None:
        if self.held.get(run_id) is not pending_run:
            return
        del self.held[run_id]
        if self.backlog > BACKLOG_CHARS:
            self.dispatcher.leave(pending_run, heard=False)
            self._say(_Answer(run_id, "result", ""))
        else:
            self._say(_Answer(run_id, "result", result.result(), pending_run))

    def _say(self, answer: _Answer) -> None:
        self.answers.append(answer)
        self.backlog += len(answer.text)
        self.news.set()
        if self.backlog > BACKLOG_CHARS:
            self.room.clear()

    async def write(self) -> None:
        """Send answers as they come."""
        try:
            while True:
                await self.news.wait()
                self.news.clear()
                while self.answers:
                    await self._send_some()
        except WebSocketDisconnect:
            # Whoever reads hears of it, too.
            self.room.set()

    async def _send_some(self) -> None:
        sending = self.sending = self._next()
        if not sending[0].text:
            await self._fetch(sending)
        await self.socket.send_text(f"[{','.join(map(str, sending))}]")
        for answer in sending:
            if answer.pending_run is not None:
                self.dispatcher.leave(answer.pending_run)
        self.sending = []
        if self.backlog <= BACKLOG_CHARS:
            self.room.set()

    def _next(self) -> list[_Answer]:
        """What goes into the next message: answers that are here, or a few to be fetched."""
        answers = [self.answers.popleft()]
        size = len(answers[0].text)
        while self.answers:
            more = len(self.answers[0].text)
            full = size + more > TOGETHER_CHARS or (not more and len(answers) == FETCHED_TOGETHER)
            if full or bool(more) != bool(size):
                break
            answers.append(self.answers.popleft())
            size += more
        self.backlog -= size
        return answers

    async def _fetch(self, answers: Sequence[_Answer]) -> None:
        """Fill in results that were left in Redis."""
        while True:
            try:
                found = await self.dispatcher.results([answer.id for answer in answers])
                break
            except RedisError:
                await asyncio.sleep(FETCH_AGAIN_S)
        for answer, text in zip(answers, found, strict=True):
            if text is None:
                # It has expired meanwhile: the client is to ask for it again.
                answer.kind, text = "retry_after_s", str(FETCH_AGAIN_S)
            answer.text = text

    def leave(self) -> None:
        """The client is gone."""
        for pending_run in self.held.values():
            self.dispatcher.leave(pending_run, heard=False)
        self.held.clear()
        for answer in (*self.sending, *self.answers):
            if answer.pending_run is not None:
                self.dispatcher.leave(answer.pending_run, heard=False)
