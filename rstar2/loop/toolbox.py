"""Runs the tool calls of rollouts: finds the tool, runs the call on the judge, words the result for the model."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Any

from rstar2.errors import RStarError
from rstar2.judge.client import JudgeClient
from rstar2.judge.client.http import AccessRefused
from rstar2.judge.schema import RunResult
from rstar2.loop.formats.format import Format
from rstar2.loop.formats.replies import result_text
from rstar2.loop.tools import Tool, ToolContext, tool_modules, tool_name
from rstar2.loop.trace import CallStatus, ToolCall


class Toolbox:
    """The tools of a format, for any number of rollouts of one event loop."""

    def __init__(self, judge: JudgeClient, fmt: Format) -> None:
        self._context = ToolContext(judge, fmt.limits)
        self._format = fmt

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[RolloutTools]:
        """The tools for one rollout; what they opened is closed at the end of the block, however it ends."""
        tools = RolloutTools(self._context, self._format)
        try:
            yield tools
        finally:
            await tools.aclose()


class RolloutTools:
    """The tools of one rollout, each opened when it is first called. `Toolbox.opened` makes and closes them."""

    def __init__(self, context: ToolContext, fmt: Format) -> None:
        self._context = context
        self._format = fmt
        self._tools: dict[str, Tool] = {}

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        """Run a call that `rstar2.loop.agent.parse_calls` found fit.

        Its status is `lost` if the service behind the tool failed. Whatever else a tool raises is the `error` of that
        call.

        Raises:
            AccessRefused: the judge refuses this client, so that every further call would be lost too.
        """
        started = time.monotonic()
        limits, layout = self._context.limits, self._format.layout
        try:
            result = await self._tool(name).run(arguments)
            status: CallStatus = "invalid_arguments" if result.outcome == "invalid" else result.outcome
            output = result_text(result, layout, limits)
        except AccessRefused:
            raise
        except RStarError as error:
            status, output = "lost", f"The code could not be run: {error.message}"
        except Exception as error:  # noqa: BLE001 - a tool may raise anything, the run continues
            raised = RunResult(id="", outcome="error", stderr=f"{type(error).__name__}: {error}")
            status, output = "error", result_text(raised, layout, limits)
        return ToolCall(
            name=name, arguments=arguments, status=status, output=output, wall_s=time.monotonic() - started
        )

    def _tool(self, name: str) -> Tool:
        own_name = tool_name(name)
        if own_name is None:
            raise KeyError(f"no tool {name}")
        if own_name not in self._tools:
            self._tools[own_name] = tool_modules()[own_name].Tool(self._context)
        return self._tools[own_name]

    async def aclose(self) -> None:
        for tool in self._tools.values():
            await tool.aclose()
