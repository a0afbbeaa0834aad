"""Running programs on a judge from Python: an asynchronous client, and a synchronous one on top of it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

import aiohttp

from rstar2.judge.client.connection import Connection
from rstar2.judge.client.http import (
    JudgeError,
    NoUrl,
    access_refused,
    check_protocol,
    describe,
    of_another_server,
    request,
)
from rstar2.judge.schema import RunRequest, RunResult

HEALTH_S = 20.0
T = TypeVar("T")


class JudgeClient:
    """Runs programs on a judge. May be used from many event loops and after a fork, and can be pickled.

    Args:
        url: of the judge, such as http://127.0.0.1:8088.
        token: what the judge asks for, if it does.
        wait_s: how long to wait for the result of a program beyond the program's own time limit, retries
            included, before it counts as `lost`.
    """

    def __init__(self, url: str, token: str | None = None, wait_s: float = 600.0) -> None:
        self.url = url.rstrip("/")
        self.token = token
        self.wait_s = wait_s
        self._connections: dict[asyncio.AbstractEventLoop, Connection] = {}

    def __reduce__(self) -> tuple[type[JudgeClient], tuple[str, str | None, float]]:
        return JudgeClient, (self.url, self.token, self.wait_s)

    def _connection(self) -> Connection:
        loop = asyncio.get_running_loop()
        connection = self._connections.get(loop)
        if connection is None:
            # Those of loops that are over are closed.
            for other in list(self._connections):
                if other.is_closed():
                    self._connections.pop(other, None)
            connection = self._connections[loop] = Connection(self.url, self.token, self.wait_s)
        return connection

    async def run(self, request: RunRequest) -> RunResult:
        """Run one program. Cancelling the call cancels the program.

        Raises:
            AccessRefused: wrong token, or another reason why the judge refuses this client.
            JudgeError: nothing like a judge at the URL.
            TypeError: it is no `RunRequest`.
        """
        if not isinstance(request, RunRequest):
            raise TypeError(
                f"a RunRequest is needed, such as RunRequest(code=…), not {type(request).__name__}"
            )
        return await self._connection().submit(request)

    async def run_many(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """Run programs. → their results in the order of the requests; raises what `run` raises."""
        return list(await asyncio.gather(*(self.run(request) for request in requests)))

    async def request(
        self, method: str, path: str, body: str, wait_s: float, read: Callable[[str], T], accepted: int = 200
    ) -> T:
        """Send a request until an answer comes, for `wait_s` seconds at most; what `read` makes of its body."""
        url = self.url + path
        connection = self._connection()
        return await request(connection.judge, connection.http, method, url, body, wait_s, read, accepted)

    async def health(self) -> dict[str, Any]:
        """What `/health` answers: `status`, `workers`, `isolation`, `protocol`.

        Raises:
            NoUrl: what answers is no judge.
            IncompatibleJudge: the judge speaks another major version of the protocol.
            AccessRefused: the judge refuses this client.
            JudgeError: no answer, or no workers.

        The judge answers it without a token: `check_judge` in `rstar2.loop.toolbox` finds out whether programs run.
        """
        try:
            async with (
                asyncio.timeout(HEALTH_S),
                self._connection().http.get(f"{self.url}/health", allow_redirects=False) as answer,
            ):
                if refused := access_refused(self.url, answer.status):
                    raise refused
                answer.raise_for_status()
                found = json.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            kind = NoUrl if of_another_server(error) else JudgeError
            raise kind(
                f"no judge answers at {self.url}: {describe(error)}", "Start one with `rstar2 judge up`."
            ) from error
        check_protocol(self.url, found.get("protocol"))
        return dict(found)

    async def aclose(self) -> None:
        """Close this event loop's connections; calls without a result are cancelled."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.close()

    async def __aenter__(self) -> JudgeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class SyncJudgeClient:
    """The same, made from the same, for code without an event loop; calls from many threads travel together."""

    def __init__(self, url: str, token: str | None = None, wait_s: float = 600.0) -> None:
        self._client = JudgeClient(url, token, wait_s)
        self.url = self._client.url
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, request: RunRequest) -> RunResult:
        return self._wait(self._client.run(request))

    def run_many(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        return self._wait(self._client.run_many(requests))

    def health(self) -> dict[str, Any]:
        return self._wait(self._client.health())

    def close(self) -> None:
        """Close the connections and end the thread."""
        with self._lock:
            if self._loop is not None and self._pid == os.getpid():
                asyncio.run_coroutine_threadsafe(self._client.aclose(), self._loop).result(10)
                self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    def __enter__(self) -> SyncJudgeClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._running_loop())
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                threading.Thread(target=self._loop.run_forever, name="judge-client", daemon=True).start()
            return self._loop
