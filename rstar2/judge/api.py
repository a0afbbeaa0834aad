"""The judge over HTTP: the native endpoints, health and status.

Bodies are read and checked here and not by the framework: it would answer 500 to source that is not valid
Unicode, and refuse a whole batch for one bad item.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import re
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ValidationError
from redis.exceptions import RedisError

from rstar2.judge.broker import Broker, QueueFull
from rstar2.judge.schema import BatchRequest, Isolation, RunRequest, RunResult
from rstar2.judge.settings import ApiSettings

MAX_BODY_BYTES = 64 << 20
STALE_S = 5.0
"""A worker that has not been heard of for so long is not counted."""
T = TypeVar("T")
Model = TypeVar("Model", bound=BaseModel)
_KEY = re.compile(r"[A-Za-z0-9_.:-]{1,128}")


class Refused(Exception):
    """An answer that is not 200.

    Args:
        status: the HTTP status.
        message: what is wrong, and with which field.
    """

    def __init__(self, status: int, message: str, **headers: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


def why(error: ValidationError) -> str:
    """The faults of a request as `field: message`, without echoing what was sent."""
    faults = error.errors(include_url=False, include_input=False, include_context=False)
    return "; ".join(f"{'.'.join(map(str, fault['loc'])) or 'body'}: {fault['msg']}" for fault in faults[:5])


async def read_json(request: Request) -> object:
    """The body of a request.

    Raises:
        Refused: 413 or 400.
    """
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise Refused(413, f"body: longer than {MAX_BODY_BYTES} bytes")
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


def run_key(request: Request) -> str:
    """The id a client chose for this request with `Idempotency-Key`, or a new one."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return uuid.uuid4().hex
    if not _KEY.fullmatch(key):
        raise Refused(422, "Idempotency-Key: must be 1 to 128 of A-Z a-z 0-9 _ . : -")
    return key


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`, and cancel it when the client hangs up, so that its queued programs are dropped.

    Raises:
        Refused: 499, which nobody reads.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_gone(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refused(499, "the client went away")
        return task.result()
    finally:
        for each in (task, gone):
            each.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def run_batch(broker: Broker, key: str, items: list[object]) -> list[str]:
    """Run every item that is a valid request. → results as JSON, in order, a bad item `invalid` alone."""
    texts: dict[int, str] = {}
    good: list[tuple[int, RunRequest]] = []
    for index, item in enumerate(items):
        try:
            good.append((index, RunRequest.model_validate(item)))
        except ValidationError as error:
            result = RunResult(id=f"{key}-{index}", outcome="invalid", stderr=why(error))
            texts[index] = result.model_dump_json()
    results = await broker.run([(f"{key}-{index}", request) for index, request in good])
    texts.update((index, text) for (index, _), text in zip(good, results, strict=True))
    return [texts[index] for index in range(len(items))]


def weakest(workers: list[dict[str, Any]]) -> Isolation | None:
    """The weakest tier among the workers."""
    order: tuple[Isolation, ...] = ("none", "landlock", "strict")
    return min((worker["isolation"] for worker in workers), key=order.index, default=None)


def create_app(settings: ApiSettings) -> FastAPI:
    """The application; it connects to the queue when it starts."""
    broker = Broker(settings.redis_url, settings.max_queued)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await broker.start()
        yield
        await broker.close()

    app = FastAPI(title="rstar2 judge", lifespan=lifespan, openapi_url=None)

    @app.middleware("http")
    async def guard(request: Request, proceed: Callable[[Request], Awaitable[Response]]) -> Response:
        if settings.token is not None and request.url.path != "/health":
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode("latin-1"), f"Bearer {settings.token}".encode()):
                return JSONResponse({"error": "Authorization: wrong or missing token"}, 401)
        return await proceed(request)

    @app.exception_handler(Refused)
    async def refused(_request: Request, error: Refused) -> Response:
        return JSONResponse({"error": error.message}, error.status, error.headers)

    @app.exception_handler(QueueFull)
    async def full(_request: Request, error: QueueFull) -> Response:
        return JSONResponse({"error": str(error)}, 429, {"Retry-After": f"{error.retry_after_s:.0f}"})

    @app.exception_handler(RedisError)
    async def no_queue(_request: Request, error: RedisError) -> Response:
        return JSONResponse({"error": f"the queue does not answer: {error}"}, 503, {"Retry-After": "1"})

    @app.post("/v1/runs")
    async def run(request: Request) -> Response:
        key = run_key(request)
        program = checked(RunRequest, await read_json(request))
        texts = await unless_gone(request, broker.run([(key, program)]))
        return Response(texts[0], media_type="application/json")

    @app.post("/v1/runs/batch")
    async def batch(request: Request) -> Response:
        key = run_key(request)
        items = checked(BatchRequest, await read_json(request)).runs
        texts = await unless_gone(request, run_batch(broker, key, items))
        return Response(f'{{"results":[{",".join(texts)}]}}', media_type="application/json")

    @app.get("/health")
    async def health() -> Response:
        workers = [worker for worker in await broker.workers() if worker["age_s"] < STALE_S]
        status = "ok" if workers else "no workers"
        body = {"status": status, "workers": len(workers), "isolation": weakest(workers)}
        return JSONResponse(body, 200 if workers else 503)

    @app.get("/status")
    async def status() -> Response:
        workers = await broker.workers()
        return JSONResponse(
            {
                "queued": await broker.queued(),
                "waiting": len(broker.waiting),
                "rate": broker.rate,
                "outcomes": await broker.outcomes(),
                "isolation": weakest(workers),
                "workers": workers,
            }
        )

    return app


def main() -> None:
    """Serve on the socket the supervisor opened: callers queue up there while this process restarts."""
    settings = ApiSettings.model_validate_json(sys.stdin.read())
    listener = socket.socket(fileno=settings.socket_fd)
    config = uvicorn.Config(
        create_app(settings),
        log_level="warning",
        access_log=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
