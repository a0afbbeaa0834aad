"""Runs the tool calls that a judge lost again, by the retry policy of engines."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from rstar2.engines.retry import RetryPolicy
from rstar2.errors import Unavailable
from rstar2.loop.agent import ToolRunner, Tools
from rstar2.loop.trace import ToolCall


class RetryingTools:
    """Tools whose lost calls are run again, and counted.

    A call that stays lost while the judge answers others is given to the model as lost; where nobody is answered
    for `wait_s` seconds, `run` raises ServiceGone.
    """

    def __init__(self, tools: Tools, wait_s: float) -> None:
        self.policy = RetryPolicy("judge", wait_s)
        self.calls = 0
        """Calls finished so far."""
        self._tools = tools

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[ToolRunner]:
        async with self._tools.opened() as tools:
            yield _RetryingRunner(tools, self)


class _RetryingRunner:
    """The tools of one rollout."""

    def __init__(self, tools: ToolRunner, shared: RetryingTools) -> None:
        self._tools = tools
        self._shared = shared

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        async def attempt() -> ToolCall:
            call = await self._tools.run(name, arguments)
            if call.status == "lost":
                raise _LostCall(call)
            return call

        try:
            call = await self._shared.policy.call(attempt)
        except _LostCall as lost:
            call = lost.call
        self._shared.calls += 1
        return call


class _LostCall(Unavailable):
    """The judge gave no result."""

    def __init__(self, call: ToolCall) -> None:
        super().__init__(call.output)
        self.call = call
