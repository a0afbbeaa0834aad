"""The judge's HTTP process: takes requests, puts programs on the queue, answers with their results."""

from __future__ import annotations

import asyncio
import logging
import resource
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI
from starlette.types import ASGIApp

from rstar2 import __version__
from rstar2.judge.fail_fast import fail_fast, on_loop_error
from rstar2.judge.schema import MAX_MESSAGE_BYTES
from rstar2.judge.server.access import AccessGuard
from rstar2.judge.server.codejudge import codejudge_router
from rstar2.judge.server.dispatcher import Dispatcher
from rstar2.judge.server.http import BodyBudget, ServerState, add_error_answers
from rstar2.judge.server.metrics import metrics_router
from rstar2.judge.server.runs import runs_router
from rstar2.judge.server.sandboxfusion import sandboxfusion_router
from rstar2.judge.server.sessions import sessions_router
from rstar2.judge.server.settings import ServerSettings
from rstar2.judge.server.websocket import websocket_router
from rstar2.processes import begin_module

MAX_HEAD_BYTES = 64 << 10
"""The longest head of a request, and the longest trailer of a body."""
PING_S = 20.0
SILENT_S = 120.0
"""A WebSocket is closed if its client answers no ping for this long; a busy event loop may take a while."""


def create_app(settings: ServerSettings) -> ASGIApp:
    """The application; it connects to the queue when it starts."""
    limits = settings.limits
    dispatcher = Dispatcher(settings.redis_url, limits.max_queued, limits.max_queued_bytes)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[ServerState]:
        asyncio.get_running_loop().set_exception_handler(on_loop_error)
        await dispatcher.start()
        yield {"read_s": limits.read_s, "bodies": BodyBudget(limits.max_body_bytes)}
        await dispatcher.close()

    # Without a token it listens on loopback only, and there is nobody from whom to keep what it offers.
    openapi_url = "/openapi.json" if settings.token is None else None
    app = FastAPI(
        title="rstar2 judge",
        version=__version__,
        lifespan=lifespan,
        openapi_url=openapi_url,
        # A browser would send an Origin with what is tried out.
        swagger_ui_parameters={"supportedSubmitMethods": []},
    )
    add_error_answers(app)
    for router in (
        runs_router,
        websocket_router,
        sessions_router,
        codejudge_router,
        sandboxfusion_router,
        metrics_router,
    ):
        app.include_router(router(dispatcher))
    return AccessGuard(app, settings.token, settings.hosts)


def without_traceback(record: logging.LogRecord) -> bool:
    """A filter for uvicorn's log: of a message that is no UTF-8, which any client can send, it logs one line."""
    if record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError):
        record.exc_info = None
    return True


def main() -> None:
    """Serve on the socket the supervisor opened: connections wait there while this process restarts."""
    settings = begin_module(ServerSettings)
    logging.getLogger("uvicorn.error").addFilter(without_traceback)
    # One file for each request that waits, and clients may make as many as they like.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    listener = socket.socket(fileno=settings.socket_fd)
    # Connections inherit both. They end those whose client reads nothing more, and those whose client has vanished.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.limits.unread_s * 1000))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    config = uvicorn.Config(
        create_app(settings),
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
        # It limits heads, and does not take in requests that are sent ahead.
        http="h11",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=PING_S,
        ws_ping_timeout=SILENT_S,
        ws_per_message_deflate=False,
    )
    server = uvicorn.Server(config)
    with fail_fast():
        server.run(sockets=[listener])
    if not server.started:
        sys.exit(1)


if __name__ == "__main__":
    main()
