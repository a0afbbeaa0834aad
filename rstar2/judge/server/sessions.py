"""The judge's native HTTP endpoints for sessions: Python processes that keep their state from cell to cell."""

from __future__ import annotations

import random
import uuid

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

from rstar2.judge.queue.tasks import SessionCommand
from rstar2.judge.schema import CellRequest, CellResult, SessionInfo, SessionRequest, identity
from rstar2.judge.server.dispatcher import Dispatcher, PendingRun
from rstar2.judge.server.http import openapi_schemas, read_json, request_key, unless_disconnected, validated
from rstar2.judge.server.metrics import compatible, living_workers

OPEN_S = 30.0
MAX_ID_CHARS = 256


async def _least_loaded_worker(dispatcher: Dispatcher) -> str:
    workers = compatible(await living_workers(dispatcher))
    if not workers:
        raise HTTPException(503, "the judge has no living worker")
    fewest = min(worker.get("sessions", 0) for worker in workers)
    # The choice is random because heartbeats are late: many sessions opened at once must not all go to one worker.
    return str(random.choice([worker["name"] for worker in workers if worker.get("sessions", 0) == fewest]))


def _worker_of(session: str) -> str:
    worker, dot, rest = session.rpartition(".")
    if not dot or not rest or len(session) > MAX_ID_CHARS:
        raise HTTPException(404, f"session: there is no session {session[:MAX_ID_CHARS]!r}")
    return worker


def sessions_router(dispatcher: Dispatcher) -> APIRouter:
    router = APIRouter()

    async def send(
        request: Request,
        run_id: str,
        command: SessionCommand,
        timeout_s: float,
        fingerprint_source: str | None = None,
    ) -> str:
        worker = _worker_of(command.session)
        run = PendingRun(run_id, command.model_dump_json(), timeout_s, worker, fingerprint_source)
        [text] = await unless_disconnected(request, dispatcher.run([run]))
        return text

    @router.post("/v1/sessions", **openapi_schemas(SessionRequest, SessionInfo))
    async def open_session(request: Request) -> Response:
        # No key contains a slash, so this id differs from the id of any run or cell under the same key.
        run_id = f"open/{request_key(request)}"
        limits = validated(SessionRequest, await read_json(request), request)
        session = f"{await _least_loaded_worker(dispatcher)}.{uuid.uuid4().hex}"
        command = SessionCommand(action="open", session=session, open=limits)
        text = await send(request, run_id, command, OPEN_S, identity(limits))
        result = CellResult.model_validate_json(text)
        if result.outcome != "ok" or result.isolation is None or result.value is None:
            # The failure is forgotten, so that a retry under this key can succeed on another worker.
            await dispatcher.forget(run_id, text)
            raise HTTPException(503, f"the session could not be opened: {result.stderr}")
        # The id is the result's, not `session`: an earlier request under this key may have opened the session.
        info = SessionInfo(
            id=result.value, isolation=result.isolation, idle_s=limits.idle_s, total_s=limits.total_s
        )
        return Response(info.model_dump_json(), 201, media_type="application/json")

    @router.post("/v1/sessions/{session}/cells", **openapi_schemas(CellRequest, CellResult))
    async def run_cell(session: str, request: Request) -> Response:
        key = request_key(request)
        cell = validated(CellRequest, await read_json(request), request)
        command = SessionCommand(action="cell", session=session, cell=cell)
        text = await send(request, key, command, cell.timeout_s, f"{session} {identity(cell)}")
        return Response(text, media_type="application/json")

    @router.delete("/v1/sessions/{session}")
    async def close_session(session: str, request: Request) -> Response:
        command = SessionCommand(action="close", session=session)
        result = CellResult.model_validate_json(await send(request, uuid.uuid4().hex, command, OPEN_S))
        if result.outcome != "ok":
            raise HTTPException(404, f"session: {result.stderr}")
        return Response(status_code=204)

    return router
