"""The native endpoints for runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack

from fastapi import APIRouter, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from rstar2.judge.broker import Broker, Ticket
from rstar2.judge.http import Refused, checked, hung_up, read_json, request_key, unless_gone, why
from rstar2.judge.schema import BatchRequest, RunRequest, RunResult

LINES = "application/x-ndjson"
"""Asked for with `Accept`: results of a batch come as lines, each as soon as it is there."""


def ticket_for(run_id: str, request: RunRequest) -> Ticket:
    """What queues one program."""
    return Ticket(run_id, request.model_dump_json(), request.timeout_s)


def split_batch(key: str, items: list[object]) -> tuple[dict[int, Ticket], dict[int, str]]:
    """What of a batch can be queued, and the results of what is `invalid`, by index."""
    good: dict[int, Ticket] = {}
    bad: dict[int, str] = {}
    for index, item in enumerate(items):
        run_id = f"{key}-{index}"
        try:
            good[index] = ticket_for(run_id, RunRequest.model_validate(item))
        except ValidationError as error:
            bad[index] = RunResult(id=run_id, outcome="invalid", stderr=why(error)).model_dump_json()
    return good, bad


class _Stream(StreamingResponse):
    """Results as lines; lets go of what is held for them when it ends, also if it never began.

    Args:
        lines: what to send.
        held: closed at the end.
    """

    def __init__(self, lines: AsyncIterator[bytes], held: ExitStack) -> None:
        super().__init__(lines, media_type=LINES)
        self.held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.held:
            await super().__call__(scope, receive, send)


async def _lines(
    request: Request, good: Sequence[int], tickets: Sequence[Ticket], bad: dict[int, str]
) -> AsyncIterator[bytes]:
    ready: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
    for index, text in bad.items():
        ready.put_nowait((index, text))

    def arrange(index: int, ticket: Ticket) -> None:
        def put(result: asyncio.Future[str]) -> None:
            if not result.cancelled():
                ready.put_nowait((index, result.result()))

        ticket.result.add_done_callback(put)

    for index, ticket in zip(good, tickets, strict=True):
        arrange(index, ticket)
    gone = asyncio.create_task(hung_up(request))
    getter = asyncio.create_task(ready.get())
    try:
        left = len(good) + len(bad)
        while left:
            await asyncio.wait({getter, gone}, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                return
            found = [getter.result()]
            while not ready.empty():
                found.append(ready.get_nowait())
            left -= len(found)
            if left:
                getter = asyncio.create_task(ready.get())
            yield b"".join(f'{{"index":{i},"result":{text}}}\n'.encode() for i, text in found)
    finally:
        # Starlette ends this generator where it waits when the client is gone.
        for task in (gone, getter):
            task.cancel()


def runs_router(broker: Broker) -> APIRouter:
    """`/v1/runs` and what is under it."""
    router = APIRouter()

    async def run(request: Request) -> Response:
        key = request_key(request)
        program = checked(RunRequest, await read_json(request))
        [text] = await unless_gone(request, broker.run([ticket_for(key, program)]))
        return Response(text, media_type="application/json")

    async def batch(request: Request) -> Response:
        key = request_key(request)
        good, bad = split_batch(key, checked(BatchRequest, await read_json(request)).runs)
        if LINES in request.headers.get("accept", ""):
            held = ExitStack()
            # Queued before anything is sent: a full queue must still be able to say 429.
            tickets = held.enter_context(broker.holding(list(good.values())))
            return _Stream(_lines(request, list(good), tickets, bad), held)
        results = await unless_gone(request, broker.run(list(good.values())))
        texts = {**bad, **dict(zip(good, results, strict=True))}
        body = ",".join(texts[index] for index in range(len(texts)))
        return Response(f'{{"results":[{body}]}}', media_type="application/json")

    @router.delete("/v1/runs/{run_id}")
    async def cancel(run_id: str) -> Response:
        if len(run_id) > 256:
            raise Refused(422, "id: longer than 256 characters")
        broker.cancel(run_id)
        return Response(status_code=204)

    # Plain routes: the framework's own reading of parameters would cost more than all else here.
    router.add_route("/v1/runs", run, methods=["POST"])
    router.add_route("/v1/runs/batch", batch, methods=["POST"])
    return router
