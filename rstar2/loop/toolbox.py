"""Runs the tool calls of rollouts: looks up the tool, runs the call, and formats the result for the model."""

from __future__ import annotations

import asyncio
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
from rstar2.loop.tool import ToolContext
from rstar2.loop.trace import CallStatus, ToolCall

MAX_SESSIONS = 256
"""Maximum number of judge sessions that one process keeps open. One worker of the judge can keep the same number of
sessions open."""


class Toolbox:
    """The tools of a format, for any number of rollouts on one event loop.

    Raises:
        UserError: a tool of the format cannot be loaded.
    """

    def __init__(self, judge: JudgeClient, fmt: Format) -> None:
        fmt.load_tools()
        self._judge, self._format = judge, fmt
        self._sessions = asyncio.Semaphore(MAX_SESSIONS)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[RolloutTools]:
        """Open the tools for one rollout. The end of the `async with` block closes the tools' resources, even after an
        exception."""
        context = ToolContext(self._judge, self._format.limits, self._sessions)
        try:
            yield RolloutTools(context, self._format)
        finally:
            await context.aclose()


class RolloutTools:
    """The tools of one rollout. `Toolbox.opened` creates the tools and closes their resources."""

    def __init__(self, context: ToolContext, fmt: Format) -> None:
        self._context = context
        self._format = fmt

    @property
    def keep_state(self) -> bool:
        """Whether an earlier call has left state that later calls may depend on, such as a notebook."""
        return self._context.has_resources

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        """Run a call whose arguments `rstar2.loop.agent.checked_call` accepted.

        A tool raises an RStarError if the service behind the tool failed. The status of a call whose tool raised an
        RStarError is `lost`. After any other exception of the tool, the status is `error`, and the output shows the
        exception.

        Raises:
            AccessRefused: the judge refuses this client, and would refuse every further call too.
        """
        started = time.monotonic()
        limits, layout = self._context.limits, self._format.layout
        try:
            tool = self._format.tool(name)
            if tool is None:
                raise KeyError(f"no tool {name}")
            result = await tool.run(arguments, self._context)
            status: CallStatus = "invalid_arguments" if result.outcome == "invalid" else result.outcome
            output = result_text(result, layout, limits)
        except AccessRefused:
            raise
        except RStarError as error:
            status, output = "lost", f"The code could not be run: {error.message}"
        except Exception as error:  # noqa: BLE001 - a tool may raise anything, the run continues
            # The message may contain a lone surrogate, which cannot be written to a file.
            message = f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
            status, output = (
                "error",
                result_text(RunResult(id="", outcome="error", stderr=message), layout, limits),
            )
        return ToolCall(
            name=name, arguments=arguments, status=status, output=output, wall_s=time.monotonic() - started
        )
