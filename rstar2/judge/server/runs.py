"""The native endpoints for runs."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from rstar2.judge.schema import BatchRequest, RunRequest, RunResult
from rstar2.judge.server.dispatcher import Dispatcher, PendingRun
from rstar2.judge.server.http import (
    Endpoint,
    Refused,
    checked,
    read_json,
    request_key,
    unless_disconnected,
    why,
)


def pending_run_of(run_id: str, request: RunRequest) -> PendingRun:
    """What queues one program."""
    return PendingRun(run_id, request.model_dump_json(), request.timeout_s)


def split_batch(key: str, items: list[object]) -> tuple[dict[int, PendingRun], dict[int, str]]:
    """What of a batch can be queued, and the results of what is `invalid`, by index."""
    good: dict[int, PendingRun] = {}
    bad: dict[int, str] = {}
    for index, item in enumerate(items):
        run_id = f"{key}-{index}"
        try:
            good[index] = pending_run_of(run_id, RunRequest.model_validate(item))
        except ValidationError as error:
            bad[index] = RunResult(id=run_id, outcome="invalid", stderr=why(error)).model_dump_json()
    return good, bad


def runs_direct(dispatcher: Dispatcher) -> dict[str, Endpoint]:
    """`POST /v1/runs` and `/v1/runs/batch`."""

    async def run(request: Request) -> Response:
        key = request_key(request)
        program = checked(RunRequest, await read_json(request))
        [text] = await unless_disconnected(request, dispatcher.run([pending_run_of(key, program)]))
        return Response(text, media_type="application/json")

    async def batch(request: Request) -> Response:
        key = request_key(request)
        good, bad = split_batch(key, checked(BatchRequest, await read_json(request)).runs)
        results = await unless_disconnected(request, dispatcher.run(list(good.values())))
        texts = {**bad, **dict(zip(good, results, strict=True))}
        body = ",".join(texts[index] for index in range(len(texts)))
        return Response(f'{{"results":[{body}]}}', media_type="application/json")

    return {"/v1/runs": run, "/v1/runs/batch": batch}


def runs_router(dispatcher: Dispatcher) -> APIRouter:
    """What is under `/v1/runs` besides."""
    router = APIRouter()

    @router.delete("/v1/runs/{run_id}")
    async def cancel(run_id: str) -> Response:
        if len(run_id) > 256:
            raise Refused(422, "id: longer than 256 characters")
        dispatcher.cancel(run_id)
        return Response(status_code=204)

    return router
