"""Serves an application on a free port for the length of a block, in a thread of the test's process."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp
from support.waiting import TIMEOUT_S, wait_until


@contextlib.contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """The URL at which the application answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    # Where the machine is slow, a client learns too late that its connection was closed for being idle.
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1, timeout_keep_alive=3600)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        assert thread.is_alive(), "the application could not start"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(TIMEOUT_S)
        listener.close()
        assert not thread.is_alive()
