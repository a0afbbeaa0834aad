"""The client of the judge: asynchronous, and synchronous on top of it.

Calls made at the same time travel together. A request that fails on the way is sent again under the same
idempotency key, so that no program runs twice when its result exists. Every wait has an end: when the judge
does not answer within it, the result is `lost`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import uuid
from collections.abc import Coroutine, Sequence
from types import TracebackType
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import httpx

from rstar2.errors import Failure, UserError
from rstar2.judge.schema import BatchResponse, RunRequest, RunResult

BATCH = 64
LINGER_S = 0.002
"""How long a call waits for others to travel with."""
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 5.0
CONNECTIONS = 64
T = TypeVar("T")


class _Call:
    """One program on its way."""

    def __init__(self, request: RunRequest, result: asyncio.Future[RunResult]) -> None:
        self.request = request
        self.result = result


class _Line:
    """What a client holds for one event loop."""

    def __init__(self, client: JudgeClient) -> None:
        self.http = httpx.AsyncClient(
            base_url=client.url,
            headers={"Authorization": f"Bearer {client.token}"} if client.token else {},
            timeout=httpx.Timeout(10.0, pool=None),
            limits=httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS),
            trust_env=False,
        )
        self.patience_s = client.patience_s
        self.calls: list[_Call] = []
        self.timer: asyncio.TimerHandle | None = None
        self.batches: set[asyncio.Task[None]] = set()

    def add(self, call: _Call) -> None:
        self.calls.append(call)
        if len(self.calls) >= BATCH:
            self._flush()
        elif self.timer is None:
            self.timer = asyncio.get_running_loop().call_later(LINGER_S, self._flush)

    def _flush(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        calls = [call for call in self.calls if not call.result.done()]
        self.calls = []
        if calls:
            task = asyncio.create_task(self._send(calls))
            self.batches.add(task)
            task.add_done_callback(self.batches.discard)

            def dropped(_result: asyncio.Future[RunResult]) -> None:
                if all(call.result.cancelled() for call in calls):
                    task.cancel()

            for call in calls:
                call.result.add_done_callback(dropped)

    async def _send(self, calls: Sequence[_Call]) -> None:
        try:
            results = await self._ask([call.request for call in calls])
        except (Failure, UserError) as error:
            for call in calls:
                if not call.result.done():
                    call.result.set_exception(error)
            return
        for call, result in zip(calls, results, strict=True):
            if not call.result.done():
                call.result.set_result(result)

    async def _ask(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        key = uuid.uuid4().hex
        body = b'{"runs":[' + b",".join(r.model_dump_json().encode() for r in requests) + b"]}"
        deadline = time.monotonic() + self.patience_s + max(r.timeout_s for r in requests)
        delay = FIRST_RETRY_S
        while True:
            left = deadline - time.monotonic()
            try:
                answer = await self._post(key, body, max(left, 1.0))
            except (httpx.HTTPError, _Busy) as error:
                delay = max(delay, error.retry_after_s) if isinstance(error, _Busy) else delay
                if left <= delay:
                    reason = f"the judge at {self.http.base_url} did not answer in time: {error!r}"
                    return [
                        RunResult(id=f"{key}-{i}", outcome="lost", stderr=reason)
                        for i in range(len(requests))
                    ]
                await asyncio.sleep(delay)
                delay = min(delay * 2, LONGEST_RETRY_S)
            else:
                return BatchResponse.model_validate_json(answer).results

    async def _post(self, key: str, body: bytes, left: float) -> bytes:
        headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
        timeout = httpx.Timeout(10.0, read=left, pool=None)
        answer = await self.http.post("/v1/runs/batch", content=body, headers=headers, timeout=timeout)
        if answer.status_code == 200:
            return answer.content
        if answer.status_code == 429 or answer.status_code >= 500:
            raise _Busy(answer.status_code, float(answer.headers.get("Retry-After", "0")))
        raise _fault(self.http.base_url, answer)


class _Busy(Exception):
    """The judge answers that it cannot, now."""

    def __init__(self, status: int, retry_after_s: float) -> None:
        super().__init__(f"HTTP {status}")
        self.retry_after_s = retry_after_s


def _fault(url: httpx.URL, answer: httpx.Response) -> UserError:
    if answer.status_code == 401:
        return UserError(
            f"the judge at {url} wants another token", "see `rstar2 judge status` for the right one"
        )
    return UserError(f"the judge at {url} refused the request: HTTP {answer.status_code} {answer.text[:300]}")


class JudgeClient:
    """Runs programs on a judge. May be used from many event loops and after a fork, and can be pickled.

    Args:
        url: of the judge, such as http://127.0.0.1:8088.
        token: what the judge asks for, if it does.
        patience_s: how long to wait for the result of a program beyond the program's own time limit, retries
            included, before it counts as `lost`.
    """

    def __init__(self, url: str, token: str | None = None, patience_s: float = 600.0) -> None:
        self.url = url.rstrip("/")
        self.token = token
        self.patience_s = patience_s
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = WeakKeyDictionary()

    def __getstate__(self) -> tuple[str, str | None, float]:
        return self.url, self.token, self.patience_s

    def __setstate__(self, state: tuple[str, str | None, float]) -> None:
        self.url, self.token, self.patience_s = state
        self._lines = WeakKeyDictionary()

    def _line(self) -> _Line:
        loop = asyncio.get_running_loop()
        line = self._lines.get(loop)
        if line is None:
            line = self._lines[loop] = _Line(self)
        return line

    async def run(self, request: RunRequest) -> RunResult:
        """Run one program. Cancelling the call frees the work, once all that travelled with it are cancelled.

        Raises:
            UserError: wrong token, or nothing like a judge at the URL.
        """
        result: asyncio.Future[RunResult] = asyncio.get_running_loop().create_future()
        self._line().add(_Call(request, result))
        return await result

    async def run_many(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """Run programs. → their results in the order of the requests.

        Raises:
            UserError: see `run`.
        """
        return list(await asyncio.gather(*(self.run(request) for request in requests)))

    async def health(self) -> dict[str, Any]:
        """What the judge says of itself: `status`, `workers`, `isolation`.

        Raises:
            Failure: it does not answer, or has no workers.
        """
        try:
            answer = await self._line().http.get("/health", timeout=5.0)
            answer.raise_for_status()
            found = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise Failure(
                f"no judge answers at {self.url}: {error!r}", "start one with `rstar2 judge up`"
            ) from error
        return dict(found)

    async def aclose(self) -> None:
        """Close this event loop's connections; what is on its way is cancelled."""
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is None:
            return
        for batch in list(line.batches):
            batch.cancel()
        await asyncio.gather(*line.batches, return_exceptions=True)
        await line.http.aclose()

    async def __aenter__(self) -> JudgeClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class SyncJudgeClient:
    """The same for code without an event loop; calls from many threads travel together.

    Args:
        url, token, patience_s: as of `JudgeClient`.
    """

    def __init__(self, url: str, token: str | None = None, patience_s: float = 600.0) -> None:
        self._client = JudgeClient(url, token, patience_s)
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._pid = 0

    def run(self, request: RunRequest) -> RunResult:
        """See `JudgeClient.run`."""
        return self._wait(self._client.run(request))

    def run_many(self, requests: Sequence[RunRequest]) -> list[RunResult]:
        """See `JudgeClient.run_many`."""
        return self._wait(self._client.run_many(requests))

    def health(self) -> dict[str, Any]:
        """See `JudgeClient.health`."""
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
