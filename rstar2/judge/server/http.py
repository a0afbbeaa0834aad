"""Functions for all HTTP endpoints: they read and validate requests, notice disconnected clients, and answer errors.

In the judge, FastAPI does not read or validate the bodies of requests. FastAPI would answer source code that is not
valid Unicode with status 500, and would refuse a whole batch because of one bad item.
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
from rstar2.judge.schema import MAX_MESSAGE_BYTES, RUN_ID_PATTERN, RunResult
from rstar2.judge.server.dispatcher import IdReused, NotQueued, QueueFull

MAX_NAME_CHARS = 200
BODIES_RETRY_S = 1.0
"""Seconds in the header `Retry-After` if a request is refused because the bodies that are being received together take
too much memory."""
CLIENT_CLOSED = 499
"""HTTP status of the answer to a client that has disconnected. nginx uses the same number."""
T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
_RUN_ID = re.compile(RUN_ID_PATTERN)


class BodyBudget:
    """Counts the bytes of all request bodies that are being received, on all connections together."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.received_bytes = 0

    @property
    def is_exceeded(self) -> bool:
        return self.received_bytes > self.max_bytes


class ServerState(TypedDict):
    """The application's state, which is available in every request as `request.state`."""

    read_s: float
    """Idle timeout in seconds while the body of a request is received."""
    bodies: BodyBudget


def validation_message(error: ValidationError) -> str:
    """Returns the first errors of a request as `field: message`.

    The returned text does not contain values that the client sent.
    """
    details = error.errors(include_url=False, include_context=False)
    return "; ".join(f"{_field_name(detail)}: {detail['msg']}" for detail in details[:5])


def invalid_result(run_id: str, error: ValidationError) -> str:
    """Returns, as JSON, the result of a program whose request is invalid."""
    return RunResult(id=run_id, outcome="invalid", stderr=validation_message(error)).model_dump_json()


def _field_name(detail: ErrorDetails) -> str:
    """Returns the name of an invalid field.

    The returned name is shortened and made valid UTF-8, because a client can send any name.
    """
    location = detail["loc"]
    if not location and detail["type"] == "string_unicode":
        # This error has no location only if the name of the field itself is not Unicode. The input is then that name.
        location = (str(detail["input"]),)
    name = ".".join(map(str, location)) or "body"
    return name[:MAX_NAME_CHARS].encode(errors="backslashreplace").decode()


def openapi_schemas(body: type[BaseModel], answer: type[BaseModel] | None = None) -> dict[str, Any]:
    """Returns arguments for a FastAPI route that describe its request body and answer in the OpenAPI document."""
    content = {"content": {"application/json": {"schema": body.model_json_schema()}}, "required": True}
    answers: dict[int | str, dict[str, Any]] = {200: {"model": answer}} if answer is not None else {}
    return {"openapi_extra": {"requestBody": content}, "responses": answers}


async def read_json(request: Request) -> object:
    """Read the body of a request as JSON. An empty body counts as `{}`.

    Raises:
        HTTPException: the request is refused. The status is 400 if the body is not JSON, 408 if the client sends
            nothing for too long, 413 if the body is too long, and CLIENT_CLOSED if the client disconnected.
        QueueFull: the bodies that are being received together take too much memory.
    """
    body = bytearray()
    bodies: BodyBudget = request.state.bodies
    read_s: float = request.state.read_s
    try:
        async with asyncio.timeout(read_s) as silence:
            async for chunk in request.stream():
                silence.reschedule(asyncio.get_running_loop().time() + read_s)
                body += chunk
                bodies.received_bytes += len(chunk)
                if len(body) > MAX_MESSAGE_BYTES:
                    raise HTTPException(413, f"body: longer than {MAX_MESSAGE_BYTES} bytes")
                if bodies.is_exceeded:
                    raise QueueFull("the judge is receiving too many bytes at once", BODIES_RETRY_S)
    except TimeoutError as error:
        message = f"body: no data arrived for {read_s:.0f} s"
        raise HTTPException(408, message, headers={"Connection": "close"}) from error
    except ClientDisconnect as error:
        raise HTTPException(CLIENT_CLOSED, "the client disconnected") from error
    finally:
        bodies.received_bytes -= len(body)
    try:
        return json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise HTTPException(400, f"body: not JSON: {error}") from error


def validated(model: type[Model], data: object, request: Request | None = None) -> Model:
    """Validate `data`. If fields are invalid, raises HTTPException with status 422 and the names of the invalid fields.

    Args:
        model: the type to return.
        data: the request's body.
        request: the request if the endpoint is for rstar2 clients, or None for other endpoints. Later versions of
            rstar2 clients may send unknown fields, which are then ignored.
    """
    extra = None if request is None else unknown_fields(request.headers.get(HEADER))
    try:
        return model.model_validate(data, extra=extra)
    except ValidationError as error:
        raise HTTPException(422, validation_message(error)) from error


def request_key(request: Request) -> str:
    """Returns the `Idempotency-Key` of a request, or a new id if it has none.

    Raises HTTPException with status 422 if the key does not match `RUN_ID_PATTERN`.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return uuid.uuid4().hex
    if not _RUN_ID.fullmatch(key):
        raise HTTPException(422, "Idempotency-Key: must be 1 to 128 characters of A-Z a-z 0-9 _ . : -")
    return key


async def _wait_for_disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work` and return its result. If the client disconnects, cancel `work`.

    Cancelling `work` also cancels the programs that it queued. Raises HTTPException with status CLIENT_CLOSED if the
    client disconnects.
    """
    task = asyncio.current_task()
    assert task is not None
    disconnect = asyncio.create_task(_wait_for_disconnect(request))
    is_waiting = True

    def cancel_work(_: asyncio.Task[None]) -> None:
        if is_waiting and not disconnect.cancelled():
            task.cancel()

    disconnect.add_done_callback(cancel_work)
    try:
        return await work
    except asyncio.CancelledError as error:
        if disconnect.done() and not task.uncancel():
            raise HTTPException(CLIENT_CLOSED, "the client disconnected") from error
        raise
    finally:
        is_waiting = False
        disconnect.cancel()


async def error_answer(_request: Request, error: Exception) -> Response:
    """Returns `{"error": message}` with the HTTP status that belongs to an error."""
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
        status, message = 500, f"an error inside the judge ({type(error).__name__}); see its log"
    return JSONResponse({"error": message}, status, headers)


def add_error_answers(app: FastAPI) -> None:
    """Make FastAPI answer errors with `error_answer`. FastAPI also logs unexpected errors."""
    for kind in (NotQueued, IdReused, HTTPException, RedisError, Exception):
        app.add_exception_handler(kind, error_answer)
