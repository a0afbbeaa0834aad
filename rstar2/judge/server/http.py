"""What all HTTP endpoints share: reading and validating a request, the client that disconnects, errors.

Bodies are read and validated here and not by the framework: it would answer 500 to source that is not valid
Unicode, and refuse a whole batch for one bad item.
"""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Coroutine
from typing import Any, TypedDict, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from rstar2.judge.protocol_version import HEADER, unknown_fields
from rstar2.judge.schema import CHOSEN_ID, MAX_MESSAGE_BYTES, RunResult
from rstar2.judge.server.dispatcher import IdReused, NotQueued, QueueFull

MAX_NAME_CHARS = 200
BODIES_RETRY_S = 1.0
"""`Retry-After` where too much is received at once."""
CLIENT_CLOSED = 499
"""The status of an answer that nobody reads, because the client disconnected; nginx's."""
T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
_KEY = re.compile(CHOSEN_ID)


class BodyBudget:
    """Bytes of bodies that are being received, on all connections together."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.held = 0

    @property
    def is_exceeded(self) -> bool:
        return self.held > self.most


class ServerState(TypedDict):
    """What the application's lifespan yields, and every request's `state` has."""

    read_s: float
    """How long a client may be silent in the middle of a body."""
    bodies: BodyBudget


def validation_message(error: ValidationError) -> str:
    """What is wrong with a request as `field: message`, without echoing what was sent."""
    faults = error.errors(include_url=False, include_context=False)
    return "; ".join(f"{_field(fault)}: {fault['msg']}" for fault in faults[:5])


def invalid_result(run_id: str, error: ValidationError) -> str:
    """The result, as JSON, of a program whose request is wrong."""
    return RunResult(id=run_id, outcome="invalid", stderr=validation_message(error)).model_dump_json()


def _field(fault: ErrorDetails) -> str:
    """The name of a field, which the client chose if there is no such field: cut, and encodable."""
    place = fault["loc"]
    if not place and fault["type"] == "string_unicode":
        # Only the name of a field is faulted so without a place; it is the input.
        place = (str(fault["input"]),)
    name = ".".join(map(str, place)) or "body"
    return name[:MAX_NAME_CHARS].encode(errors="backslashreplace").decode()


def described(asked: type[BaseModel], answered: type[BaseModel] | None = None) -> dict[str, Any]:
    """A route's arguments that tell OpenAPI what is asked and answered, which is read and written by hand."""
    body = {"content": {"application/json": {"schema": asked.model_json_schema()}}, "required": True}
    answers: dict[int | str, dict[str, Any]] = {200: {"model": answered}} if answered is not None else {}
    return {"openapi_extra": {"requestBody": body}, "responses": answers}


async def read_json(request: Request) -> object:
    """The body of a request as JSON.

    Raises:
        HTTPException: 400, 408, 413, or CLIENT_CLOSED if the client disconnected.
        QueueFull: the bodies that are being received take as much memory as they may.
    """
    body = bytearray()
    bodies: BodyBudget = request.state.bodies
    read_s: float = request.state.read_s
    try:
        async with asyncio.timeout(read_s) as silence:
            async for chunk in request.stream():
                silence.reschedule(asyncio.get_running_loop().time() + read_s)
                body += chunk
                bodies.held += len(chunk)
                if len(body) > MAX_MESSAGE_BYTES:
                    raise HTTPException(413, f"body: longer than {MAX_MESSAGE_BYTES} bytes")
                if bodies.is_exceeded:
                    raise QueueFull("the judge receives too much at once", BODIES_RETRY_S)
    except TimeoutError as error:
        message = f"body: nothing came for {read_s:.0f} seconds"
        raise HTTPException(408, message, headers={"Connection": "close"}) from error
    except ClientDisconnect as error:
        raise HTTPException(CLIENT_CLOSED, "the client disconnected") from error
    finally:
        bodies.held -= len(body)
    try:
        return json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"body: not JSON: {error}") from error


def validated(model: type[Model], data: object, request: Request | None = None) -> Model:
    """`data` as `model`; HTTPException with 422 that names the field.

    Args:
        request: what the data came with, if the client may be one of ours of a later version.
    """
    extra = None if request is None else unknown_fields(request.headers.get(HEADER))
    try:
        return model.model_validate(data, extra=extra)
    except ValidationError as error:
        raise HTTPException(422, validation_message(error)) from error


def request_key(request: Request) -> str:
    """The id a client chose for this request with `Idempotency-Key`, or a new one; HTTPException with 422."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return uuid.uuid4().hex
    if not _KEY.fullmatch(key):
        raise HTTPException(422, "Idempotency-Key: must be 1 to 128 of A-Z a-z 0-9 _ . : -")
    return key


async def _disconnected(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; when the client disconnects, cancel it, and so its queued programs, and raise CLIENT_CLOSED."""
    task = asyncio.current_task()
    assert task is not None
    gone = asyncio.create_task(_disconnected(request))
    awaits = True

    def give_up(_: asyncio.Task[None]) -> None:
        if awaits and not gone.cancelled():
            task.cancel()

    gone.add_done_callback(give_up)
    try:
        return await work
    except asyncio.CancelledError as error:
        if gone.done() and not task.uncancel():
            raise HTTPException(CLIENT_CLOSED, "the client disconnected") from error
        raise
    finally:
        awaits = False
        gone.cancel()


async def error_answer(_request: Request, error: Exception) -> Response:
    """`{"error": message}` with the status of an error that a client can meet."""
    headers = {}
    if isinstance(error, NotQueued):
        status, message = 429 if isinstance(error, QueueFull) else 503, str(error)
        headers = {"Retry-After": f"{error.retry_after_s:.0f}"}
    elif isinstance(error, IdReused):
        status, message = 422, str(error)
    elif isinstance(error, HTTPException):
        status, message = error.status_code, error.detail
        headers = dict(error.headers or {})
    elif isinstance(error, RedisError):
        status, message = 503, f"the queue does not answer: {error}"
        headers = {"Retry-After": "1"}
    else:
        status, message = 500, f"a fault of the judge ({type(error).__name__}); its log has more"
    return JSONResponse({"error": message}, status, headers)


def add_error_answers(app: FastAPI) -> None:
    """Have the framework answer with `error_answer`; it raises other errors again, so that the log has them."""
    for kind in (NotQueued, IdReused, HTTPException, RedisError, Exception):
        app.add_exception_handler(kind, error_answer)
