"""What all endpoints share: reading and checking a request, the token, the client that hangs up.

Bodies are read and checked here and not by the framework: it would answer 500 to source that is not valid
Unicode, and refuse a whole batch for one bad item.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from redis.exceptions import RedisError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from rstar2.judge.schema import CHOSEN_ID, MAX_MESSAGE_BYTES
from rstar2.judge.server.dispatcher import QueueFull

MAX_NAME_CHARS = 200
OPEN_PATHS = frozenset({"/health", "/ping"})
"""Answered without the token: they tell nothing but that the service lives."""
log = logging.getLogger(__name__)
T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
Endpoint = Callable[[Request], Awaitable[Response]]
_KEY = re.compile(CHOSEN_ID)


class Refused(Exception):
    """An answer that is not 200.

    Args:
        status: the HTTP status.
        message: what is wrong, and with which field.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class TokenGuard:
    """Lets a request pass only with the right `Authorization: Bearer`."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self.app = app
        self.expected = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket") and scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self.expected):
                answer = JSONResponse({"error": "Authorization: wrong or missing token"}, 401)
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)


def why(error: ValidationError) -> str:
    """The faults of a request as `field: message`, without echoing what was sent."""
    faults = error.errors(include_url=False, include_context=False)
    return "; ".join(f"{_field(fault)}: {fault['msg']}" for fault in faults[:5])


def _field(fault: ErrorDetails) -> str:
    """The name of a field, which the caller chose if there is no such field: cut, and encodable."""
    place = fault["loc"]
    if not place and fault["type"] == "string_unicode":
        # Only the name of a field is faulted so without a place; it is the input.
        place = (str(fault["input"]),)
    name = ".".join(map(str, place)) or "body"
    return name[:MAX_NAME_CHARS].encode(errors="backslashreplace").decode()


async def read_json(request: Request) -> object:
    """The body of a request.

    Raises:
        Refused: 413 or 400; 499 where the client went away.
    """
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_MESSAGE_BYTES:
                raise Refused(413, f"body: longer than {MAX_MESSAGE_BYTES} bytes")
    except ClientDisconnect as error:
        raise Refused(499, "the client went away") from error
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused(400, f"body: not JSON: {error}") from error


def checked(model: type[Model], data: object) -> Model:
    """`data` as `model`.

    Raises:
        Refused: 422 that names the field.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise Refused(422, why(error)) from error


def request_key(request: Request) -> str:
    """The id a client chose for this request with `Idempotency-Key`, or a new one.

    Raises:
        Refused: 422.
    """
    key = request.headers.get("idempotency-key")
    if key is None:
        return uuid.uuid4().hex
    if not _KEY.fullmatch(key):
        raise Refused(422, "Idempotency-Key: must be 1 to 128 of A-Z a-z 0-9 _ . : -")
    return key


async def disconnected(request: Request) -> None:
    """Return when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and cancel it when the client hangs up, so that its queued programs are dropped.

    Raises:
        Refused: 499, which nobody reads.
    """
    task = asyncio.current_task()
    assert task is not None
    gone = asyncio.create_task(disconnected(request))
    awaits = True

    def give_up(_: asyncio.Task[None]) -> None:
        if awaits and not gone.cancelled():
            task.cancel()

    gone.add_done_callback(give_up)
    try:
        return await work
    except asyncio.CancelledError as error:
        if gone.done() and not task.uncancel():
            raise Refused(499, "the client went away") from error
        raise
    finally:
        awaits = False
        gone.cancel()


def error_answer(error: Exception) -> Response:
    """`{"error": message}` with the status of an error that a caller can meet."""
    headers = {}
    if isinstance(error, Refused):
        status, message = error.status, error.message
    elif isinstance(error, QueueFull):
        status, message = 429, str(error)
        headers = {"Retry-After": f"{error.retry_after_s:.0f}"}
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

    async def answer(_request: Request, error: Exception) -> Response:
        return error_answer(error)

    for kind in (Refused, QueueFull, HTTPException, RedisError, Exception):
        app.add_exception_handler(kind, answer)


class Direct:
    """Endpoints for POST in front of the framework, whose way to one takes longer than all that they do.

    Args:
        app: serves everything else.
        endpoints: by path.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, Endpoint]) -> None:
        self.app = app
        self.endpoints = endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        endpoint = self.endpoints.get(scope["path"]) if scope["type"] == "http" else None
        if endpoint is None:
            await self.app(scope, receive, send)
            return
        try:
            if scope["method"] != "POST":
                raise HTTPException(405, headers={"Allow": "POST"})
            response = await endpoint(Request(scope, receive))
        except Exception as error:
            response = error_answer(error)
            if response.status_code == 500:
                log.exception("%s", scope["path"])
        await response(scope, receive, send)
