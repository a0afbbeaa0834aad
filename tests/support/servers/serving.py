"""Serves an application in a thread of the test's process until a block ends, and waits for `rstar2 serve`."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from support.commands import rstar2
from support.waiting import TIMEOUT_S, wait_until


@contextlib.contextmanager
def serve_app(app: ASGIApp, certificate: Path | None = None) -> Iterator[str]:
    """Serve the application until the block ends. Yields its URL.

    Uses TLS if there is a certificate. The certificate's file must also contain the key.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    # On a slow machine, a client notices too late that its idle connection was closed.
    config = uvicorn.Config(
        app,
        log_level="critical",
        timeout_graceful_shutdown=1,
        timeout_keep_alive=3600,
        ssl_certfile=certificate,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        assert thread.is_alive(), "the application could not start"
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(TIMEOUT_S)
        listener.close()
        assert not thread.is_alive()


def wait_for_server(env: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Wait until the only server answers. Returns its entry of `rstar2 serve status`."""
    servers: list[dict[str, Any]] = []

    def answers() -> bool:
        servers[:] = json.loads(rstar2("serve", "status", "--json", env=env).stdout)
        assert len(servers) == 1
        return bool(servers[0]["state"] == "answers")

    wait_until(answers)
    return servers[0]
