"""A Model Context Protocol (MCP) server for the judge, so that any AI assistant can run Python in isolation.

The server has four tools. `run_python` runs one program. `open_session`, `run_cell` and `close_session` use a process
that keeps its variables. Specification: https://modelcontextprotocol.io/specification, sections on tools and on stdio.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field, ValidationError

from rstar2 import __version__
from rstar2.errors import RStarError
from rstar2.judge.client.client import JudgeClient
from rstar2.judge.client.session import JudgeSession
from rstar2.judge.schema import MAX_TIMEOUT_S, CellRequest, CellResult, RunRequest, RunResult, SessionInfo

WAIT_S = 60.0
"""If the judge does not answer, a tool call waits for this many seconds beyond the program's own time limit."""
CLOSE_S = 20.0
"""Timeout in seconds for closing the open sessions when the server ends."""
INSTRUCTIONS = (
    "Runs Python in isolation, without access to the network or to this machine's files; numpy, sympy, scipy and "
    "pandas can be imported. `value` is the value of the last expression. run_python starts a new process each "
    "time; to keep variables, open a session and run cells in it."
)
Code = Annotated[str, Field(description="Python source.")]
Timeout = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S, description="Time limit, in seconds.")]
SessionId = Annotated[str, Field(description="The id that open_session returned.")]


def mcp_server(url: str, token: str | None) -> MCPServer[None]:
    """Returns an MCP server whose tools run on the judge at `url`. The MCP server closes its sessions when it ends."""
    client = JudgeClient(url, token, wait_s=WAIT_S)
    sessions: dict[str, JudgeSession] = {}

    @asynccontextmanager
    async def lifespan(_: MCPServer[None]) -> AsyncIterator[None]:
        async with client:
            try:
                yield
            finally:
                # If the judge does not answer, the sessions end by themselves after their idle time.
                with suppress(TimeoutError, RStarError):
                    async with asyncio.timeout(CLOSE_S):
                        for session in sessions.values():
                            await session.__aexit__()

    server = MCPServer(
        "rstar2-judge", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING", lifespan=lifespan
    )

    def session_by_id(session_id: str) -> JudgeSession:
        if session_id not in sessions:
            raise ToolError(f"There is no session {session_id!r}. Call open_session to start one.")
        return sessions[session_id]

    @server.tool()
    async def run_python(
        code: Code,
        stdin: Annotated[str, Field(description="Standard input of the program.")] = "",
        timeout_s: Timeout = 10.0,
    ) -> RunResult:
        """Run a Python program in a fresh process. Returns the program's output, its last value, and how it ended."""
        with _tool_errors():
            return await client.run(RunRequest(code=code, stdin=stdin, timeout_s=timeout_s))

    @server.tool()
    async def open_session() -> SessionInfo:
        """Start a Python process that keeps its variables from cell to cell.

        The session's process ends if the process is idle for a long time.
        """
        session = JudgeSession(client)
        with _tool_errors():
            await session.__aenter__()
        assert session.info is not None
        sessions[session.info.id] = session
        return session.info

    @server.tool()
    async def run_cell(session_id: SessionId, code: Code, timeout_s: Timeout = 10.0) -> CellResult:
        """Run a cell in a session. Returns the cell's output, its last value, and how it ended."""
        session = session_by_id(session_id)
        with _tool_errors():
            result = await session.run(CellRequest(code=code, timeout_s=timeout_s))
        if not result.session_alive:
            sessions.pop(session_id, None)
        return result

    @server.tool()
    async def close_session(session_id: SessionId) -> str:
        """End a session and free its memory."""
        session = session_by_id(session_id)
        with _tool_errors():
            await session.__aexit__()
        sessions.pop(session_id, None)
        return "closed"

    return server


@contextmanager
def _tool_errors() -> Iterator[None]:
    """Turns an error of the judge or of the request into a ToolError. The assistant gets the error's text."""
    try:
        yield
    except (RStarError, ValidationError) as error:
        raise ToolError(str(error)) from error
