"""The judge's HTTP process."""

from __future__ import annotations

import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from rstar2.judge.broker import Broker
from rstar2.judge.codejudge import codejudge_router
from rstar2.judge.http import TokenGuard, add_error_answers
from rstar2.judge.logs import log_to_stderr
from rstar2.judge.native import runs_router
from rstar2.judge.notebook import sessions_router
from rstar2.judge.observe import observe_router
from rstar2.judge.sandboxfusion import sandboxfusion_router
from rstar2.judge.settings import ApiSettings


def create_app(settings: ApiSettings) -> FastAPI:
    """The application; it connects to the queue when it starts."""
    broker = Broker(settings.redis_url, settings.max_queued)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await broker.start()
        yield
        await broker.close()

    app = FastAPI(title="rstar2 judge", lifespan=lifespan, openapi_url=None)
    if settings.token is not None:
        app.add_middleware(TokenGuard, token=settings.token)
    add_error_answers(app)
    for router in (runs_router, sessions_router, codejudge_router, sandboxfusion_router, observe_router):
        app.include_router(router(broker))
    return app


def main() -> None:
    """Serve on the socket the supervisor opened: callers queue up there while this process restarts."""
    log_to_stderr()
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
