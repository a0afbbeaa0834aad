"""The judge as a tool server of the Model Context Protocol, called by the protocol's own client."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.optional import needs
from support.waiting import TIMEOUT_S

from rstar2.judge.service.start import JudgeHandle
from rstar2.judge.service.state import state_file

# Slow: each worker loads all libraries before its first session.
pytestmark = [pytest.mark.slow, needs("mcp")]


def assistant(judge: JudgeHandle) -> Any:
    """An MCP client of tools that run on the judge. Use it with `async with`."""
    from mcp import Client

    from rstar2.judge.client.mcp_server import mcp_server

    return Client(mcp_server(judge.url, judge.token))


async def open_session(client: Any) -> str:
    """Open a session and return its id."""
    answer = await client.call_tool("open_session")
    assert not answer.is_error, answer.content
    return str(answer.structured_content["id"])


async def test_the_tools_say_what_they_take(judge: JudgeHandle) -> None:
    async with assistant(judge) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(tools) == {"run_python", "open_session", "run_cell", "close_session"}
    assert tools["run_python"].input_schema["required"] == ["code"]
    assert all(tool.description for tool in tools.values())


async def test_a_program_runs_with_input_and_says_how_it_ended(judge: JudgeHandle) -> None:
    async with assistant(judge) as client:
        completed = await client.call_tool(
            "run_python", {"code": "print(input())\n6 * 7", "stdin": "hello\n", "timeout_s": TIMEOUT_S}
        )
        failed = await client.call_tool("run_python", {"code": "1 / 0", "timeout_s": TIMEOUT_S})
        endless = await client.call_tool("run_python", {"code": "while True: pass", "timeout_s": 0.2})
    result = completed.structured_content
    assert not completed.is_error
    assert (result["outcome"], result["stdout"], result["value"]) == ("ok", "hello\n", "42")
    assert failed.structured_content["outcome"] == "error"
    assert "ZeroDivisionError" in failed.structured_content["stderr"]
    assert endless.structured_content["outcome"] == "timeout"


async def test_a_session_keeps_its_variables_until_it_is_closed(judge: JudgeHandle) -> None:
    async with assistant(judge) as client:
        id = await open_session(client)
        await client.call_tool("run_cell", {"session_id": id, "code": "x = 41"})
        second_cell = await client.call_tool("run_cell", {"session_id": id, "code": "x + 1"})
        await client.call_tool("close_session", {"session_id": id})
        cell_after_close = await client.call_tool("run_cell", {"session_id": id, "code": "x"})
    assert second_cell.structured_content["value"] == "42"
    assert cell_after_close.is_error
    assert "open_session" in cell_after_close.content[0].text


async def test_sessions_left_open_end_with_the_server(judge: JudgeHandle) -> None:
    async with assistant(judge) as client:
        id = await open_session(client)
    async with httpx.AsyncClient(base_url=judge.url, timeout=TIMEOUT_S, trust_env=False) as http:
        cell = (await http.post(f"/v1/sessions/{id}/cells", json={"code": "1"})).json()
    assert (cell["outcome"], cell["session_alive"]) == ("lost", False)


async def test_a_judge_that_refuses_is_told_in_the_tools_answer(judge: JudgeHandle) -> None:
    async with assistant(judge.model_copy(update={"url": f"{judge.url}/nothing"})) as client:
        for tool in ("run_python", "open_session"):
            answer = await client.call_tool(tool, {"code": "1"} if tool == "run_python" else {})
            assert answer.is_error
            assert judge.url in answer.content[0].text


async def test_a_program_that_is_too_long_is_told_with_the_limit(judge: JudgeHandle) -> None:
    async with assistant(judge) as client:
        answer = await client.call_tool("run_python", {"code": "#" * (2 << 20)})
    assert answer.is_error
    assert "at most" in answer.content[0].text


@pytest.mark.parametrize("uses", ["named", "running here", pytest.param("own", marks=pytest.mark.long)])
async def test_the_command_speaks_the_protocol_on_its_streams(
    judge: JudgeHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uses: str
) -> None:
    from mcp import Client
    from mcp.client.stdio import StdioServerParameters, stdio_client

    if uses == "running here":
        monkeypatch.setenv("RSTAR2_STATE", str(tmp_path))
        state_file().write(judge)
    words = ["-m", "rstar2", "judge", "mcp", *(["--url", judge.url] if uses == "named" else [])]
    server = StdioServerParameters(command=sys.executable, args=words, env={"RSTAR2_STATE": str(tmp_path)})
    with (tmp_path / "said").open("w") as log_file:
        async with Client(stdio_client(server, errlog=log_file)) as client:
            answer = await client.call_tool("run_python", {"code": "6 * 7"})
    assert answer.structured_content["value"] == "42"
    log = (tmp_path / "said").read_text()
    assert (f"tools of the judge at {judge.url}\n" in log) == (uses != "own"), log
