"""`JudgeSession`: a Python process on the judge that keeps its variables from one cell to the next."""

from __future__ import annotations

from rstar2.judge.client import JudgeClient
from rstar2.judge.client.http import JudgeError
from rstar2.judge.schema import MAX_TIMEOUT_S, CellRequest, CellResult, SessionInfo, SessionRequest

OPEN_S = 120.0
"""Opening a session may take this many seconds in addition to `wait_s`. The first session of a worker has to load all
libraries."""
CLOSE_S = 30.0


class JudgeSession:
    """A Python process on the judge that keeps its state from cell to cell. Use a `JudgeSession` with `async with`.

    Args:
        client: the client that opens the session.
        limits: memory and time limits of the session.
        wait_s: seconds to wait for a cell's result beyond the cell's own time limit, including all retries. The wait
            includes the time during which the session's worker first runs other programs or cells. If None, the
            client's `wait_s` applies.

    Raises:
        TypeError: `client` is not a `JudgeClient`.
    """

    def __init__(
        self, client: JudgeClient, limits: SessionRequest | None = None, wait_s: float | None = None
    ) -> None:
        if not isinstance(client, JudgeClient):
            raise TypeError(f"a session needs the asynchronous JudgeClient, not {type(client).__name__}")
        self.client = client
        self.limits = limits or SessionRequest()
        self.wait_s = client.wait_s if wait_s is None else wait_s
        self.info: SessionInfo | None = None

    async def run(self, cell: CellRequest) -> CellResult:
        """Run one cell and return its result. Retries never run the cell twice.

        Raises:
            JudgeError: the session is not open, or the judge refuses the request or does not answer.
            TypeError: `cell` is not a `CellRequest`.
        """
        if not isinstance(cell, CellRequest):
            raise TypeError(
                f"a CellRequest is needed, such as CellRequest(code=…), not {type(cell).__name__}"
            )
        if self.info is None:
            raise JudgeError("the session is not open", "Open it with `async with`.")
        path, body = f"/v1/sessions/{self.info.id}/cells", cell.model_dump_json()
        wait_s = self.wait_s + min(cell.timeout_s, MAX_TIMEOUT_S)
        return await self.client.request("POST", path, body, wait_s, CellResult.model_validate_json)

    async def __aenter__(self) -> JudgeSession:
        body, wait_s = self.limits.model_dump_json(), self.wait_s + OPEN_S
        read = SessionInfo.model_validate_json
        self.info = await self.client.request("POST", "/v1/sessions", body, wait_s, read)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.info is not None:
            # 404: the session has already ended.
            path, wait_s = f"/v1/sessions/{self.info.id}", self.wait_s + CLOSE_S
            await self.client.request("DELETE", path, "", wait_s, str, accepted=404)
            self.info = None
