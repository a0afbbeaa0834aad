"""A drop-in endpoint for clients of SandboxFusion: POST /run_code, for Python programs only.

The wire format is that of github.com/bytedance/SandboxFusion, as VERL's client uses it.
"""

from __future__ import annotations

import uuid
from typing import Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from rstar2.judge.schema import MAX_TIMEOUT_S, RunRequest, RunResult
from rstar2.judge.server.dispatcher import Dispatcher, PendingRun
from rstar2.judge.server.http import openapi_schemas, read_json, unless_disconnected, validated

DEFAULT_MEMORY_MB = 1024


class RunCode(BaseModel):
    """A request to run one program. Unknown fields are ignored, as in SandboxFusion."""

    code: str
    language: Literal["python"]
    stdin: str | None = None
    run_timeout: float = Field(default=10.0, gt=0)
    memory_limit_MB: int = -1
    """The memory limit in MiB, or -1 for `DEFAULT_MEMORY_MB`."""
    files: dict[str, str | None] = {}
    fetch_files: list[str] = []


def _run_request(body: RunCode) -> RunRequest:
    if body.files or body.fetch_files:
        raise HTTPException(422, "files, fetch_files: not supported; the program's work folder is empty")
    memory = body.memory_limit_MB if body.memory_limit_MB > 0 else DEFAULT_MEMORY_MB
    fields = {
        "code": body.code,
        "stdin": body.stdin or "",
        "timeout_s": min(body.run_timeout, MAX_TIMEOUT_S),
        "memory_mb": min(max(memory, 16), 65536),
    }
    return validated(RunRequest, fields)


def _answer(result: RunResult) -> dict[str, Any]:
    if result.outcome in ("refused", "invalid", "lost"):
        status, run = "SandboxError", None
    else:
        status = "Success" if result.outcome == "ok" else "Failed"
        ended = {"ok": "Finished", "error": "Finished", "timeout": "TimeLimitExceeded"}
        run = {
            "status": ended.get(result.outcome, "Error"),
            "execution_time": result.wall_s,
            "return_code": None if result.outcome == "timeout" else result.exit_code,
            "stdout": result.stdout,
            "stderr": result.stderr,
        }
    return {
        "status": status,
        "message": "" if status == "Success" else f"{result.outcome}: {result.stderr[-500:]}",
        "compile_result": None,
        "run_result": run,
        "executor_pod_name": None,
        "files": {},
    }


def sandboxfusion_router(dispatcher: Dispatcher) -> APIRouter:
    router = APIRouter()

    @router.post("/run_code", **openapi_schemas(RunCode))
    async def run_code(request: Request) -> Response:
        program = _run_request(validated(RunCode, await read_json(request)))
        run = PendingRun.from_request(uuid.uuid4().hex, program)
        [text] = await unless_disconnected(request, dispatcher.run([run]))
        return JSONResponse(_answer(RunResult.model_validate_json(text)))

    return router
