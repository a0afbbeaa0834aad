"""The HTTP layer of our OpenAI-compatible servers: errors, server-sent events, API keys, CORS and disconnects."""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from rstar2.errors import RStarError, UserError
from rstar2.loop.engine import EngineUnavailable
from rstar2.serve.openai.answers import error_body

log = logging.getLogger(__name__)
CLIENT_CLOSED = 499
"""HTTP status for a client that disconnected before the answer. nginx uses the same status."""
T = TypeVar("T")
_SEND = (
    'send an object such as {"messages": [{"role": "user", "content": "…"}]} with the header '
    "Content-Type: application/json"
)
_KINDS = {
    "bool": "true or false",
    "dict": "an object",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "model": "an object",
    "string": "a text",
}
"""Maps the first word of a pydantic error type, such as `list` in `list_type`, to the kind of value that is
required.
"""


class ApiError(Exception):
    """A rejected request, with its HTTP status. `param` is the name of the wrong field."""

    def __init__(self, message: str, param: str | None = None, status: int = 400, code: str | None = None):
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.code = code


def no_such_model(name: str, served: str) -> ApiError:
    """Returns the error for a request with a model that the server does not have."""
    return ApiError(
        f"The model `{name}` does not exist; this server has `{served}`.",
        "model",
        status=404,
        code="model_not_found",
    )


def error_response(error: Exception) -> tuple[int, dict[str, Any]]:
    """Returns the HTTP status and the body that report an error."""
    if isinstance(error, ApiError):
        return error.status, error_body(error.message, error.status, error.param, error.code)
    if isinstance(error, UserError):
        return 400, error_body(str(error), 400)
    if not isinstance(error, RStarError):
        return 500, error_body("the server failed on this request; see the server's log", 500)
    # The agent loop wraps an engine's error in its own.
    unavailable = isinstance(error, EngineUnavailable) or isinstance(error.__cause__, EngineUnavailable)
    status = 503 if unavailable else 500
    return status, error_body(str(error), status)


def add_errors(app: FastAPI) -> None:
    """Install handlers that answer every error of the application in the shape of OpenAI's API."""

    async def refused(_request: Request, error: Exception) -> Response:
        status, body = error_response(error)
        return JSONResponse(body, status_code=status)

    async def invalid(_request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        message, field = _validation_message(error.errors())
        return JSONResponse(error_body(message, 400, field), status_code=400)

    async def plain(_request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        return JSONResponse(error_body(str(error.detail), error.status_code), status_code=error.status_code)

    app.add_exception_handler(ApiError, refused)
    app.add_exception_handler(RStarError, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, plain)
    # The server also logs the traceback of such an error.
    app.add_exception_handler(Exception, refused)


def _validation_message(faults: Sequence[Any]) -> tuple[str, str | None]:
    """Returns a message for pydantic's errors about a request body, and the name of the wrong field. The name is None
    if the whole body is wrong.
    """
    message = str(faults[0]["msg"]).removeprefix("Value error, ")
    if faults[0]["type"] == "json_invalid":
        return f"the body is not JSON ({faults[0]['ctx']['error']}): {_SEND}", None
    path = [str(part) for part in faults[0]["loc"] if part != "body"]
    if not path:
        # FastAPI reads JSON only from a body with a content type of JSON.
        not_json = faults[0]["type"] in ("missing", "dict_type", "model_type", "model_attributes_type")
        return (f"the body was not read as a JSON object: {_SEND}" if not_json else message), None
    if faults[0]["type"] == "missing":
        return f"{'.'.join(path)} is missing", path[0]
    if faults[0]["type"] == "extra_forbidden":
        return f"{'.'.join(path)} is not supported: this server does not know it", path[0]
    if len(faults) > 1 and {str(fault["loc"][1]) for fault in faults} == {path[0]}:
        # Pydantic gives an error for each type that the field may have.
        return f"{path[0]}: the value has none of the accepted types", path[0]
    if kind := _KINDS.get(faults[0]["type"].partition("_")[0]):
        return f"{'.'.join(path)}: {_brief(faults[0]['input'])} is not {kind}", path[0]
    if message.startswith("Input should "):
        message = f"{_brief(faults[0]['input'])} {message.replace('Input should', 'has to', 1)}"
    return f"{'.'.join(path)}: {message}", path[0]


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:40]}…"


def require_key(app: FastAPI, key: str | None) -> None:
    """Refuse requests under /v1 that do not send `Authorization: Bearer KEY`. If `key` is None, no key is required."""
    if key is None:
        return

    @app.middleware("http")
    async def check(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        # The scheme's name has no case (RFC 9110, 11.1).
        scheme, _, client_key = request.headers.get("authorization", "").partition(" ")
        authorized = scheme.lower() == "bearer" and hmac.compare_digest(
            client_key.strip().encode(), key.encode()
        )
        if request.url.path.startswith("/v1") and not authorized:
            body = error_body("wrong or missing API key", 401, code="invalid_api_key")
            return JSONResponse(body, status_code=401)
        return await call_next(request)


def allow_pages(app: FastAPI, origins: Sequence[str]) -> None:
    """Let web pages of these origins, such as `http://localhost:3000`, send requests (CORS). The origin `*` stands for
    every page.

    Call this function after `require_key`, because a browser's preflight request has no key.
    """
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=[*origins], allow_methods=["GET", "POST"], allow_headers=["*"]
        )


def streamed(events: AsyncGenerator[dict[str, Any], None]) -> StreamingResponse:
    """Returns a response that sends objects as server-sent events.

    An error becomes the last event. The stream ends early if the client disconnects.
    """

    async def lines() -> AsyncIterator[str]:
        try:
            async for event in events:
                yield f"data: {json.dumps(event, ensure_ascii=False)}\n\n"
        except Exception as error:
            if not isinstance(error, RStarError | ApiError):
                log.exception("a stream failed")
            yield f"data: {json.dumps(error_response(error)[1])}\n\n"
        finally:
            await events.aclose()
        yield "data: [DONE]\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-cache"})


async def while_connected(request: Request, work: Coroutine[Any, Any, T]) -> T | Response:
    """Returns the result of `work`. If the client disconnects, `work` is cancelled and the response has status 499."""
    working = asyncio.ensure_future(work)
    disconnecting = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, disconnecting}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else Response(status_code=CLIENT_CLOSED)
    finally:
        working.cancel()
        disconnecting.cancel()
        await asyncio.wait({working, disconnecting})


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
