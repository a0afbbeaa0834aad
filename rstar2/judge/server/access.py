"""Who may use the judge: those who know its token, and never a page in somebody's browser.

A browser lets any page send requests to loopback. It names the page in `Origin`, but not in every request; and a page
whose own name is made to lead to loopback (DNS rebinding) counts as of the same origin, but its name is in `Host`.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Sequence
from functools import lru_cache

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = frozenset({"/health", "/ping"})
"""Answered without the token: they tell nothing but that the service lives."""
NO_PAGES = "Origin: the judge answers no requests of web pages"
NO_TOKEN = "Authorization: wrong or missing token"
OTHER_HOST = "Host: this judge is not called so; start it with --allow-host and this name, or with a token"


class AccessGuard:
    """Lets a request pass that no web page sent, with the right `Authorization: Bearer` if there is a token.

    Args:
        token: what clients must send. With one `Host` may be any: a page does not know the token.
        hosts: names in `Host`, without port, beside `localhost` and addresses, which are no names.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: Sequence[str]) -> None:
        self.app = app
        self.expected = None if token is None else f"Bearer {token}".encode()
        names = {"localhost", *(host.lower() for host in hosts)}
        self.is_known_host = lru_cache(64)(lambda host: _host_name(host) in names or _is_address(host))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            fault = self._fault(dict(scope["headers"]), scope["path"])
            if fault is not None:
                answer = JSONResponse({"error": fault}, 401 if fault == NO_TOKEN else 403)
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _fault(self, headers: dict[bytes, bytes], path: str) -> str | None:
        """Why a request may not pass."""
        if b"origin" in headers:
            return NO_PAGES
        if self.expected is None:
            return None if self.is_known_host(headers.get(b"host", b"localhost")) else OTHER_HOST
        given = headers.get(b"authorization", b"")
        return None if path in OPEN_PATHS or hmac.compare_digest(given, self.expected) else NO_TOKEN


def _host_name(host: bytes) -> str:
    """What `Host` names, without the port."""
    text = host.decode("latin-1").lower()
    return text[1 : text.find("]")] if text.startswith("[") else text.partition(":")[0]


def _is_address(host: bytes) -> bool:
    try:
        ipaddress.ip_address(_host_name(host))
    except ValueError:
        return False
    return True
