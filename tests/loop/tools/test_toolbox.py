"""Tests of the tools on a real judge: programs and notebooks. No notebook outlives its rollout."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import aiohttp
import pytest
from support.call_parsing import parse_calls
from support.tools import patient
from support.waiting import TIMEOUT_S

from rstar2.judge.client import JudgeClient
from rstar2.judge.client.session import OPEN_S
from rstar2.judge.service.start import JudgeHandle, running_judge
from rstar2.loop.formats.format import Format, default_format, read_format
from rstar2.loop.tool import ToolContext
from rstar2.loop.toolbox import MAX_SESSIONS, RolloutTools, Toolbox
from rstar2.loop.tools.jupyter_code import Notebook
from rstar2.loop.trace import ToolCall

pytestmark = pytest.mark.slow  # A notebook has all libraries. A worker loads them for its first notebook.

PROGRAM, NOTEBOOK = "python_code_with_standard_io", "jupyter_code"
PAPERS_NAME = "execute_python_code_with_standard_io"


@pytest.fixture(scope="module")
def private_judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeHandle]:
    """A judge that only the sessions of this module use. Its one worker loads the libraries once."""
    with running_judge(tmp_path_factory.mktemp("judge"), workers=1) as handle:
        yield handle


@pytest.fixture
async def client(private_judge: JudgeHandle) -> AsyncIterator[JudgeClient]:
    async with JudgeClient(private_judge.url, private_judge.token, wait_s=2 * TIMEOUT_S) as new_client:
        yield new_client


@pytest.fixture
def fmt() -> Format:
    """A format with both tools."""
    layout = patient(read_format("release"))
    limits = layout.limits.model_copy(update={"characters": 1000})
    return layout.model_copy(update={"layout": "plain", "limits": limits})


@pytest.fixture(autouse=True)
def _closed_however_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar2.loop.tools.jupyter_code.CLOSE_S", TIMEOUT_S)


async def all_closed(client: JudgeClient) -> None:
    """Waits until no worker holds a session, according to heartbeats that are sent after this call."""
    now = time.time()
    deadline = time.monotonic() + TIMEOUT_S
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"{client.url}/status") as answer:
                workers = (await answer.json())["workers"]
            if all(worker["at"] > now and not worker["sessions"] for worker in workers):
                return
            assert time.monotonic() < deadline, f"sessions are left open: {workers}"
            await asyncio.sleep(0.05)


async def run_calls(box: Toolbox, *calls: tuple[str, dict[str, Any]]) -> list[ToolCall]:
    async with box.opened() as tools:
        return [await tools.run(*call) for call in calls]


async def test_input_may_be_left_out_and_the_papers_name_is_accepted(
    client: JudgeClient, fmt: Format
) -> None:
    echo = "import sys; print(repr(sys.stdin.read()))"
    expected_arguments: list[dict[str, Any]] = [
        {"code": echo, "input": "π\n"},
        {"code": echo},
        {"code": echo, "input": None},
    ]
    for name in (PROGRAM, PAPERS_NAME):
        calls = await run_calls(
            Toolbox(client, fmt), *((name, arguments) for arguments in expected_arguments)
        )
        assert [call.output for call in calls] == ["'π\\n'", "''", "''"]
        assert {call.name for call in calls} == {name}
    body = json.dumps({"name": PAPERS_NAME, "arguments": {"code": "1"}})
    assert parse_calls(f"<tool_call>{body}</tool_call>", default_format()) == [(PAPERS_NAME, {"code": "1"})]


async def test_limits_of_the_format_are_those_of_the_program(client: JudgeClient, fmt: Format) -> None:
    def limited(**limits: float) -> Toolbox:
        return Toolbox(client, fmt.model_copy(update={"limits": fmt.limits.model_copy(update=limits)}))

    small = {"memory_mb": 200, "characters": 4, "traceback_lines": 1}
    for name in (PROGRAM, NOTEBOOK):
        (endless,) = await run_calls(limited(seconds=0.2), (name, {"code": "while True: pass"}))
        assert endless.status == "timeout"
        programs = ["x = bytearray(10 ** 9)", "print('a' * 5 + 'b' * 5)"]
        large, long = await run_calls(limited(**small), *((name, {"code": code}) for code in programs))
        assert large.status in ("memory", "error")
        assert long.output == "aa\n... 6 characters left out ...\nbb"


async def test_a_notebook_keeps_its_variables_over_one_rollout_alone(
    client: JudgeClient, fmt: Format
) -> None:
    box = Toolbox(client, fmt)
    cells = ["x = 6", "print('set')\nx * 7", "1 / 0", "x", ""]
    calls = await run_calls(box, *((NOTEBOOK, {"code": code}) for code in cells))
    assert [call.status for call in calls] == ["ok", "ok", "error", "ok", "ok"]
    assert [call.output for call in calls[:2]] == ["(no output)", "set\n42"]
    assert calls[2].output.endswith("ZeroDivisionError: division by zero")
    assert calls[3].output == "6"
    (other,) = await run_calls(box, (NOTEBOOK, {"code": "x"}))
    assert "NameError" in other.output
    await all_closed(client)


async def test_cells_of_one_turn_run_in_their_order(client: JudgeClient, fmt: Format) -> None:
    async with Toolbox(client, fmt).opened() as tools:
        cells = ["import time; time.sleep(0.1); x = 1", "x += 1", "x"]
        calls = await asyncio.gather(*(tools.run(NOTEBOOK, {"code": code}) for code in cells))
    assert calls[-1].output == "2"


async def test_a_notebook_that_ends_says_so_and_the_next_call_gets_another(
    client: JudgeClient, fmt: Format
) -> None:
    cells = ["x = 1; import os; os._exit(3)", "x", "x = 2", "x"]
    calls = await run_calls(Toolbox(client, fmt), *((NOTEBOOK, {"code": code}) for code in cells))
    assert calls[0].failed
    assert "The notebook is gone with its variables: the session ended with exit code 3" in calls[0].output
    assert "NameError" in calls[1].output
    assert calls[3].output == "2"
    await all_closed(client)


@pytest.mark.parametrize("code", ["x\0", "x = 1  #" + "a" * (1 << 20)])
async def test_code_that_no_judge_takes_is_the_models_failure(
    client: JudgeClient, fmt: Format, code: str
) -> None:
    calls = await run_calls(Toolbox(client, fmt), (NOTEBOOK, {"code": code}), (PROGRAM, {"code": code}))
    assert [call.status for call in calls] == ["invalid_arguments"] * 2
    assert all("code" in call.output for call in calls)


async def test_what_follows_a_lost_notebook_is_lost_and_not_the_models_failure(
    client: JudgeClient, fmt: Format
) -> None:
    async with Toolbox(client, fmt).opened() as tools:
        assert (await tools.run(NOTEBOOK, {"code": "x = 1"})).status == "ok"
        session = await tools._context.resource(Notebook)._opening  # type: ignore[misc]
        await client.request("DELETE", f"/v1/sessions/{session.info.id}", "", 30.0, str)
        calls = [await tools.run(NOTEBOOK, {"code": "x"}) for _ in range(2)]
    assert [call.status for call in calls] == ["lost", "lost"]
    assert not any(call.failed for call in calls)


async def test_a_judge_that_is_away_when_a_notebook_is_opened_may_be_asked_again(fmt: Format) -> None:
    async with JudgeClient("http://127.0.0.1:9", wait_s=0.2 - OPEN_S) as nobody:
        box = Toolbox(nobody, fmt)
        calls = await run_calls(box, *[(NOTEBOOK, {"code": "1"})] * 2)
        assert [call.status for call in calls] == ["lost", "lost"]
        assert box._sessions._value == MAX_SESSIONS


async def test_a_call_that_finds_no_session_free_is_lost_and_not_the_models_failure(fmt: Format) -> None:
    async with JudgeClient("http://127.0.0.1:9") as nobody:
        tools = RolloutTools(ToolContext(nobody, fmt.limits, asyncio.Semaphore(0), session_wait_s=0.01), fmt)
        call = await tools.run(NOTEBOOK, {"code": "1"})
    assert (call.status, call.failed) == ("lost", False)
    assert "no session became free within 0.01 s" in call.output


async def test_a_rollout_that_fails_or_is_cancelled_closes_its_notebook(
    client: JudgeClient, fmt: Format
) -> None:
    box, is_open = Toolbox(client, fmt), asyncio.Event()

    async def fails() -> None:
        async with box.opened() as tools:
            await tools.run(NOTEBOOK, {"code": "1"})
            raise ValueError("the engine is gone")

    async def waits(code: str) -> None:
        async with box.opened() as tools:
            await tools.run(NOTEBOOK, {"code": "1"})
            is_open.set()
            await tools.run(NOTEBOOK, {"code": code})
            await asyncio.sleep(3600)

    with pytest.raises(ValueError, match="the engine is gone"):
        await fails()
    for code in ("1", "import time; time.sleep(1.5)"):
        is_open.clear()
        rollout = asyncio.create_task(waits(code))
        await is_open.wait()
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
    in_its_opening = asyncio.create_task(waits("1"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    in_its_opening.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await in_its_opening
    await all_closed(client)


@pytest.mark.timeout(900)
async def test_of_256_rollouts_in_flight_none_is_lost_or_leaves_a_notebook(
    client: JudgeClient, fmt: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rollout has its own notebook. One in eight rollouts is cancelled before it ends."""
    in_flight, most = 256, 64
    monkeypatch.setattr("rstar2.loop.toolbox.MAX_SESSIONS", most)
    box, all_started, open_now, peak = Toolbox(client, fmt), asyncio.Barrier(in_flight), 0, 0

    async def rollout(number: int) -> list[ToolCall]:
        nonlocal open_now, peak
        await all_started.wait()
        async with box.opened() as tools:
            first = await tools.run(NOTEBOOK, {"code": f"x = {number}"})
            open_now += 1
            peak = max(peak, open_now)
            try:
                if number % 8 == 0:
                    asyncio.current_task().cancel()  # type: ignore[union-attr]
                return [first, await tools.run(NOTEBOOK, {"code": "x + 1"})]
            finally:
                open_now -= 1

    rollouts = await asyncio.gather(*(rollout(number) for number in range(in_flight)), return_exceptions=True)
    for number, calls in enumerate(rollouts):
        if number % 8 == 0:
            assert isinstance(calls, asyncio.CancelledError)
        else:
            assert isinstance(calls, list), calls
            assert [call.status for call in calls] == ["ok"] * 2
            assert calls[-1].output == str(number + 1)
    assert 1 < peak <= most
    assert box._sessions._value == most
    await all_closed(client)
