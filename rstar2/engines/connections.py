"""An HTTP transport for hundreds of concurrent requests, with one connection pool per request.

Whenever a request starts or ends, httpx's connection pool does work that grows with the square of the number of its
connections. With more than about a hundred connections, this work takes longer than the requests. In this transport,
each request uses a pool with a single connection.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable

import httpx


class OneConnectionEach(httpx.AsyncBaseTransport):
    """An httpx transport in which each concurrent request has its own connection. Idle connections are reused.

    Args:
        scheme: `http` or `https`. A request with another scheme raises httpx.UnsupportedProtocol.
        proxy: the URL of the proxy for all requests.
    """

    def __init__(self, scheme: str, proxy: str | None = None) -> None:
        self._scheme = scheme
        self._proxy = proxy
        self._idle: list[httpx.AsyncHTTPTransport] = []
        self._all: list[httpx.AsyncHTTPTransport] = []
        self._closing: set[asyncio.Future[None]] = set()
        # Reading the certificate store takes tens of milliseconds. It is read once for all pools, and only for TLS.
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

        If a task is cancelled while it closes a response, httpx does not finish closing, and the pool would treat its
        only connection as in use forever.
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
    """The body of a response. Closing the body releases the connection, and reports whether the body was read to its
    end.
    """

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
