"""HTTP for the judge's clients: one aiohttp session per event loop, and requests with retries.

`rstar2.retry` decides when a request is sent again. The clients' retry policy limits neither the number of tries nor
the time, because each request has its own time limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import re
import uuid
from collections.abc import Callable, Mapping
from typing import TypeVar

import aiohttp
import yarl

from rstar2.errors import Failure, Unavailable
from rstar2.judge.protocol_version import HEADER, INCOMPATIBLE, PROTOCOL, conflict, is_compatible
from rstar2.retry import Pauses, RetryPolicy, Service

PAUSES = Pauses(first_s=0.1, longest_s=5.0)
CONNECTIONS = 512
"""Maximum number of open connections per event loop. A cell uses one connection while it runs."""
CONNECT_S = 10.0
KEEPALIVE_S = 30.0
"""The client closes a connection that was idle for this many seconds. The judge's own idle timeout is longer, so the
judge does not close a connection while the client sends a request on it."""
STREAM_ABOVE_BYTES = 1 << 20
"""A request body of more than this many bytes is sent as a stream, because aiohttp warns about a long body that is not
a stream."""
RETRIED_STATUSES = frozenset({408, 429})
"""HTTP statuses below 500 after which a request is retried: 408 if the client was too slow, 429 if the judge is
full."""
T = TypeVar("T")


class JudgeError(Failure):
    """The judge cannot be used: it does not answer, it refuses the request, or the URL does not lead to a judge."""


class NotAJudgeUrl(JudgeError):
    """A URL that is malformed, or that does not lead to a judge."""

    exit_code = 2


class AccessRefused(JudgeError):
    """The judge refuses every request of this client, so a retry is useless."""

    exit_code = 2


class WrongToken(AccessRefused):
    """The judge requires a token, and the client sent no token or a wrong token."""


class IncompatibleJudge(AccessRefused):
    """The judge has another major version of the protocol than this client."""


def check_protocol(url: str, version_text: object) -> None:
    """Raises IncompatibleJudge if the judge names a protocol version that this client does not understand.

    `version_text` is None for proxies, and for judges up to version 0.1.0. An answer without a version counts as an
    answer of version 1.
    """
    if version_text is not None and not is_compatible(version_text):
        judge = f"the judge at {url}"
        raise IncompatibleJudge(
            *conflict("this client", judge, version_text, our_update="this client", their_update="the judge")
        )


def access_refused(url: str, status: int, headers: Mapping[str, str] | None = None) -> AccessRefused | None:
    """Returns the error for an HTTP status with which the judge refuses a client, or None for any other status."""
    if status == INCOMPATIBLE:
        try:
            check_protocol(url, (headers or {}).get(HEADER))
        except IncompatibleJudge as error:
            return error
    if status == 401:
        return WrongToken(
            f"the judge at {url} refused the token",
            "Use the token that `rstar2 judge up` was started with. If it generated one, the token is in judge.json in "
            "the judge's state folder.",
        )
    if status == 403:
        return AccessRefused(
            f"the judge at {url} refused the request: HTTP 403",
            "Start the judge with a token, or with --allow-host and the host name of this URL.",
        )
    return None


def open_http(url: str, token: str | None) -> aiohttp.ClientSession:
    """Returns an HTTP session for the running event loop.

    Raises NotAJudgeUrl if the URL is malformed, or if the URL contains a user name although a token is set.
    """
    try:
        parts = yarl.URL(url)
        valid = parts.scheme in ("http", "https") and bool((parts.host or "").strip(".")) and parts.port != 0
        valid = valid and not re.search(r"[\s\x00]", url) and not (token and parts.user)
    except ValueError:
        valid = False
    if not valid:
        raise NotAJudgeUrl(f"{url!r} is not the URL of a judge", "Give one such as http://127.0.0.1:8088")
    # httpx needs four times the CPU time for a request, and does not support WebSockets.
    return aiohttp.ClientSession(
        headers={HEADER: str(PROTOCOL)} | ({"Authorization": f"Bearer {token}"} if token else {}),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=KEEPALIVE_S),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def close_unclosed(connector: aiohttp.BaseConnector, pid: int) -> None:
    """Close the connections of a garbage-collected client that never called `aclose`, so that aiohttp does not warn.

    Args:
        connector: the aiohttp connector that holds the client's connections.
        pid: id of the process that opened the connections. In a process with a different id, the function does nothing.
    """
    if os.getpid() != pid:
        # After a fork, closing would remove the connections from the parent's event loop.
        return
    with contextlib.suppress(Exception):
        # The event loop may be closed, so this runs `close` only up to its first wait. That closes the sockets.
        closing = connector.close().__await__()
        next(closing, None)


def judge_service() -> Service:
    """Returns a retry `Service`, which decides when a request to the judge is sent again.

    The service never gives up by itself, because each request has its own time limit.
    """
    unlimited = float("inf")
    return RetryPolicy(unlimited, PAUSES, attempts=unlimited, first_answer_s=unlimited).service("judge")


async def request(
    judge: Service,
    http: aiohttp.ClientSession,
    method: str,
    url: str,
    body: str,
    wait_s: float,
    read: Callable[[str], T],
    accepted: int = 200,
    on_no_answer: Callable[[str], None] | None = None,
) -> T:
    """Send an HTTP request to the judge, and send it again after temporary errors.

    All tries of one request carry the same idempotency key.

    Args:
        judge: the retry `Service` that decides when the request is sent again; see `judge_service`.
        http: the aiohttp session that sends the request.
        method: HTTP method.
        url: full URL of the endpoint.
        body: the request's body as JSON.
        wait_s: time limit in seconds, including all retries.
        read: a function that converts the body of a successful answer. `read` raises ValueError if the body cannot come
            from a judge.
        accepted: one more status that counts as success, in addition to 200 to 299.
        on_no_answer: called after each try that got no HTTP answer, with a description of the error.

    Returns:
        The return value of `read`.

    Raises:
        AccessRefused: the judge refuses this client.
        JudgeError: the judge refuses the request, or does not answer in time.
    """
    headers = {"Idempotency-Key": uuid.uuid4().hex, "Content-Type": "application/json"}
    trouble = "no response"

    async def attempt() -> T:
        nonlocal trouble
        # Each try needs a new stream. Redirects are not followed: a judge sends none.
        data = io.BytesIO(body.encode()) if len(body) > STREAM_ABOVE_BYTES else body
        try:
            async with http.request(method, url, data=data, headers=headers, allow_redirects=False) as answer:
                text = await answer.text(errors="replace")
            if answer.status < 300 or answer.status == accepted:
                return read(text)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            trouble = describe(error)
            if on_no_answer is not None and not isinstance(error, ValueError):
                on_no_answer(trouble)
            raise Unavailable(trouble) from error
        trouble = f"HTTP {answer.status} {text[:300]}"
        if refused := access_refused(url.partition("/v1/")[0], answer.status, answer.headers):
            raise refused
        if answer.status < 500 and answer.status not in RETRIED_STATUSES:
            raise JudgeError(f"{method} {url} was refused: {trouble}")
        raise Unavailable(trouble, retry_after_s=retry_after_s(answer.headers))

    try:
        async with asyncio.timeout(wait_s):
            return await judge.call(attempt)
    except TimeoutError as error:
        raise JudgeError(f"{method} {url} was not answered in time: {trouble}") from error


def is_from_another_server(error: BaseException) -> bool:
    """Returns whether an error of a request shows that the server at the URL is not a judge."""
    if isinstance(error, aiohttp.ClientResponseError):
        return 400 <= error.status < 500 and error.status not in RETRIED_STATUSES
    return isinstance(error, ValueError)


def retry_after_s(headers: Mapping[str, str] | None) -> float:
    """Returns the seconds in the header `Retry-After`, or 0 if the header is missing or holds a date."""
    text = (headers or {}).get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else 0.0


def describe(error: BaseException) -> str:
    """Returns a readable description of a failed request."""
    if isinstance(error, Unavailable):
        return error.message
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect to {error.host}:{error.port}: {error.strerror or error.os_error}"
    return repr(error)
