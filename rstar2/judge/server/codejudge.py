"""Drop-in endpoints for clients of code-judge: /ping, /run, /judge, each with /batch and /long-batch.

The wire format is that of github.com/0xWJ/code-judge. Different from it: a bad item of a batch, and one of a type
other than python, is `invalid_input` alone.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from rstar2.judge.schema import Outcome, RunRequest, RunResult, encodable
from rstar2.judge.server.dispatcher import Dispatcher, PendingRun
from rstar2.judge.server.http import described, read_json, unless_disconnected, validated, validation_message

LIMIT_S = 10.0
"""code-judge's own default; its requests cannot ask for another."""
MEMORY_MB = 1024
MAX_BATCH = 10_000
TIMEOUT_LINE = "Suicide from timeout.\n"
"""What code-judge's own harness prints after a program's output when its time is over, so that models saw it."""
Reason = Literal["", "internal_error", "worker_timeout", "queue_timeout", "invalid_input"]
_REASONS: dict[Outcome, Reason] = {
    "timeout": "worker_timeout",
    "lost": "internal_error",
    "refused": "internal_error",
    "invalid": "invalid_input",
}


def _returnable(sub_id: str) -> str:
    """An id that can be sent back."""
    encodable(sub_id)
    return sub_id


class Named(BaseModel):
    """Has an id, the client's or one of ours."""

    sub_id: Annotated[str, AfterValidator(_returnable)] = Field(default_factory=lambda: str(uuid.uuid4()))


class Submission(Named):
    """One program; unknown fields are ignored, as code-judge does."""

    type: Literal["python"]
    solution: str
    input: str | None = None
    expected_output: str | None = None


class Batch(Named):
    """Several; items are not checked here, so that a bad one is bad alone."""

    type: Literal["batch"] = "batch"
    submissions: list[object] = Field(min_length=1, max_length=MAX_BATCH)


def _named(item: object) -> object:
    """A submission whose null id is left for us to choose."""
    if isinstance(item, dict) and item.get("sub_id") is None:
        return {key: value for key, value in item.items() if key != "sub_id"}
    return item


def prepare(item: object) -> tuple[Submission, PendingRun]:
    """One item as a submission, and the program to run for it."""
    submission = Submission.model_validate(_named(item))
    request = RunRequest(
        code=submission.solution, stdin=submission.input or "", timeout_s=LIMIT_S, memory_mb=MEMORY_MB
    )
    return submission, PendingRun.from_request(uuid.uuid4().hex, request)


def _invalid(item: object, error: ValidationError) -> dict[str, Any]:
    try:
        named = Named.model_validate(_named(item))
    except ValidationError:
        named = Named()
    return answer_for(named.sub_id, RunResult(id="", outcome="invalid", stderr=validation_message(error)))


def answer_for(sub_id: str, result: RunResult, expected: str | None = None) -> dict[str, Any]:
    """A result in the terms of code-judge; a success only with the `expected` output, where that is given."""
    ran = result.outcome == "ok"
    right = expected is None or result.stdout.strip() == expected.strip()
    return {
        "sub_id": sub_id,
        "success": ran and right,
        "run_success": ran,
        "cost": result.wall_s,
        "stdout": result.stdout + TIMEOUT_LINE * (result.outcome == "timeout"),
        "stderr": result.stderr,
        "reason": _REASONS.get(result.outcome, ""),
    }


async def judge_all(dispatcher: Dispatcher, items: list[object]) -> list[dict[str, Any]]:
    answers: dict[int, dict[str, Any]] = {}
    good: dict[int, tuple[Submission, PendingRun]] = {}
    for index, item in enumerate(items):
        try:
            good[index] = prepare(item)
        except ValidationError as error:
            answers[index] = _invalid(item, error)
    texts = await dispatcher.run([run for _, run in good.values()])
    for (index, (submission, _)), text in zip(good.items(), texts, strict=True):
        result = RunResult.model_validate_json(text)
        answers[index] = answer_for(submission.sub_id, result, submission.expected_output)
    return [answers[index] for index in range(len(items))]


def _without_output(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("stdout", "stderr")}


def codejudge_router(dispatcher: Dispatcher) -> APIRouter:
    """The endpoints; `/status` is one with the native one."""
    router = APIRouter()

    @router.get("/ping")
    async def ping() -> str:
        return "pong"

    async def one(request: Request) -> dict[str, Any]:
        [answer] = await unless_disconnected(request, judge_all(dispatcher, [await read_json(request)]))
        return answer

    async def many(request: Request, *, output: bool) -> Response:
        batch = validated(Batch, _named(await read_json(request)))
        answers = await unless_disconnected(request, judge_all(dispatcher, batch.submissions))
        results = answers if output else list(map(_without_output, answers))
        return JSONResponse({"sub_id": batch.sub_id, "results": results})

    @router.post("/run", **described(Submission))
    async def run(request: Request) -> Response:
        return JSONResponse(await one(request))

    @router.post("/judge", **described(Submission))
    async def judge(request: Request) -> Response:
        return JSONResponse(_without_output(await one(request)))

    @router.post("/run/batch", **described(Batch))
    @router.post("/run/long-batch", **described(Batch))
    async def run_batch(request: Request) -> Response:
        return await many(request, output=True)

    @router.post("/judge/batch", **described(Batch))
    @router.post("/judge/long-batch", **described(Batch))
    async def judge_batch(request: Request) -> Response:
        return await many(request, output=False)

    return router
