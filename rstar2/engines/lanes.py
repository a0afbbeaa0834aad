"""HTTP with hundreds of requests in flight, each on a connection of its own.

httpx's connection pool looks at every connection for each connection it holds whenever a request starts or
ends; from some hundred on that takes longer than the requests. Here each request borrows a pool of one.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable

import httpx


class LaneTransport(httpx.AsyncBaseTransport):
    """As many one-connection pools as there were requests in flight at most, kept alive and used again."""

    def __init__(self) -> None:
        self._free: list[httpx.AsyncHTTPTransport] = []
        self._all: list[httpx.AsyncHTTPTransport] = []
        # Each pool would read the certificate store anew.
        self._tls = ssl.create_default_context()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        lane = self._free.pop() if self._free else self._open()

        def give_back() -> None:
            self._free.append(lane)

        try:
            response = await lane.handle_async_request(request)
        except BaseException:
            give_back()
            raise
        assert isinstance(response.stream, httpx.AsyncByteStream)
        response.stream = _Borrowed(response.stream, give_back)
        return response

    async def aclose(self) -> None:
        for lane in self._all:
            await lane.aclose()

    def _open(self) -> httpx.AsyncHTTPTransport:
        lane = httpx.AsyncHTTPTransport(
            verify=self._tls, trust_env=False, limits=httpx.Limits(max_connections=1)
        )
        self._all.append(lane)
        return lane


class _Borrowed(httpx.AsyncByteStream):
    """A response's body that gives its lane back when it is closed."""

    def __init__(self, stream: httpx.AsyncByteStream, give_back: Callable[[], None]) -> None:
        self._stream = stream
        self._give_back: Callable[[], None] | None = give_back

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            yield part

    async def aclose(self) -> None:
        give_back, self._give_back = self._give_back, None
        try:
            await self._stream.aclose()
        finally:
            if give_back is not None:
                give_back()
