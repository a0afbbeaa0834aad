"""Who may use the judge: those who know its token and speak its protocol, and never a page in somebody's browser.

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

from rstar2.judge.protocol_version import HEADER, INCOMPATIBLE, PROTOCOL, conflict, is_compatible

OPEN_PATHS = frozenset({"/health", "/ping"})
"""Answered without the token: they tell nothing but that the service lives."""
NO_PAGES = "Origin: the judge answers no requests of web pages"
NO_TOKEN = "Authorization: wrong or missing token"
_HEADER = HEADER.lower().encode()
OTHER_HOST = "Host: this judge is not called so; start it with --allow-host and this name, or with a token"


class AccessGuard:
    """Lets a request pass that no web page sent, with the right `Authorization: Bearer` if there is a token.

    A client that says which version of the protocol it speaks must speak the judge's major version.

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
            refusal = self._refusal(dict(scope["headers"]), scope["path"])
            if refusal is not None:
                status, fault = refusal
                answer = JSONResponse({"error": fault}, status, {HEADER: str(PROTOCOL)})
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refusal(self, headers: dict[bytes, bytes], path: str) -> tuple[int, str] | None:
        """Returns the status and the reason if a request may not pass."""
        if b"origin" in headers:
            return 403, NO_PAGES
        if self.expected is None and not self.is_known_host(headers.get(b"host", b"localhost")):
            return 403, OTHER_HOST
        if path in OPEN_PATHS:
            return None
        authorization = headers.get(b"authorization", b"")
        if self.expected is not None and not hmac.compare_digest(authorization, self.expected):
            return 401, NO_TOKEN
        spoken = headers.get(_HEADER)
        if spoken is not None and not is_compatible(text := spoken.decode("latin-1")):
            fault = conflict(
                "this judge", "this client", text, we_are="the judge", they_are="the client's machine"
            )
            return INCOMPATIBLE, ". ".join(fault)
        return None


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
