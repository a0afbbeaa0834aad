"""How a client's calls travel: in requests together, again where a request failed, each wait with an end."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import re
import time
import uuid
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial

import aiohttp
import yarl

from rstar2.errors import Failure
from rstar2.judge.schema import MAX_TIMEOUT_S, BatchLine, BatchResponse, Outcome, RunRequest, RunResult

BATCH = 64
BATCH_BYTES = 8 << 20
"""A request is sent before it grows longer, if it holds more than one program."""
LINGER_S = 0.001
"""How long a call waits for others to travel with while a request is under way."""
FIRST_RETRY_S = 0.1
LONGEST_RETRY_S = 5.0
CONNECTIONS = 64
CONNECT_S = 10.0
FREE_S = 5.0
KEEP_S = 30.0
"""How long an idle connection is kept; less than the judge keeps it, which could close it under a request."""
log = logging.getLogger(__name__)


class JudgeError(Failure):
    """The judge cannot be used: wrong token, or nothing like a judge at the URL."""


class Call:
    """One program on its way."""

    def __init__(self, request: RunRequest, result: asyncio.Future[RunResult]) -> None:
        self.body = _as_json(request)
        self.limit_s = _limit_s(request)
        self.result = result
        self.run_id = ""
        """Given once it is sent."""

    def give(self, result: RunResult) -> None:
        if not self.result.done():
            self.result.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)


def _as_json(request: RunRequest) -> bytes:
    """A request as it is, valid or not: the judge answers what is wrong with it."""
    program = request.model_dump(warnings=False)
    try:
        return json.dumps(program, default=repr, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(program, default=repr).encode()


def _limit_s(request: RunRequest) -> float:
    """A program's own time limit, 0 where it is none that the judge accepts."""
    limit: object = request.timeout_s
    return float(limit) if isinstance(limit, int | float) and 0 < limit <= MAX_TIMEOUT_S else 0.0


