"""The judge's HTTP process: receives requests, puts programs into the queue, and answers with their results."""

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
"""Maximum number of bytes in a request's headers, and in the trailers after its body."""
PING_S = 20.0
PONG_TIMEOUT_S = 120.0
"""A WebSocket is closed if its client does not answer a ping within this many seconds. The limit is long because a busy
client may answer a ping late."""


def create_app(settings: ServerSettings) -> ASGIApp:
    """Returns the ASGI application of the judge. The application connects to the queue when it starts."""
    limits = settings.limits
    dispatcher = Dispatcher(settings.redis_url, limits.max_queued, limits.max_queued_bytes)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[ServerState]:
        asyncio.get_running_loop().set_exception_handler(on_loop_error)
        await dispatcher.start()
        yield {"read_s": limits.read_s, "bodies": BodyBudget(limits.max_body_bytes)}
        await dispatcher.close()

    # The API description is public only if there is no token: the judge then listens on loopback only.
    openapi_url = "/openapi.json" if settings.token is None else None
    app = FastAPI(
        title="rstar2 judge",
        version=__version__,
        lifespan=lifespan,
        openapi_url=openapi_url,
        # "Try it out" cannot work: the browser would send an Origin header, which the judge refuses.
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


def drop_decode_traceback(record: logging.LogRecord) -> bool:
    """Log filter for uvicorn.

    Removes the traceback of a message that is not UTF-8 from the log, because any client can send such a message.
    """
    if record.exc_info and isinstance(record.exc_info[1], UnicodeDecodeError):
        record.exc_info = None
    return True


def main() -> None:
    """Serve on the socket that the supervisor opened.

    While the HTTP process restarts, new connections wait in this socket.
    """
    settings = begin_module(ServerSettings)
    logging.getLogger("uvicorn.error").addFilter(drop_decode_traceback)
    # Each waiting request needs a file descriptor, and the number of requests is not limited.
    _, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard_limit, hard_limit))
    listener = socket.socket(fileno=settings.socket_fd)
    # Connections inherit both options. The first ends connections whose client stops reading, the second connections
    # whose client has vanished.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(settings.limits.unread_s * 1000))
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    config = uvicorn.Config(
        create_app(settings),
        log_config=None,
        access_log=False,
        proxy_headers=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
        # h11 limits the size of headers, and does not buffer pipelined requests.
        http="h11",
        h11_max_incomplete_event_size=MAX_HEAD_BYTES,
        ws="websockets-sansio",
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=PING_S,
        ws_ping_timeout=PONG_TIMEOUT_S,
        ws_per_message_deflate=False,
    )
    server = uvicorn.Server(config)
    with fail_fast():
        server.run(sockets=[listener])
    if not server.started:
        sys.exit(1)


if __name__ == "__main__":
    main()
