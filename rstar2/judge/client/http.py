"""A client's HTTP: one aiohttp client per event loop, and requests that are retried until an answer comes.

`rstar2.retry` decides when a request is sent again. It sets no limit here, because each request has a time of its own.
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
"""At the same time, those for programs and for cells together; a cell takes one for as long as it runs."""
CONNECT_S = 10.0
KEEP_S = 30.0
"""How long an idle connection is kept; less than the judge keeps it, which could close it under a request."""
STREAMED_BYTES = 1 << 20
"""aiohttp warns of longer bodies that are no streams."""
TRIED_AGAIN = frozenset({408, 429})
"""Refusals that pass: we were too slow, or the judge is full."""
T = TypeVar("T")


class JudgeError(Failure):
    """The judge cannot be used: wrong token, or nothing like a judge at the URL."""


class NoUrl(JudgeError):
    """What was given is not the URL of a judge."""

    exit_code = 2


class AccessRefused(JudgeError):
    """The judge refuses this client whatever it asks, so asking again is in vain."""

    exit_code = 2


class WrongToken(AccessRefused):
    """The judge asks for another token, or for one."""


class IncompatibleJudge(AccessRefused):
    """The judge speaks another major version of the protocol than this client."""


def check_protocol(url: str, spoken: object) -> None:
    """Raise IncompatibleJudge if a judge says that it speaks a version that this client does not understand.

    Judges up to 0.1.0 and proxies say nothing. What they answer is read as the first version.
    """
    if spoken is not None and not is_compatible(spoken):
        judge = f"the judge at {url}"
        raise IncompatibleJudge(
            *conflict("this client", judge, spoken, we_are="this client", they_are="the judge")
        )


def access_refused(url: str, status: int, headers: Mapping[str, str] | None = None) -> AccessRefused | None:
    """The error for an HTTP status with which the judge at `url` refuses a client; None for every other status."""
    if status == INCOMPATIBLE:
        try:
            check_protocol(url, (headers or {}).get(HEADER))
        except IncompatibleJudge as error:
            return error
    if status == 401:
        return WrongToken(
            f"the judge at {url} refused the token",
            "Give the token that `judge up` was given; if it made one, it is in judge.json in the judge's state "
            "folder.",
        )
    if status == 403:
        return AccessRefused(
            f"the judge at {url} refused: HTTP 403",
            "Start the judge with a token, or give --allow-host with the host name of this URL.",
        )
    return None


def open_http(url: str, token: str | None) -> aiohttp.ClientSession:
    """The HTTP client for one event loop; NoUrl where the URL is none, or names a user beside a token."""
    try:
        parts = yarl.URL(url)
        fit = parts.scheme in ("http", "https") and bool((parts.host or "").strip(".")) and parts.port != 0
        fit = fit and not re.search(r"[\s\x00]", url) and not (token and parts.user)
    except ValueError:
        fit = False
    if not fit:
        raise NoUrl(f"{url!r} is not the URL of a judge", "Give one such as http://127.0.0.1:8088")
    # httpx takes four times the processor time for a request, and knows no WebSockets.
    return aiohttp.ClientSession(
        headers={HEADER: str(PROTOCOL)} | ({"Authorization": f"Bearer {token}"} if token else {}),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=KEEP_S),
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def close_unclosed(connector: aiohttp.BaseConnector, pid: int) -> None:
    """Close what a client that was never closed leaves, which aiohttp would complain of."""
    if os.getpid() != pid:
        # After a fork: closing would take the connections out of the parent's own event loop.
        return
    with contextlib.suppress(Exception):
        # Its event loop may be over; what need not be waited for is done before the first wait.
        closing = connector.close().__await__()
        next(closing, None)


def judge_service() -> Service:
    """The judge as a service that is asked again for as long as the asking call allows."""
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
) -> T:
    """Send a request under one idempotency key, again until a good answer comes.

    Args:
        judge: decides when it is sent again; see `judge_service`.
        wait_s: seconds after which it is given up.
        read: makes of an answer what is returned; raises ValueError for what is no answer of a judge.
        accepted: a status that is a good answer, beside 200 to 299.

    Raises:
        AccessRefused: the judge refuses this client.
        JudgeError: the judge refuses the request, or does not answer in time.
    """
    headers = {"Idempotency-Key": uuid.uuid4().hex, "Content-Type": "application/json"}
    trouble = "no response"

    async def attempt() -> T:
        nonlocal trouble
        # A redirection is an answer like any other; a stream is made anew for every try.
        data = io.BytesIO(body.encode()) if len(body) > STREAMED_BYTES else body
        try:
            async with http.request(method, url, data=data, headers=headers, allow_redirects=False) as answer:
                text = await answer.text(errors="replace")
            if answer.status < 300 or answer.status == accepted:
                return read(text)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            trouble = describe(error)
            raise Unavailable(trouble) from error
        trouble = f"HTTP {answer.status} {text[:300]}"
        if refused := access_refused(url.partition("/v1/")[0], answer.status, answer.headers):
            raise refused
        if answer.status < 500 and answer.status not in TRIED_AGAIN:
            raise JudgeError(f"{method} {url} was refused: {trouble}")
        raise Unavailable(trouble, retry_after_s=retry_after_s(answer.headers))

    try:
        async with asyncio.timeout(wait_s):
            return await judge.call(attempt)
    except TimeoutError as error:
        raise JudgeError(f"{method} {url} was not answered in time: {trouble}") from error


def of_another_server(error: BaseException) -> bool:
    """Whether what went wrong with a question to a judge shows that something else answers at its URL."""
    if isinstance(error, aiohttp.ClientResponseError):
        return 400 <= error.status < 500 and error.status not in TRIED_AGAIN
    return isinstance(error, ValueError)


def retry_after_s(headers: Mapping[str, str] | None) -> float:
    """The seconds that `Retry-After` asks to wait; 0 where it names none, or a date."""
    text = (headers or {}).get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else 0.0


def describe(error: BaseException) -> str:
    """What went wrong, for a person."""
    if isinstance(error, Unavailable):
        return error.message
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect to {error.host}:{error.port}: {error.strerror or error.os_error}"
    return repr(error)
