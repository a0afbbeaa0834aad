"""The judge's native HTTP endpoints for programs: `/v1/runs`, `/v1/runs/batch` and `/v1/runs/{run_id}`."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError
from starlette.exceptions import HTTPException

from rstar2.judge.protocol_version import HEADER, unknown_fields
from rstar2.judge.schema import BatchRequest, RunRequest, RunResult
from rstar2.judge.server.dispatcher import Dispatcher, PendingRun
from rstar2.judge.server.http import (
    invalid_result,
    openapi_schemas,
    read_json,
    request_key,
    unless_disconnected,
    validated,
)

MAX_ID_CHARS = 256


def runs_router(dispatcher: Dispatcher) -> APIRouter:
    router = APIRouter()

    @router.post("/v1/runs", **openapi_schemas(RunRequest, RunResult))
    async def run(request: Request) -> Response:
        """Run one program, and return its result when the program has ended."""
        key = request_key(request)
        program = validated(RunRequest, await read_json(request), request)
        [text] = await unless_disconnected(request, dispatcher.run([PendingRun.from_request(key, program)]))
        return Response(text, media_type="application/json")

    @router.post("/v1/runs/batch", **openapi_schemas(BatchRequest))
    async def run_batch(request: Request) -> Response:
        """Run several programs.

        The `results` are in the order of `runs`, and a bad item makes only its own result `invalid`.
        """
        key = request_key(request)
        valid: dict[int, PendingRun] = {}
        texts: dict[int, str] = {}
        extra = unknown_fields(request.headers.get(HEADER))
        for index, item in enumerate(validated(BatchRequest, await read_json(request), request).runs):
            run_id = f"{key}-{index}"
            try:
                program = RunRequest.model_validate(item, extra=extra)
                valid[index] = PendingRun.from_request(run_id, program)
            except ValidationError as error:
                texts[index] = invalid_result(run_id, error)
        results = await unless_disconnected(request, dispatcher.run(list(valid.values())))
        texts.update(zip(valid, results, strict=True))
        body = ",".join(texts[index] for index in range(len(texts)))
        return Response(f'{{"results":[{body}]}}', media_type="application/json")

    @router.delete("/v1/runs/{run_id}")
    async def cancel(run_id: str) -> Response:
        """Cancel a program that is queued or running."""
        if len(run_id) > MAX_ID_CHARS:
            raise HTTPException(422, f"id: longer than {MAX_ID_CHARS} characters")
        dispatcher.cancel(run_id)
        return Response(status_code=204)

    return router
