"""Python clients that run programs on a judge: `JudgeClient` for asyncio, and `SyncJudgeClient` on top of it."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeVar

import aiohttp

from rstar2.judge.client.connection import Connection
from rstar2.judge.client.http import (
    JudgeError,
    NotAJudgeUrl,
    access_refused,
    check_protocol,
    describe,
    is_from_another_server,
    request,
)
from rstar2.judge.schema import RunRequest, RunResult

HEALTH_S = 20.0
T = TypeVar("T")


class JudgeClient:
    """Runs programs on a judge.

    One `JudgeClient` can be used in several event loops and after a fork, and it can be pickled.

    Args:
        url: the judge's URL, such as http://127.0.0.1:8088.
        token: the judge's token, or None if the judge has none.
        wait_s: seconds to wait for a result beyond the program's own time limit, including all retries. A program that
            has no result after this time gets the outcome `lost`. If nothing answers at `url`, the client logs a
            warning after about 3 seconds, unless `health` was called before.
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
            # Dropping the connection of a closed loop closes it.
            for other_loop in list(self._connections):
                if other_loop.is_closed():
                    self._connections.pop(other_loop, None)
            connection = self._connections[loop] = Connection(self.url, self.token, self.wait_s)
        return connection

    async def run(self, request: RunRequest) -> RunResult:
        """Run one program and return its result. Cancelling the call cancels the program.

        If no result arrives in time, `run` returns a result with the outcome `lost` and raises no error.

        Raises:
            AccessRefused: the judge refuses this client, for example because the token is wrong.
            JudgeError: the URL does not lead to a judge.
            TypeError: `request` is not a `RunRequest`.
        """
        if not isinstance(request, RunRequest):
            raise TypeError(
                f"a RunRequest is needed, such as RunRequest(code=…), not {type(request).__name__}"
            )
        return await self._connection().submit(request)

    async def run_many(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """Run programs.

        Returns the programs' results in the order of the requests, and raises the same errors as `run`.
        """
        return list(await asyncio.gather(*(self.run(request) for request in requests)))

    async def request(
        self, method: str, path: str, body: str, wait_s: float, read: Callable[[str], T], accepted: int = 200
    ) -> T:
        """Send an HTTP request, with retries for at most `wait_s` seconds. See `http.request` for the arguments.

        `read` converts the body of the judge's answer to the return value.
        """
        url = self.url + path
        connection = self._connection()
        warn = partial(connection.warn_if_absent, connection.loop.time(), wait_s)
        answer = await request(
            connection.judge, connection.http, method, url, body, wait_s, read, accepted, warn
        )
        connection.may_warn = False
        return answer

    async def health(self) -> dict[str, Any]:
        """Returns the judge's answer to `/health`: `status`, `workers`, `isolation` and `protocol`.

        `/health` needs no token and runs no program, so an answer does not prove that the judge can run programs. To
        check this, use `check_judge` in `rstar2.loop.judge_check`.

        Raises:
            NotAJudgeUrl: another server answers at this URL.
            IncompatibleJudge: the judge has another major version of the protocol.
            AccessRefused: the judge refuses this client.
            JudgeError: the judge does not answer, or has no workers.
        """
        connection = self._connection()
        connection.may_warn = False  # the caller gets an answer or an error
        try:
            async with (
                asyncio.timeout(HEALTH_S),
                connection.http.get(f"{self.url}/health", allow_redirects=False) as answer,
            ):
                if refused := access_refused(self.url, answer.status):
                    raise refused
                answer.raise_for_status()
                health = json.loads(await answer.read())
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            error_type = NotAJudgeUrl if is_from_another_server(error) else JudgeError
            raise error_type(
                f"no judge answers at {self.url}: {describe(error)}", "Start one with `rstar2 judge up`."
            ) from error
        check_protocol(self.url, health.get("protocol"))
        return dict(health)

    async def aclose(self) -> None:
        """Close the client's connections in the running event loop, and cancel the calls that have no result yet."""
        connection = self._connections.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.close()

    async def __aenter__(self) -> JudgeClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class SyncJudgeClient:
    """A `JudgeClient` for code without an event loop. `SyncJudgeClient` takes the arguments of `JudgeClient`.

    Several threads may call the methods of a `SyncJudgeClient` at the same time. All calls share one connection, which
    a background thread serves.
    """

    def __init__(self, url: str, token: str | None = None, wait_s: float = 600.0) -> None:
        self._client = JudgeClient(url, token, wait_s)
        self.url = self._client.url
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, request: RunRequest) -> RunResult:
        """Run one program and return its result. Raises the same errors as `JudgeClient.run`."""
        return self._wait(self._client.run(request))

    def run_many(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """Run programs and return their results in the order of the requests. Raises the same errors as `run`."""
        return self._wait(self._client.run_many(requests))

    def health(self) -> dict[str, Any]:
        """Returns the judge's answer to `/health`, and raises the same errors as `JudgeClient.health`."""
        return self._wait(self._client.health())

    def close(self) -> None:
        """Close the client's connections and end its background thread."""
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