class Line:
    """What a client holds for one event loop.

    Args:
        url, token, patience_s: as of the client.

    Raises:
        JudgeError: it is no URL of a judge.
    """

    def __init__(self, url: str, token: str | None, patience_s: float) -> None:
        _check_url(url, token)
        # Programs are asked for by the ten thousand: httpx takes four times the processor time for each.
        self.http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            connector=aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=KEEP_S),
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        assert self.http.connector is not None
        weakref.finalize(self, _let_go, self.http.connector)
        self.url = url
        self.patience_s = patience_s
        self.calls: list[Call] = []
        self.bytes = 0
        """Of the bodies of `calls`."""
        self.timer: asyncio.TimerHandle | None = None
        self.batches: set[asyncio.Task[None]] = set()

    def add(self, call: Call) -> None:
        if self.calls and self.bytes + len(call.body) > BATCH_BYTES:
            self._flush()
        self.calls.append(call)
        self.bytes += len(call.body)
        if len(self.calls) >= BATCH:
            self._flush()
        elif self.timer is None:
            # Nothing is under way: what is asked in this turn of the loop goes at once.
            wait_s = LINGER_S if self.batches else 0.0
            self.timer = asyncio.get_running_loop().call_later(wait_s, self._flush)

    def _flush(self) -> None:
        calls = [call for call in self._take() if not call.result.done()]
        if calls:
            task = self._keep(asyncio.create_task(self._ask(calls)))
            task.add_done_callback(partial(self._over, calls))
            for call in calls:
                call.result.add_done_callback(partial(self._dropped, call, calls, task))

    def _take(self) -> list[Call]:
        """The calls that wait to be sent, which are none afterwards."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        calls, self.calls, self.bytes = self.calls, [], 0
        return calls

    def _over(self, calls: Sequence[Call], task: asyncio.Task[None]) -> None:
        """Leave no call without an answer, however its request ended."""
        error = None if task.cancelled() else task.exception()
        for call in calls:
            if task.cancelled():
                call.result.cancel()
            elif error is not None:
                call.fail(error if isinstance(error, JudgeError) else self._broken(error))

    def _broken(self, error: BaseException) -> JudgeError:
        return JudgeError(f"asking the judge at {self.url} failed: {error!r}")

    async def close(self) -> None:
        """Cancel what waits or is on its way, and close the connections."""
        for call in self._take():
            call.result.cancel()
        for batch in list(self.batches):
            batch.cancel()
        await asyncio.gather(*self.batches, return_exceptions=True)
        await self.http.close()

    def _dropped(
        self,
        call: Call,
        calls: Sequence[Call],
        task: asyncio.Task[None],
        result: asyncio.Future[RunResult],
    ) -> None:
        if not result.cancelled() or task.done():
            return
        if all(other.result.done() for other in calls):
            task.cancel()
        elif call.run_id:
            self._keep(asyncio.create_task(self._free(call.run_id)))

    def _keep(self, task: asyncio.Task[None]) -> asyncio.Task[None]:
        self.batches.add(task)
        task.add_done_callback(self.batches.discard)
        return task

    async def _ask(self, calls: Sequence[Call]) -> None:
        """Ask until every call has its result, again under the same key when no good answer comes."""
        key = uuid.uuid4().hex
        for index, call in enumerate(calls):
            call.run_id = f"{key}-{index}"
        body = b'{"runs":[' + b",".join(call.body for call in calls) + b"]}"
        # A stream costs more than a plain answer, and one program has nothing to wait behind.
        send = self._stream if len(calls) > 1 else self._plain
        deadline = time.monotonic() + self.patience_s + max(call.limit_s for call in calls)
        delay = FIRST_RETRY_S
        while not all(call.result.done() for call in calls):
            try:
                async with asyncio.timeout(max(deadline - time.monotonic(), 0.1)):
                    await send(key, body, calls)
            except _TooLong as error:
                self._answer_all(calls, "invalid", str(error))
            # ValueError: what came was no answer of a judge, such as a proxy's page.
            except (aiohttp.ClientError, _Busy, TimeoutError, ValueError) as error:
                left = deadline - time.monotonic()
                if left <= 0:
                    reason = f"the judge at {self.url} did not answer in time: {error!r}"
                    self._answer_all(calls, "lost", reason)
                    return
                wait_s = max(delay, error.retry_after_s) if isinstance(error, _Busy) else delay
                await asyncio.sleep(min(wait_s, left))
                delay = min(delay * 2, LONGEST_RETRY_S)

    @staticmethod
    def _answer_all(calls: Sequence[Call], outcome: Outcome, reason: str) -> None:
        for call in calls:
            call.give(RunResult(id=call.run_id, outcome=outcome, stderr=reason))

    async def _plain(self, key: str, body: bytes, calls: Sequence[Call]) -> None:
        async with self.send("POST", "/v1/runs/batch", body, headers_for(key)) as answer:
            await self._raise_unless_ok(answer)
            results = BatchResponse.model_validate_json(await answer.read()).results
        for call, result in zip(calls, results, strict=True):
            call.give(result)

    async def _stream(self, key: str, body: bytes, calls: Sequence[Call]) -> None:
        headers = headers_for(key) | {"Accept": "application/x-ndjson"}
        async with self.send("POST", "/v1/runs/batch", body, headers) as answer:
            await self._raise_unless_ok(answer)
            async for line in _lines(answer):
                found = BatchLine.model_validate_json(line)
                if found.index not in range(len(calls)):
                    raise ValueError(f"a result for item {found.index} of {len(calls)}")
                calls[found.index].give(found.result)
        if not all(call.result.done() for call in calls):
            raise aiohttp.ClientPayloadError("the stream of results ended early")

    async def _free(self, run_id: str) -> None:
        """Have the judge drop one program of a batch whose other programs are still wanted."""
        try:
            async with asyncio.timeout(FREE_S), self.send("DELETE", f"/v1/runs/{run_id}"):
                pass
        except (aiohttp.ClientError, TimeoutError) as error:
            log.info("could not cancel %s: %r", run_id, error)

    def send(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """One request, to be entered with `async with`; a redirection is an answer like any other."""
        # A stream, made anew for every try: aiohttp warns of long bodies that are none.
        data = io.BytesIO(body) if body else None
        return self.http.request(method, self.url + path, data=data, headers=headers, allow_redirects=False)

    async def _raise_unless_ok(self, answer: aiohttp.ClientResponse) -> None:
        if answer.status == 200:
            return
        if answer.status == 429 or answer.status >= 500:
            raise _Busy(answer)
        said = f"HTTP {answer.status} {(await answer.text(errors='replace'))[:300]}"
        if answer.status == 413:
            raise _TooLong(f"the judge at {self.url} refused the request: {said}")
        if answer.status == 401:
            hint = "see `rstar2 judge status` for the right one"
            raise JudgeError(f"the judge at {self.url} wants another token", hint)
        raise JudgeError(f"the judge at {self.url} refused the request: {said}")


class _Busy(Exception):
    """The judge answers that it cannot, now."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        super().__init__(f"HTTP {answer.status}")
        self.retry_after_s = retry_after_s(answer)


class _TooLong(Exception):
    """The judge answers that the request is longer than any may be."""


@dataclass(frozen=True)
class Answer:
    """An answer of the judge, whole."""

    status: int
    text: str
    retry_after_s: float


def _check_url(url: str, token: str | None) -> None:
    """Refuse at once what no patience would mend.

    Raises:
        JudgeError: it is no URL, or names a user although there is a token.
    """
    try:
        parts = yarl.URL(url)
        fit = parts.scheme in ("http", "https") and bool((parts.host or "").strip(".")) and parts.port != 0
        fit = fit and not re.search(r"[\s\x00]", url) and not (token and parts.user)
    except ValueError:
        fit = False
    if not fit:
        raise JudgeError(f"{url!r} is not the URL of a judge", "give one such as http://127.0.0.1:8088")


def _let_go(connector: aiohttp.BaseConnector) -> None:
    """Close what a client that was never closed leaves, which aiohttp would complain of."""
    with contextlib.suppress(Exception):
        # Its event loop may be over; what need not be waited for is done before the first wait.
        closing = connector.close().__await__()
        next(closing, None)


def retry_after_s(answer: aiohttp.ClientResponse) -> float:
    """The seconds that `Retry-After` asks to wait; 0 where it names none, or a date."""
    text = answer.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else 0.0


def headers_for(key: str) -> dict[str, str]:
    return {"Idempotency-Key": key, "Content-Type": "application/json"}


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The lines of an answer; only a newline ends one, whatever Unicode takes for an end of line."""
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest
