"""Says in a line that an engine or a judge is away, and tries again, for as long as a person would wait."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from rstar2.backoff import Backoff
from rstar2.engines.retry import FIRST_ANSWER_S
from rstar2.loop.agent import ToolRunner, Tools
from rstar2.loop.engine import Engine, EngineUnavailable, Generation, OnTokens, Sampling
from rstar2.loop.trace import ToolCall

Notice = Callable[[str], None]
"""Shows a person one line."""
WAIT_S = 30.0
"""How long a person waits for an engine or a judge that went away."""
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 2.0


class ContinuingEngine:
    """An engine whose turns are continued, from the tokens that were generated, after it was away for up to `wait_s`.

    A server that never answered is waited for only a few seconds: most often its URL is wrong.
    """

    def __init__(self, engine: Engine, stop_id: int | None, notice: Notice, wait_s: float = WAIT_S) -> None:
        self.notice = notice
        self._engine = engine
        self._stop_id = stop_id
        """Ends a turn; None for an engine that cannot continue one."""
        self._wait_s = wait_s
        self._answered = False

    @property
    def name(self) -> str:
        return self._engine.name

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        """Generate, and continue after each failure of the engine; EngineUnavailable after too long without a token."""
        written: list[int] = []
        away_since: float | None = None
        backoff = Backoff(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)

        def show(token_ids: list[int]) -> None:
            nonlocal away_since
            away_since, self._answered = None, True
            backoff.reset()
            written.extend(token_ids)
            if on_tokens is not None:
                on_tokens(token_ids)

        while True:
            before = len(written)
            if before and written[-1] == self._stop_id:
                return Generation(written, None, "stop")
            if before >= sampling.max_tokens:
                return Generation(written, None, "length")
            rest = replace(sampling, max_tokens=sampling.max_tokens - before)
            try:
                generated = await self._engine.generate([*prompt_ids, *written], rest, show)
            except EngineUnavailable as error:
                if written and self._stop_id is None:
                    raise
                wait_s = self._wait_s if self._answered else min(self._wait_s, FIRST_ANSWER_S)
                now, goes_away = time.monotonic(), away_since is None
                away_since = now if away_since is None else away_since
                if now - away_since >= wait_s:
                    raise
                if goes_away:
                    continued = "the answer continues" if written else "the question is asked again"
                    self.notice(f"{error.message}; {continued} when it is back")
                await asyncio.sleep(backoff.next_s())
                continue
            self._answered = True
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
