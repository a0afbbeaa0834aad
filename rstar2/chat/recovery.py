"""The engine and the tools of a chat.

The engine and the tools show a notice when a server does not answer, and retry for `WAIT_S` seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from rstar2.engines.refusals import ToolsRefused
from rstar2.loop.agent import ToolRunner, Tools
from rstar2.loop.engine import Engine, EngineError, EngineUnavailable, Generation, OnTokens, Sampling
from rstar2.loop.trace import ToolCall
from rstar2.retry import Pauses, RetryPolicy, ServiceGone

Notice = Callable[[str], None]
"""Shows the user one line."""
WAIT_S = 30.0
"""Number of seconds for which a chat waits for an engine or a judge that stopped answering."""
PAUSES = Pauses(0.25, 2.0, jitter=0.0)
_TOOLS_HINT = (
    "Choose a model that takes tools (--model-name), start the server with its tool calls enabled, or chat with a "
    "vLLM server over --api tokens."
)


class ContinuingEngine:
    """An engine that continues a turn after an outage, from the tokens that it generated before.

    Args:
        engine: generates the turns.
        stop_ids: tokens that end a turn, or no tokens if the engine cannot continue a turn.
        notice: shows the user, once per outage, that the engine does not answer.
        retries: how long to wait for the engine.
    """

    def __init__(self, engine: Engine, stop_ids: Sequence[int], notice: Notice, retries: RetryPolicy) -> None:
        self.notice = notice
        self._engine = engine
        self._stop_ids = frozenset(stop_ids)
        self._service = retries.service("engine")

    @property
    def name(self) -> str:
        return self._engine.name

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        """Generate a turn, and continue it after each failure of the engine.

        Raises EngineError if the engine cannot continue, and EngineUnavailable if the engine generates nothing for too
        long.
        """
        written: list[int] = []
        outage_shown = False

        def add(token_ids: list[int]) -> None:
            nonlocal outage_shown
            outage_shown = False
            self._service.answered()
            written.extend(token_ids)
            if on_tokens is not None:
                on_tokens(token_ids)

        def show_outage(trouble: str) -> None:
            nonlocal outage_shown
            if not outage_shown:
                continued = "the answer continues" if written else "the question is asked again"
                self.notice(f"{trouble}; {continued} when it is back")
            outage_shown = True

        while True:
            before = len(written)
            if before and written[-1] in self._stop_ids:
                return Generation(written, None, "stop")
            if before >= sampling.max_tokens:
                return Generation(written, None, "length")
            remaining = replace(sampling, max_tokens=sampling.max_tokens - before)
            prompt = [*prompt_ids, *written]

            async def attempt() -> Generation | EngineUnavailable:
                try:
                    return await self._engine.generate(prompt, remaining, add)  # noqa: B023
                except ToolsRefused as refused:
                    # Its hint names options of `rstar2 eval`. A chat always has its tools.
                    raise ToolsRefused(refused.message, _TOOLS_HINT, refused.status) from refused
                except EngineUnavailable as error:
                    if written and not self._stop_ids:
                        raise EngineError(error.message, error.hint) from error
                    if len(written) == before:  # noqa: B023
                        raise
                    # The engine answered until now, so the wait for it begins anew.
                    return error

            try:
                generated = await self._service.call(attempt, on_wait=show_outage)
            except ServiceGone as gone:
                raise EngineUnavailable(gone.message, gone.hint) from gone
            if isinstance(generated, EngineUnavailable):
                show_outage(generated.message)
                continue
            if not before:
                return generated
            return Generation([*written[:before], *generated.token_ids], None, generated.finish)

    async def aclose(self) -> None:
        await self._engine.aclose()


class JudgeWatch(Protocol):
    """Checks whether a judge answers, and restarts it if the chat started it."""

    async def trouble(self) -> str:
        """Returns why the judge does not answer, or "" if it answers."""
        ...

    async def recover(self) -> None:
        """Restart the judge if the chat started it and it ended."""
        ...


class RecoveringTools:
    """Tools that show a notice if the judge does not answer. The judge's client retries the calls in flight.

    The model gets the result `lost` for a call that cannot be completed.
    """

    def __init__(self, tools: Tools, judge: JudgeWatch, notice: Notice, check_s: float = 2.0) -> None:
        self.notice = notice
        self._tools = tools
        self._judge = judge
        self._check_s = check_s

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[ToolRunner]:
        async with self._tools.opened() as tools:
            yield _RecoveringRunner(tools, self)

    async def run(self, tools: ToolRunner, name: str, arguments: dict[str, Any]) -> ToolCall:
        """Run a tool call with the tools of a conversation."""
        call = asyncio.ensure_future(tools.run(name, arguments))
        outage_shown = False
        try:
            while not (await asyncio.wait({call}, timeout=self._check_s))[0]:
                if trouble := await self._judge.trouble():
                    if not outage_shown:
                        self.notice(f"{trouble}; the call is being retried")
                    outage_shown = True
                    await self._judge.recover()
            return call.result()
        finally:
            call.cancel()


class _RecoveringRunner:
    """The tools of one conversation."""

    def __init__(self, tools: ToolRunner, shared: RecoveringTools) -> None:
        self._tools = tools
        self._shared = shared

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        return await self._shared.run(self._tools, name, arguments)
