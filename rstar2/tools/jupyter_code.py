"""The tool that runs cells of a notebook, whose variables last over one rollout."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from pydantic import ValidationError

from rstar2.errors import RStarError
from rstar2.judge.client.session import JudgeSession
from rstar2.judge.schema import CellRequest, RunResult, SessionRequest
from rstar2.tools import ToolContext

ALIASES: tuple[str, ...] = ()
SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "jupyter_code",
        "description": "Run Python code as a cell of a notebook, which keeps its variables from call to call.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "The code of one cell."}},
            "required": ["code"],
        },
    },
}
IDLE_S = 1800.0
"""A session that its client left open, because it was killed, ends after so long without a cell."""
TOTAL_S = 86400.0
CLOSE_S = 30.0
"""How long the judge is asked to close a session; after that it ends by being idle."""
log = logging.getLogger(__name__)


class Tool:
    """The notebook of one rollout: a session of the judge, opened at the first call.

    Cells run one after another, in the order of their calls. Where a cell ended the session, the reply says so and the
    next call opens another; where the judge lost it, every later call is lost too, since the variables are gone.
    """

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._turn = asyncio.Lock()
        self._opening: asyncio.Task[JudgeSession] | None = None
        self._lost = ""

    async def run(self, arguments: dict[str, Any]) -> RunResult:
        async with self._turn:
            try:
                cell = CellRequest(code=arguments["code"], timeout_s=self._context.limits.seconds)
            except ValidationError as error:
                return RunResult(id="", outcome="invalid", stderr=f"code: {error.errors()[0]['msg']}")
            if self._lost:
                return RunResult(id="", outcome="lost", stderr=self._lost)
            return await self._run(cell)

    async def _run(self, cell: CellRequest) -> RunResult:
        if self._opening is None:
            self._opening = asyncio.create_task(self._open())
        # A rollout that is cancelled must still know the session, to close it.
        session = await asyncio.shield(self._opening)
        try:
            result = await session.run(cell)
        except RStarError as error:
            self._lost = error.message
            raise
        if result.outcome == "lost":
            self._lost = result.stderr or result.session_end
        elif not result.session_alive:
            await self.aclose()
        return result

    async def _open(self) -> JudgeSession:
        context = self._context
        asked = SessionRequest(memory_mb=context.limits.memory_mb, idle_s=IDLE_S, total_s=TOTAL_S)
        await context.sessions.acquire()
        try:
            session = JudgeSession(context.judge, asked, wait_s=context.judge.wait_s)
            return await session.__aenter__()
        except BaseException:
            context.sessions.release()
            raise

    async def aclose(self) -> None:
        """End the session, if there is one. A judge that does not answer ends it by itself, as it is idle."""
        opening, self._opening = self._opening, None
        if opening is not None:
            await asyncio.shield(asyncio.create_task(self._close(opening)))

    async def _close(self, opening: asyncio.Task[JudgeSession]) -> None:
        try:
            session = await opening
        except RStarError:
            return  # it was never opened; the call that asked for it has told why
        try:
            async with asyncio.timeout(CLOSE_S):
                await session.__aexit__()
        except (RStarError, TimeoutError):
            log.warning("a session of the judge was not closed; it ends by being idle", exc_info=True)
        finally:
            self._context.sessions.release()
