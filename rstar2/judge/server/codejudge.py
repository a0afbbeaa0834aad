"""Drop-in endpoints for clients of code-judge: /ping, /run and /judge. The endpoints for several programs are
/run/batch, /run/long-batch, /judge/batch and /judge/long-batch.

The wire format is that of github.com/0xWJ/code-judge, with one difference. If an item of a batch is bad or its type is
not "python", only this item fails, with the reason `invalid_input`, and the remaining items of the batch still run.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from rstar2.judge.schema import Outcome, RunRequest, RunResult, utf8_bytes
from rstar2.judge.server.dispatcher import Dispatcher, PendingRun
from rstar2.judge.server.http import (
    openapi_schemas,
    read_json,
    unless_disconnected,
    validated,
    validation_message,
)

TIMEOUT_S = 10.0
"""The time limit of a program in seconds, which is the same as in code-judge. A request of code-judge has no field for
a time limit."""
MEMORY_MB = 1024
MAX_BATCH = 10_000
TIMEOUT_LINE = "Suicide from timeout.\n"
"""Line that code-judge appends to the stdout of a program that times out. Models that were trained with code-judge have
seen this line."""
Reason = Literal["", "internal_error", "worker_timeout", "queue_timeout", "invalid_input"]
_REASONS: dict[Outcome, Reason] = {
    "timeout": "worker_timeout",
    "lost": "internal_error",
    "refused": "internal_error",
    "invalid": "invalid_input",
}


def _checked_sub_id(sub_id: str) -> str:
    utf8_bytes(sub_id)
    return sub_id


class WithId(BaseModel):
    """A request with an optional id. The judge generates the id if the client sends none."""

    sub_id: Annotated[str, AfterValidator(_checked_sub_id)] = Field(default_factory=lambda: str(uuid.uuid4()))


class Submission(WithId):
    """A request to run one program. Unknown fields are ignored, as in code-judge."""

    type: Literal["python"]
    solution: str
    input: str | None = None
    expected_output: str | None = None


class Batch(WithId):
    """A request to run several programs.

    The items are validated one by one later, so that a bad item does not make other items fail.
    """

    type: Literal["batch"] = "batch"
    submissions: list[object] = Field(min_length=1, max_length=MAX_BATCH)


def _without_null_id(item: object) -> object:
    """Remove the field `sub_id` if its value is null, so that the judge generates an id."""
    if isinstance(item, dict) and item.get("sub_id") is None:
        return {key: value for key, value in item.items() if key != "sub_id"}
    return item


def prepare(item: object) -> tuple[Submission, PendingRun]:
    """Returns one item of a batch as a submission, and the program to run for the item.

    Raises ValidationError if the item is bad.
    """
    submission = Submission.model_validate(_without_null_id(item))
    request = RunRequest(
        code=submission.solution, stdin=submission.input or "", timeout_s=TIMEOUT_S, memory_mb=MEMORY_MB
    )
    return submission, PendingRun.from_request(uuid.uuid4().hex, request)


def _invalid_answer(item: object, error: ValidationError) -> dict[str, Any]:
    try:
        with_id = WithId.model_validate(_without_null_id(item))
    except ValidationError:
        with_id = WithId()
    return answer_for(with_id.sub_id, RunResult(id="", outcome="invalid", stderr=validation_message(error)))


def answer_for(sub_id: str, result: RunResult, expected: str | None = None) -> dict[str, Any]:
    """Returns a result in code-judge's format.

    If `expected` is set, `success` is True only if the stdout equals `expected`.
    """
    ran = result.outcome == "ok"
    is_expected = expected is None or result.stdout.strip() == expected.strip()
    return {
        "sub_id": sub_id,
        "success": ran and is_expected,
        "run_success": ran,
        "cost": result.wall_s,
        "stdout": result.stdout + TIMEOUT_LINE * (result.outcome == "timeout"),
        "stderr": result.stderr,
        "reason": _REASONS.get(result.outcome, ""),
    }


async def judge_all(dispatcher: Dispatcher, items: list[object]) -> list[dict[str, Any]]:
    """Run all valid items. Returns one answer in code-judge's format for each item, in the order of the items."""
    answers: dict[int, dict[str, Any]] = {}
    valid: dict[int, tuple[Submission, PendingRun]] = {}
    for index, item in enumerate(items):
        try:
            valid[index] = prepare(item)
        except ValidationError as error:
            answers[index] = _invalid_answer(item, error)
    texts = await dispatcher.run([run for _, run in valid.values()])
    for (index, (submission, _)), text in zip(valid.items(), texts, strict=True):
        result = RunResult.model_validate_json(text)
        answers[index] = answer_for(submission.sub_id, result, submission.expected_output)
    return [answers[index] for index in range(len(items))]


def _without_output(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key not in ("stdout", "stderr")}


def codejudge_router(dispatcher: Dispatcher) -> APIRouter:
    """Returns the endpoints of code-judge except `/status`, which the router of `metrics.py` serves."""
    router = APIRouter()

    @router.get("/ping")
    async def ping() -> str:
        return "pong"

    async def one(request: Request) -> dict[str, Any]:
        [answer] = await unless_disconnected(request, judge_all(dispatcher, [await read_json(request)]))
        return answer

    async def many(request: Request, *, output: bool) -> Response:
        batch = validated(Batch, _without_null_id(await read_json(request)))
        answers = await unless_disconnected(request, judge_all(dispatcher, batch.submissions))
        results = answers if output else list(map(_without_output, answers))
        return JSONResponse({"sub_id": batch.sub_id, "results": results})

    @router.post("/run", **openapi_schemas(Submission))
    async def run(request: Request) -> Response:
        return JSONResponse(await one(request))

    @router.post("/judge", **openapi_schemas(Submission))
    async def judge(request: Request) -> Response:
        return JSONResponse(_without_output(await one(request)))

    @router.post("/run/batch", **openapi_schemas(Batch))
    @router.post("/run/long-batch", **openapi_schemas(Batch))
    async def run_batch(request: Request) -> Response:
        return await many(request, output=True)

    @router.post("/judge/batch", **openapi_schemas(Batch))
    @router.post("/judge/long-batch", **openapi_schemas(Batch))
    async def judge_batch(request: Request) -> Response:
        return await many(request, output=False)

    return router
