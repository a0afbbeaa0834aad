"""Access control: clients need the judge's token and a compatible protocol version. Requests from web pages are always
refused.

A browser lets any web page send requests to loopback. Most requests of web pages, but not all, name the page's origin
in the header `Origin`. If the domain of a page resolves to loopback (DNS rebinding), the page has the same origin as
the judge, but the header `Host` contains the page's domain.
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
"""Requests to these paths need no token, because the answers show only that the service is alive."""
WEB_PAGE = "Origin: the judge refuses requests of web pages"
BAD_TOKEN = "Authorization: wrong or missing token"
UNKNOWN_HOST = (
    "Host: not a name of this judge; start the judge with --allow-host and this name, or with a token"
)
_HEADER = HEADER.lower().encode()


class AccessGuard:
    """ASGI middleware that refuses requests from web pages, requests from incompatible clients, and requests without
    the token.

    A client is incompatible if its protocol version has a different major version than the judge's protocol version.

    Args:
        app: the ASGI application to which allowed requests are passed.
        token: the token that clients must send as `Authorization: Bearer`, or None if the judge has no token. If there
            is a token, any `Host` is allowed, because a web page does not know the token.
        hosts: host names, without port, that are allowed in the header `Host`. `localhost` and IP addresses are always
            allowed.
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
                status, reason = refusal
                answer = JSONResponse({"error": reason}, status, {HEADER: str(PROTOCOL)})
                await answer(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _refusal(self, headers: dict[bytes, bytes], path: str) -> tuple[int, str] | None:
        """Returns the HTTP status and the reason if a request is refused, or None if it is allowed."""
        if b"origin" in headers:
            return 403, WEB_PAGE
        if self.expected is None and not self.is_known_host(headers.get(b"host", b"localhost")):
            return 403, UNKNOWN_HOST
        if path in OPEN_PATHS:
            return None
        authorization = headers.get(b"authorization", b"")
        if self.expected is not None and not hmac.compare_digest(authorization, self.expected):
            return 401, BAD_TOKEN
        version = headers.get(_HEADER)
        if version is not None and not is_compatible(text := version.decode("latin-1")):
            message_and_hint = conflict(
                "this judge", "this client", text, our_update="the judge", their_update="the client's machine"
            )
            return INCOMPATIBLE, ". ".join(message_and_hint)
        return None


def _host_name(host: bytes) -> str:
    """Returns the host name or address in a `Host` header, without the port."""
    text = host.decode("latin-1").lower()
    return text[1 : text.find("]")] if text.startswith("[") else text.partition(":")[0]


def _is_address(host: bytes) -> bool:
    try:
        ipaddress.ip_address(_host_name(host))
    except ValueError:
        return False
    return True
