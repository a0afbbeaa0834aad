"""The judge as a tool server of the Model Context Protocol, so that any assistant can run Python in isolation.

Four tools: `run_python` runs a program; `open_session`, `run_cell` and `close_session` use a process that keeps its
variables (specification: https://modelcontextprotocol.io/specification, tools and standard input/output).
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
"""How long an assistant waits for a judge that does not answer, beyond a program's own limit."""
CLOSE_S = 20.0
"""How long the end waits for open sessions to be closed."""
INSTRUCTIONS = (
    "Runs Python in isolation, without access to the network or to this machine's files; numpy, sympy, scipy and "
    "pandas can be imported. `value` is the last expression, as in a notebook. run_python starts afresh each time; to "
    "keep variables, open a session and run cells in it."
)
Code = Annotated[str, Field(description="Python source.")]
Timeout = Annotated[float, Field(gt=0, le=MAX_TIMEOUT_S, description="Time limit, in seconds.")]
SessionId = Annotated[str, Field(description="The id that open_session returned.")]


def mcp_server(url: str, token: str | None) -> MCPServer[None]:
    """A server whose tools run on the judge at a URL. Its sessions are closed when it ends."""
    client = JudgeClient(url, token, wait_s=WAIT_S)
    sessions: dict[str, JudgeSession] = {}

    @asynccontextmanager
    async def lifespan(_: MCPServer[None]) -> AsyncIterator[None]:
        async with client:
            try:
                yield
            finally:
                # Where the judge is away, they end by themselves, once they have been idle for long.
                with suppress(TimeoutError, RStarError):
                    async with asyncio.timeout(CLOSE_S):
                        for session in sessions.values():
                            await session.__aexit__()

    server = MCPServer(
        "rstar2-judge", instructions=INSTRUCTIONS, version=__version__, log_level="WARNING", lifespan=lifespan
    )

    def open_one(session_id: str) -> JudgeSession:
        if session_id not in sessions:
            raise ToolError(f"there is no session {session_id}; open_session starts one")
        return sessions[session_id]

    @server.tool()
    async def run_python(
        code: Code,
        stdin: Annotated[str, Field(description="Standard input of the program.")] = "",
        timeout_s: Timeout = 10.0,
    ) -> RunResult:
        """Run a Python program in a fresh process: what it printed, its last value, and how it ended."""
        with _told():
            return await client.run(RunRequest(code=code, stdin=stdin, timeout_s=timeout_s))

    @server.tool()
    async def open_session() -> SessionInfo:
        """Start a Python process that keeps its variables from cell to cell; it ends after long idleness."""
        session = JudgeSession(client)
        with _told():
            await session.__aenter__()
        assert session.info is not None
        sessions[session.info.id] = session
        return session.info

    @server.tool()
    async def run_cell(session_id: SessionId, code: Code, timeout_s: Timeout = 10.0) -> CellResult:
        """Run a cell in a session: what it printed, its last value, and how it ended."""
        session = open_one(session_id)
        with _told():
            result = await session.run(CellRequest(code=code, timeout_s=timeout_s))
        if not result.session_alive:
            sessions.pop(session_id, None)
        return result

    @server.tool()
    async def close_session(session_id: SessionId) -> str:
        """End a session and free what it holds."""
        session = open_one(session_id)
        with _told():
            await session.__aexit__()
        sessions.pop(session_id, None)
        return "closed"

    return server


@contextmanager
def _told() -> Iterator[None]:
    """What is wrong with the judge, or with the program's size, reaches the assistant as the tool's answer."""
    try:
        yield
    except (RStarError, ValidationError) as error:
        raise ToolError(str(error)) from error
