"""A session of the judge from Python: a process that keeps its variables from one cell to the next."""

from __future__ import annotations

from rstar2.judge.client import JudgeClient
from rstar2.judge.client.http import JudgeError
from rstar2.judge.schema import MAX_TIMEOUT_S, CellRequest, CellResult, SessionInfo, SessionRequest

OPEN_S = 120.0
"""How long it may take to open a session, beyond other waits: the first in a worker has it load all libraries."""
CLOSE_S = 30.0


class JudgeSession:
    """A Python process on the judge that keeps its state from cell to cell; use it in `async with`.

    Args:
        asked: memory and time limits.
        wait_s: how long to wait for a cell's result beyond the cell's own limit, retries included. A cell also waits
            while its worker runs a program or other cells have their turns. None: as long as the client waits.

    Raises:
        TypeError: the client is none of asyncio's.
    """

    def __init__(
        self, client: JudgeClient, asked: SessionRequest | None = None, wait_s: float | None = None
    ) -> None:
        if not isinstance(client, JudgeClient):
            raise TypeError(f"a session is async and needs a JudgeClient, not {type(client).__name__}")
        self.client = client
        self.asked = asked or SessionRequest()
        self.wait_s = client.wait_s if wait_s is None else wait_s
        self.info: SessionInfo | None = None

    async def run(self, cell: CellRequest) -> CellResult:
        """Run one cell; never twice, whatever breaks on the way.

        Raises:
            JudgeError: the session is not open, or the judge refuses or does not answer.
            TypeError: it is no `CellRequest`.
        """
        if not isinstance(cell, CellRequest):
            raise TypeError(
                f"a CellRequest is needed, such as CellRequest(code=…), not {type(cell).__name__}"
            )
        if self.info is None:
            raise JudgeError("the session is not open", "Use it in `async with`.")
        path, body = f"/v1/sessions/{self.info.id}/cells", cell.model_dump_json()
        wait_s = self.wait_s + min(cell.timeout_s, MAX_TIMEOUT_S)
        return await self.client.request("POST", path, body, wait_s, CellResult.model_validate_json)

    async def __aenter__(self) -> JudgeSession:
        body, wait_s = self.asked.model_dump_json(), self.wait_s + OPEN_S
        read = SessionInfo.model_validate_json
        self.info = await self.client.request("POST", "/v1/sessions", body, wait_s, read)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.info is not None:
            # 404: it has ended already.
            path, wait_s = f"/v1/sessions/{self.info.id}", self.wait_s + CLOSE_S
            await self.client.request("DELETE", path, "", wait_s, str, accepted=404)
            self.info = None
