"""Errors in OpenAI's shape, the key that clients must send, and what happens when a client leaves."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from rstar2.engines.base import EngineUnavailable
from rstar2.errors import RStarError, UserError

CLIENT_CLOSED = 499
"""The status of an answer that nobody reads; nginx's."""
T = TypeVar("T")


class ApiError(Exception):
    """A request that is refused, with the HTTP status; `param` names the field that is at fault."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code


def error_body(
    message: str, status: int, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """What OpenAI's API sends with a status that is not 200."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def described(error: Exception) -> tuple[int, dict[str, Any]]:
    """The status and body of an error that a request met."""
    if isinstance(error, ApiError):
        return error.status, error_body(error.message, error.status, error.param, error.code)
    if isinstance(error, UserError):
        return 400, error_body(str(error), 400)
    status = 503 if isinstance(error, EngineUnavailable) else 500
    return status, error_body(str(error), status)


def add_errors(app: FastAPI) -> None:
    """Have every error of the application answered in OpenAI's shape."""

    async def refused(_request: Request, error: Exception) -> Response:
        status, body = described(error)
        return JSONResponse(body, status_code=status)

    async def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fault = error.errors()[0]
        field = ".".join(str(part) for part in fault["loc"] if part != "body")
        said = str(fault["msg"]).removeprefix("Value error, ")
        message = f"{field}: {said}" if field else said
        return JSONResponse(error_body(message, 400, field or None), status_code=400)

    async def plain(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse(error_body(str(error.detail), error.status_code), status_code=error.status_code)

    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(RStarError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, plain)


def require_key(app: FastAPI, key: str | None) -> None:
    """Refuse requests under /v1 that do not send `Authorization: Bearer KEY`; without a key none is."""
    if key is None:
        return

    @app.middleware("http")
    async def check(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        sent = request.headers.get("authorization", "").removeprefix("Bearer ")
        if request.url.path.startswith("/v1") and not hmac.compare_digest(sent.encode(), key.encode()):
            body = error_body("wrong or missing API key", 401, code="invalid_api_key")
            return JSONResponse(body, status_code=401)
        return await call_next(request)


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | Response:
    """The result of `work`, which is cancelled if the client leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else Response(status_code=CLIENT_CLOSED)
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.wait({working, leaving})


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
