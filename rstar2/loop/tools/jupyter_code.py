"""The tool that runs cells of a notebook, whose variables last over one rollout."""

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
"""A session that its client left open, because it was killed, ends after so long without a cell."""
CLOSE_S = 30.0
"""How long the judge is asked to close a session; after that it ends by being idle."""
log = logging.getLogger(__name__)
_CLOSING: set[asyncio.Task[None]] = set()
"""What event loops only refer to weakly."""


@tool
async def jupyter_code(code: str, context: ToolContext) -> RunResult:
    """Run Python code as a cell of a notebook, which keeps its variables from call to call.

    Args:
        code: The code of one cell.
    """
    return await context.resource(Notebook).run(code)


class Notebook:
    """The notebook of one rollout: a session of the judge, opened at the first call.

    Cells run one after another, in the order of their calls. Where a cell ended the session, the reply says so and the
    next call opens another; where the judge lost it, every later call is lost too, since the variables are gone.
    """

    def __init__(self, context: ToolContext) -> None:
        self._context = context
        self._turn = asyncio.Lock()
        self._opening: asyncio.Task[JudgeSession] | None = None
        self._lost = ""

    async def run(self, code: str) -> RunResult:
        """Run a cell after those that were called before it."""
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
        """The open session; the first call opens it."""
        if self._opening is None:
            wait_s = self._context.session_wait_s
            try:
                async with asyncio.timeout(wait_s):
                    await self._context.sessions.acquire()
            except TimeoutError as error:
                late = f"no session became free within {wait_s:g} s"
                raise Unavailable(late, timed_out=True) from error
            self._opening = asyncio.create_task(self._open())
        try:
            # A rollout that is cancelled must still learn of the session, to close it.
            return await asyncio.shield(self._opening)
        except RStarError:
            await self.aclose()
            raise

    async def _open(self) -> JudgeSession:
        from rstar2.judge.client.session import JudgeSession

        judge = self._context.judge
        asked = SessionRequest(memory_mb=self._context.limits.memory_mb, idle_s=IDLE_S, total_s=SESSION_S)
        return await JudgeSession(judge, asked).__aenter__()

    async def aclose(self) -> None:
        """End the session, if there is one. A judge that does not answer ends it by itself, as it is idle."""
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
            log.warning("a notebook was not closed, its session ends by being idle: %s", error)
        finally:
            self._context.sessions.release()
