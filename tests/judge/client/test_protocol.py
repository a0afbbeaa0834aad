"""The client, judges with other protocol versions, and fields that the client does not know."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from support.waiting import TIMEOUT_S
from websockets.asyncio.server import ServerConnection, serve

from rstar2.errors import UserError
from rstar2.judge.client import JudgeClient
from rstar2.judge.client.http import IncompatibleJudge, JudgeError
from rstar2.judge.client.session import JudgeSession
from rstar2.judge.protocol_version import HEADER, PROTOCOL
from rstar2.judge.schema import RunRequest


@asynccontextmanager
async def answering(status: str, headers: str, body: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Start a server that answers every request in the same way. Yields its URL and the headers of the requests."""
    heads: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        text = f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"
        writer.write(text.encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads


@pytest.mark.parametrize(
    ("judge_version", "remedy"), [("9.1", "this client"), ("0.3", "the judge"), ("", "the judge")]
)
async def test_a_judge_that_refuses_the_version_is_the_users_mistake_at_once(
    judge_version: str, remedy: str
) -> None:
    head = f"{HEADER}: {judge_version}\r\n"
    async with (
        answering("426 Upgrade Required", head, "{}") as (url, heads),
        JudgeClient(url) as client,
        asyncio.timeout(TIMEOUT_S),
    ):
        with pytest.raises(IncompatibleJudge) as run_error:
            await client.run(RunRequest(code="1"))
        with pytest.raises(IncompatibleJudge) as session_error:
            await JudgeSession(client).__aenter__()
    version_text = f"version {judge_version}" if judge_version else "an older version"
    for error in (run_error.value, session_error.value):
        assert error.message.startswith(f"the judge at {url} speaks {version_text}")
        assert error.message.endswith(f"this client speaks version {PROTOCOL}")
        assert f"Update rstar2 for {remedy}:" in error.hint
        assert error.exit_code == UserError.exit_code
    assert len(heads) == 2
    assert all(f"{HEADER}: {PROTOCOL}\r\n" in head for head in heads)


async def test_another_server_that_wants_an_upgrade_is_no_other_version() -> None:
    async with (
        answering("426 Upgrade Required", "Upgrade: h3\r\n", "{}") as (url, _),
        JudgeClient(url) as client,
    ):
        with pytest.raises(JudgeError, match="HTTP 426") as error:
            await asyncio.wait_for(client.run(RunRequest(code="1")), TIMEOUT_S)
    assert not isinstance(error.value, IncompatibleJudge)


async def test_health_tells_of_another_version() -> None:
    for judge_version, is_understood in (
        (str(PROTOCOL), True),
        (f"{PROTOCOL.major}.99", True),
        ("9.0", False),
    ):
        body = json.dumps({"status": "ok", "workers": 1, "isolation": "strict", "protocol": judge_version})
        async with answering("200 OK", "", body) as (url, _), JudgeClient(url) as client:
            if is_understood:
                assert (await client.health())["workers"] == 1
            else:
                with pytest.raises(IncompatibleJudge, match=r"version 9\.0"):
                    await client.health()


async def test_fields_of_a_later_judge_are_ignored() -> None:
    async def answers(connection: ServerConnection) -> None:
        async for message in connection:
            for order in json.loads(message):
                result = {"id": order["id"], "outcome": "ok", "stdout": "1\n", "added": {"a": 1}}
                await connection.send(json.dumps([{"id": order["id"], "result": result, "added": 5}]))

    async with serve(answers, "127.0.0.1", 0) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with JudgeClient(f"http://127.0.0.1:{port}") as client:
            result = await asyncio.wait_for(client.run(RunRequest(code="1")), TIMEOUT_S)
    assert (result.outcome, result.stdout) == ("ok", "1\n")
