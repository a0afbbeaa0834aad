"""A session of the judge, for clients."""

from __future__ import annotations

import asyncio
import time
import uuid
from types import TracebackType

import httpx

from rstar2.judge.client import FIRST_RETRY_S, LONGEST_RETRY_S, JudgeClient, JudgeError
from rstar2.judge.schema import CellRequest, CellResult, SessionInfo, SessionRequest


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
        text = await self._ask(
            "POST", f"/v1/sessions/{self.info.id}/cells", cell.model_dump_json(), cell.timeout_s
        )
        return CellResult.model_validate_json(text)

    async def __aenter__(self) -> JudgeSession:
        text = await self._ask("POST", "/v1/sessions", self.asked.model_dump_json(), 30.0)
        self.info = SessionInfo.model_validate_json(text)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.info is not None:
            await self._ask("DELETE", f"/v1/sessions/{self.info.id}", "", 30.0, or_gone=True)
            self.info = None

    async def _ask(self, method: str, path: str, body: str, takes_s: float, or_gone: bool = False) -> str:
        key = uuid.uuid4().hex
        deadline = time.monotonic() + self.patience_s + takes_s
        delay = FIRST_RETRY_S
        while True:
            left = deadline - time.monotonic()
            try:
                answer = await self.client.request(method, path, body, key, max(left, 0.1))
            except httpx.HTTPError as error:
                said = repr(error)
            else:
                if answer.is_success or (or_gone and answer.status_code == 404):
                    return answer.text
                said = f"HTTP {answer.status_code} {answer.text[:300]}"
                if answer.status_code < 500 and answer.status_code != 429:
                    raise JudgeError(f"the judge at {self.client.url} refused: {said}")
            if left <= delay:
                raise JudgeError(f"the judge at {self.client.url} did not answer in time: {said}")
            await asyncio.sleep(delay)
            delay = min(delay * 2, LONGEST_RETRY_S)
