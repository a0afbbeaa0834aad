"""Lets the vLLM client keep hundreds of HTTP requests in flight, each on a connection of its own.

httpx's connection pool looks at every connection for each connection it holds whenever a request starts or
ends; from some hundred on that takes longer than the requests. Here each request borrows a pool of one.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable

import httpx


class OneConnectionEach(httpx.AsyncBaseTransport):
    """As many one-connection pools as there were requests in flight at most, kept alive and used again.

    Args:
        scheme: `http` or `https`; a request by another one is httpx.UnsupportedProtocol.
        proxy: the URL of the proxy that all requests go through.
    """

    def __init__(self, scheme: str, proxy: str | None = None) -> None:
        self._scheme = scheme
        self._proxy = proxy
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._all: list[httpx.AsyncHTTPTransport] = []
        self._closing: set[asyncio.Future[None]] = set()
        # Reading the certificate store takes tens of milliseconds: once for all pools, and not without TLS.
        self._tls = ssl.create_default_context() if scheme == "https" else False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if request.url.scheme != self._scheme:
            raise httpx.UnsupportedProtocol(f"{request.url} in place of {self._scheme}", request=request)
        pool = self._idle.pop() if self._idle else self._open()

        def release(clean: bool) -> None:
            if clean:
                self._idle.append(pool)
            else:
                self._discard(pool)

        try:
            response = await pool.handle_async_request(request)
        except BaseException:
            release(clean=False)
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _ReleasingStream(response.stream, release)
        return response

    async def aclose(self) -> None:
        await asyncio.gather(*self._closing)
        for pool in self._all:
            await pool.aclose()

    def _discard(self, pool: httpx.AsyncHTTPTransport) -> None:
        """Close a pool whose request was interrupted.

        It may believe for ever that its only connection is in use: httpx does not finish closing a response if its task
        is cancelled meanwhile.
        """
        self._all.remove(pool)
        closing = asyncio.ensure_future(pool.aclose())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _open(self) -> httpx.AsyncHTTPTransport:
        pool = httpx.AsyncHTTPTransport(
            verify=self._tls, trust_env=False, limits=httpx.Limits(max_connections=1), proxy=self._proxy
        )
        self._all.append(pool)
        return pool


class _ReleasingStream(httpx.AsyncByteStream):
    """A response's body that releases its connection when it is closed, and says whether it was read to its end."""

    def __init__(self, stream: httpx.AsyncByteStream, release: Callable[[bool], None]) -> None:
        self._stream = stream
        self._release: Callable[[bool], None] | None = release
        self._read = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part
        self._read = True

    async def aclose(self) -> None:
        release, self._release = self._release, None
        closed = False
        try:
            await self._stream.aclose()
            closed = True
        finally:
            if release is not None:
                release(self._read and closed)
