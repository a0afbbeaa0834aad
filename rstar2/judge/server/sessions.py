"""The native endpoints for sessions."""

from __future__ import annotations

import random
import uuid
from typing import Any

from fastapi import APIRouter, Request, Response

from rstar2.judge.schema import CellRequest, CellResult, SessionInfo, SessionRequest
from rstar2.judge.server.dispatcher import Dispatcher, PendingRun
from rstar2.judge.server.http import Refused, checked, read_json, request_key, unless_disconnected
from rstar2.judge.server.metrics import STALE_S, worker_states
from rstar2.judge.worker.sessions import Order

OPEN_S = 30.0


async def _least_loaded_worker(dispatcher: Dispatcher) -> str:
    """The worker that holds the fewest sessions."""
    live = [worker for worker in await worker_states(dispatcher) if worker["age_s"] < STALE_S]
    if not live:
        raise Refused(503, "no worker lives")
    fewest = min(worker["sessions"] for worker in live)
    # Heartbeats lag behind: a burst of openings must not all go to one worker.
    return str(random.choice([worker["name"] for worker in live if worker["sessions"] == fewest]))


def _worker_of(session: str) -> str:
    worker, dot, rest = session.rpartition(".")
    if not dot or not rest or len(session) > 256:
        raise Refused(404, f"session: there is no {session[:256]!r}")
    return worker


def sessions_router(dispatcher: Dispatcher) -> APIRouter:
    """`/v1/sessions` and what is under it."""
    router = APIRouter()

    async def ask(request: Request, run_id: str, order: Order, timeout_s: float) -> str:
        pending_run = PendingRun(run_id, order.model_dump_json(), timeout_s, _worker_of(order.session))
        [text] = await unless_disconnected(request, dispatcher.run([pending_run]))
        return text

    @router.post("/v1/sessions")
    async def open_session(request: Request) -> Response:
        # No key holds a slash: an opening is never taken for a run or a cell under the same key.
        run_id = f"open/{request_key(request)}"
        asked = checked(SessionRequest, await read_json(request))
        order = Order(
            do="open", session=f"{await _least_loaded_worker(dispatcher)}.{uuid.uuid4().hex}", open=asked
        )
        text = await ask(request, run_id, order, OPEN_S)
        result = CellResult.model_validate_json(text)
        if result.outcome != "ok" or result.isolation is None or result.value is None:
            # Whoever tries again under this key may find room, or a worker that lives.
            await dispatcher.forget(run_id, text)
            raise Refused(503, f"the session could not be opened: {result.stderr}")
        # Not the order's: an earlier request under this key may have opened it.
        info = SessionInfo(
            id=result.value, isolation=result.isolation, idle_s=asked.idle_s, total_s=asked.total_s
        )
        return Response(info.model_dump_json(), 201, media_type="application/json")

    @router.post("/v1/sessions/{session}/cells")
    async def run_cell(session: str, request: Request) -> Response:
        key = request_key(request)
        cell = checked(CellRequest, await read_json(request))
        text = await ask(request, key, Order(do="cell", session=session, cell=cell), cell.timeout_s)
        return Response(text, media_type="application/json")

    @router.delete("/v1/sessions/{session}")
    async def close_session(session: str, request: Request) -> Any:
        order = Order(do="close", session=session)
        result = CellResult.model_validate_json(await ask(request, uuid.uuid4().hex, order, OPEN_S))
        if result.outcome != "ok":
            raise Refused(404, f"session: {result.stderr}")
        return Response(status_code=204)

    return router
