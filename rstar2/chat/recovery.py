"""Says in a line that an engine or a judge is away, and tries again, for as long as a person would wait."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from rstar2.loop.agent import ToolRunner, Tools
from rstar2.loop.engine import Engine, EngineError, EngineUnavailable, Generation, OnTokens, Sampling
from rstar2.loop.trace import ToolCall
from rstar2.retry import Pauses, RetryPolicy, ServiceGone

Notice = Callable[[str], None]
"""Shows a person one line."""
WAIT_S = 30.0
"""How long a person waits for an engine or a judge that went away."""
PAUSES = Pauses(0.25, 2.0, jitter=0.0)


class ContinuingEngine:
    """An engine whose turns are continued, from the tokens that were generated, after it was away.

    Args:
        engine: generates.
        stop_ids: tokens that end a turn; none for an engine that cannot continue one.
        notice: shows a person, once per outage, that the engine is away.
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

        Raises EngineError if the engine cannot continue, EngineUnavailable if it generates nothing for too long.
        """
        written: list[int] = []
        said = False

        def show(token_ids: list[int]) -> None:
            nonlocal said
            said = False
            self._service.answered()
            written.extend(token_ids)
            if on_tokens is not None:
                on_tokens(token_ids)

        def say(trouble: str) -> None:
            nonlocal said
            if not said:
                continued = "the answer continues" if written else "the question is asked again"
                self.notice(f"{trouble}; {continued} when it is back")
            said = True

        while True:
            before = len(written)
            if before and written[-1] in self._stop_ids:
                return Generation(written, None, "stop")
            if before >= sampling.max_tokens:
                return Generation(written, None, "length")
            rest = replace(sampling, max_tokens=sampling.max_tokens - before)
            prompt = [*prompt_ids, *written]

            async def attempt() -> Generation | EngineUnavailable:
                try:
                    return await self._engine.generate(prompt, rest, show)  # noqa: B023
                except EngineUnavailable as error:
                    if written and not self._stop_ids:
                        raise EngineError(error.message, error.hint) from error
                    if len(written) == before:  # noqa: B023
                        raise
                    # It answered until now, so the wait for it begins anew.
                    return error

            try:
                generated = await self._service.call(attempt, on_wait=say)
            except ServiceGone as gone:
                raise EngineUnavailable(gone.message, gone.hint) from gone
            if isinstance(generated, EngineUnavailable):
                say(generated.message)
                continue
            if not before:
                return generated
            return Generation([*written[:before], *generated.token_ids], None, generated.finish)

    async def aclose(self) -> None:
        await self._engine.aclose()


class JudgeWatch(Protocol):
    """What knows whether a judge answers, and may bring it back."""

    async def trouble(self) -> str:
        """Why the judge does not answer; empty where it does."""
        ...

    async def recover(self) -> None:
        """Start the judge again, where that is ours to do."""
        ...


class RecoveringTools:
    """Tools that say so where the judge does not answer; its client asks again for the calls that are under way.

    A call that is lost for good is given to the model as lost.
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
        """Run a call on the tools of a conversation."""
        call = asyncio.ensure_future(tools.run(name, arguments))
        said = False
        try:
            while not (await asyncio.wait({call}, timeout=self._check_s))[0]:
                if trouble := await self._judge.trouble():
                    if not said:
                        self.notice(f"{trouble}; the call is being retried")
                    said = True
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
