"""The tool that runs code as the cells of a notebook. Variables last until the end of the rollout."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pydantic import ValidationError

from rstar2.errors import RStarError, Unavailable
from rstar2.judge.schema import CellRequest, RunResult, SessionRequest
from rstar2.loop.tool import SESSION_S, ToolContext, tool

if TYPE_CHECKING:
    from rstar2.judge.client.session import JudgeSession

IDLE_S = 1800.0
"""The judge ends a session that has run no cell for this many seconds, for example because its client was killed."""
CLOSE_S = 30.0
"""Timeout in seconds for closing a session. After a timeout, the judge itself ends the session when the session has
been idle for `IDLE_S` seconds."""
log = logging.getLogger(__name__)
_CLOSING: set[asyncio.Task[None]] = set()
"""Tasks that close sessions. Event loops hold only weak references to tasks, so this set keeps the tasks alive."""


@tool
async def jupyter_code(code: str, context: ToolContext) -> RunResult:
    """Run Python code as a cell of a notebook, which keeps its variables from call to call.

    Args:
        code: The code of one cell.
    """
    return await context.resource(Notebook).run(code)


class Notebook:
    """The notebook of one rollout. The notebook is a session of the judge. The first call opens the session.

    Cells run one after another, in the order of their calls. If a cell ends the session, the reply says so, and the
    next call opens a new session. If the judge loses the session, the session's variables are gone, and every later
    call of the rollout is lost too.
    """

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._turn = asyncio.Lock()
        self._opening: asyncio.Task[JudgeSession] | None = None
        self._lost = ""

    async def run(self, code: str) -> RunResult:
        """Run a cell, after all cells of earlier calls."""
        async with self._turn:
            try:
                cell = CellRequest(code=code, timeout_s=self._context.limits.seconds)
            except ValidationError as error:
                return RunResult(id="", outcome="invalid", stderr=f"code: {error.errors()[0]['msg']}")
            if self._lost:
                return RunResult(id="", outcome="lost", stderr=self._lost)
            return await self._run(cell)

    async def _run(self, cell: CellRequest) -> RunResult:
        session = await self._session()
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

    async def _session(self) -> JudgeSession:
        """Returns the open session. The first call opens the session."""
        if self._opening is None:
            wait_s = self._context.session_wait_s
            try:
                async with asyncio.timeout(wait_s):
                    await self._context.sessions.acquire()
            except TimeoutError as error:
                message = f"no session became free within {wait_s:g} s"
                raise Unavailable(message, timed_out=True) from error
            self._opening = asyncio.create_task(self._open())
        try:
            # Opening goes on if the rollout is cancelled, because only an open session can be closed.
            return await asyncio.shield(self._opening)
        except RStarError:
            await self.aclose()
            raise

    async def _open(self) -> JudgeSession:
        from rstar2.judge.client.session import JudgeSession

        judge = self._context.judge
        request = SessionRequest(memory_mb=self._context.limits.memory_mb, idle_s=IDLE_S, total_s=SESSION_S)
        return await JudgeSession(judge, request).__aenter__()

    async def aclose(self) -> None:
        """End the session, if there is one. If the judge does not answer, the judge ends the idle session later."""
        opening, self._opening = self._opening, None
        if opening is not None:
            closing = asyncio.create_task(self._close(opening))
            _CLOSING.add(closing)
            closing.add_done_callback(_CLOSING.discard)
            await asyncio.shield(closing)

    async def _close(self, opening: asyncio.Task[JudgeSession]) -> None:
        try:
            async with asyncio.timeout(CLOSE_S):
                await (await opening).__aexit__()
        except (RStarError, TimeoutError) as error:
            log.warning(
                "a notebook was not closed: %s. The judge ends the notebook's session after %.0f s without a cell.",
                error,
                IDLE_S,
            )
        finally:
            self._context.sessions.release()
