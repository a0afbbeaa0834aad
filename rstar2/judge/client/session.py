"""A session of the judge, for clients."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable
from types import TracebackType
from typing import TypeVar

import aiohttp

from rstar2.judge.client import JudgeClient
from rstar2.judge.client.connection import FIRST_RETRY_S, LONGEST_RETRY_S, JudgeError
from rstar2.judge.schema import MAX_TIMEOUT_S, CellRequest, CellResult, SessionInfo, SessionRequest

OPEN_S = 30.0
T = TypeVar("T")


class JudgeSession:
    """A Python process on the judge that keeps its state from cell to cell; use it in `async with`.

    Args:
        client: of the judge.
        asked: memory and time limits.
        patience_s: how long to wait for a cell's result beyond the cell's own limit, retries included.
    """

    def __init__(
        self, client: JudgeClient, asked: SessionRequest | None = None, patience_s: float = 60.0
    ) -> None:
        self.client = client
        self.asked = asked or SessionRequest()
        self.patience_s = patience_s
        self.info: SessionInfo | None = None

    async def run(self, cell: CellRequest) -> CellResult:
        """Run one cell; never twice, whatever breaks on the way.

        Raises:
            JudgeError: the session is not open, or the judge refuses or does not answer.
        """
        if self.info is None:
            raise JudgeError("the session is not open", "use it in `async with`")
        return await self._ask(
            "POST",
            f"/v1/sessions/{self.info.id}/cells",
            cell.model_dump_json(),
            min(cell.timeout_s, MAX_TIMEOUT_S),
            CellResult.model_validate_json,
        )

    async def __aenter__(self) -> JudgeSession:
        body = self.asked.model_dump_json()
        self.info = await self._ask("POST", "/v1/sessions", body, OPEN_S, SessionInfo.model_validate_json)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.info is not None:
            await self._ask("DELETE", f"/v1/sessions/{self.info.id}", "", OPEN_S, str, or_gone=True)
            self.info = None

    async def _ask(
        self,
        method: str,
        path: str,
        body: str,
        takes_s: float,
        read: Callable[[str], T],
        or_gone: bool = False,
    ) -> T:
        """Ask until a good answer comes, under one key. `read` raises ValueError for what is none."""
        key = uuid.uuid4().hex
        deadline = time.monotonic() + self.patience_s + takes_s
        delay = FIRST_RETRY_S
        while True:
            wait_s = delay
            patience_s = max(deadline - time.monotonic(), 0.1)
            try:
                async with asyncio.timeout(patience_s):
                    answer = await self.client.request(method, path, body, key)
                if answer.status < 300 or (or_gone and answer.status == 404):
                    return read(answer.text)
                said = f"HTTP {answer.status} {answer.text[:300]}"
                if answer.status < 500 and answer.status != 429:
                    raise JudgeError(f"the judge at {self.client.url} refused: {said}")
                wait_s = max(delay, answer.retry_after_s)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                said = repr(error)
            if (left := deadline - time.monotonic()) <= 0:
                raise JudgeError(f"the judge at {self.client.url} did not answer in time: {said}")
            await asyncio.sleep(min(wait_s, left))
            delay = min(delay * 2, LONGEST_RETRY_S)
