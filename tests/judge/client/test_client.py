"""The client: concurrent calls, several event loops, forks, cancellation, and a judge that does not answer."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.judge.judge_faults import status_when, unfinished
from support.waiting import TIMEOUT_S, wait_until

from rstar2.errors import UserError
from rstar2.judge.client import JudgeClient, SyncJudgeClient
from rstar2.judge.client import connection as client_connection
from rstar2.judge.client import http as client_http
from rstar2.judge.client.http import JudgeError, WrongToken
from rstar2.judge.client.session import JudgeSession
from rstar2.judge.schema import RunRequest
from rstar2.judge.service.start import JudgeHandle
from rstar2.retry import ATTEMPTS, Pauses


async def wait_for_status(judge: JudgeHandle, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Call `status_when` in a thread, so that the event loop continues."""
    return await asyncio.to_thread(status_when, judge, condition)


def quick(code: str) -> RunRequest:
    """A program whose time limit is long enough for every machine."""
    return RunRequest(code=code, timeout_s=TIMEOUT_S)


ENDLESS = quick("while True: pass")


@pytest.mark.slow
async def test_many_calls_come_back_each_with_its_own_result(judge: JudgeHandle) -> None:
    async with JudgeClient(judge.url) as client:
        results = await client.run_many([quick(f"print({i})") for i in range(100)])
    assert [result.stdout for result in results] == [f"{i}\n" for i in range(100)]


def test_one_client_serves_several_loops_threads_and_a_copy(judge: JudgeHandle) -> None:
    client: JudgeClient = pickle.loads(pickle.dumps(JudgeClient(judge.url)))

    async def run_and_close(number: int) -> str:
        try:
            return (await client.run(quick(f"print({number})"))).stdout
        finally:
            await client.aclose()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda i: asyncio.run(run_and_close(i)), range(4))) == [
            f"{i}\n" for i in range(4)
        ]


def test_the_synchronous_client_answers_from_many_threads(judge: JudgeHandle) -> None:
    with SyncJudgeClient(judge.url) as client, ThreadPoolExecutor(8) as pool:
        outputs = pool.map(lambda i: client.run(quick(f"print({i})")).stdout, range(16))
        assert list(outputs) == [f"{i}\n" for i in range(16)]


async def test_what_is_no_valid_request_is_invalid_alone(judge: JudgeHandle) -> None:
    codes: list[Any] = ["print(1)", "\ud800", 5, None]
    requests = [RunRequest.model_construct(code=code, timeout_s=TIMEOUT_S) for code in codes]
    async with JudgeClient(judge.url) as client:
        results = await client.run_many(requests)
    assert [result.outcome for result in results] == ["ok", "invalid", "invalid", "invalid"]


async def test_what_has_no_end_as_json_is_invalid_alone(judge: JudgeHandle) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    requests = [RunRequest.model_construct(code=deep), quick("1")]
    async with JudgeClient(judge.url) as client:
        results = await client.run_many(requests)
    assert [result.outcome for result in results] == ["invalid", "ok"]


@pytest.mark.parametrize("limit", [None, "5", True, float("nan"), float("inf"), 10**400])
async def test_what_is_no_time_limit_is_invalid(judge: JudgeHandle, limit: Any) -> None:
    request = RunRequest.model_construct(code="1", timeout_s=limit)
    async with JudgeClient(judge.url) as client:
        result = await client.run(request)
    assert result.outcome == "invalid"
    assert result.stderr.startswith("timeout_s")


async def test_cancelled_work_is_dropped_from_the_queue(judge: JudgeHandle) -> None:
    async with JudgeClient(judge.url) as client:
        before = (await wait_for_status(judge, lambda status: not unfinished(status)))["outcomes"]
        waiting = asyncio.create_task(client.run_many([ENDLESS] * 60))
        await wait_for_status(judge, lambda status: unfinished(status) == 60)
        waiting.cancel()
        after = (await wait_for_status(judge, lambda status: not unfinished(status)))["outcomes"]
    assert after == before


@pytest.mark.slow
async def test_cancelling_ends_what_runs_and_the_same_program_can_run_again_under_its_id(
    judge: JudgeHandle,
) -> None:
    async with (
        JudgeClient(judge.url) as client,
        httpx.AsyncClient(base_url=judge.url, timeout=2 * TIMEOUT_S) as http,
    ):

        def post(program: RunRequest) -> asyncio.Task[httpx.Response]:
            headers = {"Idempotency-Key": "again"}
            return asyncio.create_task(http.post("/v1/runs", json=program.model_dump(), headers=headers))

        before = (await wait_for_status(judge, lambda status: not unfinished(status)))["outcomes"]
        waiting = asyncio.create_task(client.run_many([ENDLESS] * 3))
        keyed_run = post(ENDLESS)
        await wait_for_status(judge, lambda status: unfinished(status) == 4)
        waiting.cancel()
        await wait_for_status(judge, lambda status: (status["queue"], status["running"]) == (0, 1))
        keyed_run.cancel()
        # Wait until the judge has seen the connection close: an earlier request would join the endless run.
        await wait_for_status(judge, lambda status: not unfinished(status))
        [result, changed_program] = await asyncio.gather(
            client.run(quick("print(5)")), post(quick("print(6)"))
        )
        second_run = post(ENDLESS)
        await wait_for_status(judge, lambda status: (status["queue"], status["running"]) == (0, 1))
        second_run.cancel()
        after = (await wait_for_status(judge, lambda status: not unfinished(status)))["outcomes"]
    assert (result.outcome, result.stdout) == ("ok", "5\n")
    assert changed_program.status_code == 422, "the key is that of the cancelled program"
    assert {name: after[name] - before.get(name, 0) for name in after} == {
        name: int(name == "ok") for name in after
    }


async def test_one_cancelled_call_of_many_is_taken_back_alone(judge: JudgeHandle) -> None:
    async with JudgeClient(judge.url) as client:
        await wait_for_status(judge, lambda status: not unfinished(status))
        calls = [asyncio.create_task(client.run(ENDLESS)) for _ in range(4)]
        await wait_for_status(judge, lambda status: unfinished(status) == 4)
        calls.pop().cancel()
        await wait_for_status(judge, lambda status: unfinished(status) == 3)
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()
        await wait_for_status(judge, lambda status: not unfinished(status))


async def test_a_short_program_does_not_wait_for_a_long_one_it_travels_with(judge: JudgeHandle) -> None:
    async with JudgeClient(judge.url) as client:
        long = asyncio.create_task(client.run(ENDLESS))
        result = await client.run(quick("print(1)"))
        assert (result.stdout, long.done()) == ("1\n", False)
        long.cancel()
        await wait_for_status(judge, lambda status: not unfinished(status))


async def test_no_character_ends_a_result(judge: JudgeHandle) -> None:
    text = "a\u2028b\x85c\x0cd\r\ne"
    async with JudgeClient(judge.url) as client:
        results = await client.run_many([quick(f"print({text!a}, end='')")] * 2)
    assert [result.stdout for result in results] == [text] * 2


@pytest.mark.slow
async def test_programs_too_large_to_travel_together_travel_apart(judge: JudgeHandle) -> None:
    stdin = "é" * (1 << 20)
    requests = [
        RunRequest(code="print(len(input()))", stdin=stdin, memory_mb=256, timeout_s=TIMEOUT_S)
        for _ in range(16)
    ]
    async with JudgeClient(judge.url) as client:
        results = await client.run_many(requests)
    assert [result.stdout for result in results] == [f"{1 << 20}\n"] * 16


async def test_a_program_longer_than_any_message_may_be_is_invalid_alone(judge: JudgeHandle) -> None:
    requests = [quick("print(1)"), RunRequest(code="1", stdin="\x01" * (12 << 20))]
    async with JudgeClient(judge.url) as client:
        results = await client.run_many(requests)
    assert [result.outcome for result in results] == ["ok", "invalid"]
    assert "more than" in results[1].stderr


async def test_closing_the_client_leaves_no_call_behind(judge: JudgeHandle) -> None:
    client = JudgeClient(judge.url)
    sent_calls = [asyncio.create_task(client.run(ENDLESS)) for _ in range(2)]
    await wait_for_status(judge, lambda status: status["running"] == 2)
    unsent_call = asyncio.create_task(client.run(RunRequest(code="1")))
    await asyncio.sleep(0)
    await client.aclose()
    ended_calls, _ = await asyncio.wait([*sent_calls, unsent_call], timeout=TIMEOUT_S)
    assert [call.cancelled() for call in ended_calls] == [True, True, True]


async def test_an_absent_judge_is_an_answer_within_the_time_given() -> None:
    with socket.socket() as unused_port:
        unused_port.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused_port.getsockname()[1]}"
        # On a slow machine, a short wait ends before the client tries to connect. Then try a longer one.
        for wait_s in (0.5, 5.0, 50.0):
            async with JudgeClient(url, wait_s=wait_s) as client, asyncio.timeout(TIMEOUT_S):
                result = await client.run(RunRequest(code="1", timeout_s=0.1))
                assert result.outcome == "lost"
                with pytest.raises(JudgeError, match="no judge answers"):
                    await client.health()
            if "silent" not in result.stderr:
                break
        assert f"cannot connect to {url.removeprefix('http://')}" in result.stderr


async def _open_session(client: JudgeClient) -> None:
    async with JudgeSession(client):
        pass


async def _run_programs(client: JudgeClient) -> None:
    await client.run_many([quick("1"), quick("2")])


async def _run_after_health(client: JudgeClient) -> None:
    with pytest.raises(JudgeError, match="no judge answers"):
        await client.health()
    await _run_programs(client)


@pytest.mark.parametrize(
    ("use", "waits"),
    [(_run_programs, r"30 s"), (_open_session, r"150 s"), (_run_after_health, None)],
)
async def test_the_client_warns_once_if_no_judge_answers(
    use: Callable[[JudgeClient], Coroutine[Any, Any, None]],
    waits: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """If `health` was called before, there is no warning, because its failure has told the caller that no judge
    answers."""
    monkeypatch.setattr(client_connection, "WARN_S", 0.05)
    with socket.socket() as unused_port:
        unused_port.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused_port.getsockname()[1]}"
        async with JudgeClient(f"http://{address}", wait_s=30.0) as client:
            waiting = asyncio.create_task(use(client))
            if waits:
                await asyncio.to_thread(wait_until, lambda: caplog.messages)
            await asyncio.sleep(1.0)
            assert not waiting.done()
            waiting.cancel()
    assert len(caplog.messages) == (1 if waits else 0)
    for message in caplog.messages:
        assert message.startswith(f"no judge answers at http://{address} yet (cannot connect to {address}: ")
        assert message.endswith(f"); waiting up to {waits}. Start one with `rstar2 judge up --detach`.")


def test_the_synchronous_client_warns_on_standard_error() -> None:
    """If logging is not configured, Python writes warnings to standard error."""
    with socket.socket() as unused_port:
        unused_port.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused_port.getsockname()[1]}"
        code = (
            "from rstar2 import RunRequest, SyncJudgeClient\n"
            f"SyncJudgeClient({url!r}, wait_s=8).run(RunRequest(code='1', timeout_s=0.1))"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    [line] = done.stderr.splitlines()
    assert line.startswith(f"no judge answers at {url} yet (")


def test_importing_the_client_loads_neither_server_nor_queue() -> None:
    code = (
        "import sys, rstar2.judge.client\n"
        "print([m for m in ('redis', 'fastapi', 'uvicorn', 'torch', 'numpy') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8088",
        "ftp://judge:1",
        "http://",
        "http://.:1",
        "http://exa mple:1",
        "http://judge:0",
        "http://u:p@judge",
    ],
)
async def test_what_is_no_url_of_a_judge_is_refused_at_once(url: str) -> None:
    async with asyncio.timeout(TIMEOUT_S), JudgeClient(url, token="t") as client:
        with pytest.raises(JudgeError, match="not the URL"):
            await client.run(RunRequest(code="1"))


async def test_a_program_of_another_type_is_refused_by_name() -> None:
    async with JudgeClient("http://127.0.0.1:9") as client:
        with pytest.raises(TypeError, match=r"a RunRequest is needed, .* not str"):
            await client.run("1+1")  # type: ignore[arg-type]


@pytest.mark.slow
def test_loops_that_are_over_leave_nothing_open(judge: JudgeHandle) -> None:
    client = JudgeClient(judge.url)
    open_files = []
    for _ in range(6):
        assert asyncio.run(client.run(quick("1"))).value == "1"
        gc.collect()
        open_files.append(len(os.listdir("/proc/self/fd")))
    assert open_files[-1] <= open_files[1]


@pytest.mark.slow
@pytest.mark.parametrize("does", ["", "print(client.run(program('5')).value, flush=True)\n    "])
def test_a_child_that_ends_leaves_its_parents_connection_alone(judge: JudgeHandle, does: str) -> None:
    code = f"""
import os, sys, threading, time
import httpx
from rstar2.judge.client import SyncJudgeClient
from rstar2.judge.schema import RunRequest
def program(code): return RunRequest(code=code, timeout_s={TIMEOUT_S})
client = SyncJudgeClient(sys.argv[1])
client.run(program("1"))
outcomes = []
call = threading.Thread(target=lambda: outcomes.append(client.run(program("import time\\ntime.sleep(2)")).outcome))
call.start()
# Fork only when the request is running: then the client holds no lock.
while not (outcomes or httpx.get(sys.argv[1] + "/status", timeout={TIMEOUT_S}).json()["running"]): time.sleep(0.05)
child = os.fork()
if child == 0:
    {does}sys.exit(0)
os.waitpid(child, 0)
call.join()
print(*outcomes)
print(client.run(program("6")).value)
"""
    command = [sys.executable, "-c", code, judge.url]
    process = subprocess.run(command, capture_output=True, text=True, timeout=2 * TIMEOUT_S)
    assert process.stdout.split() == [*(["5"] if does else []), "ok", "6"], process.stderr


@pytest.mark.slow
def test_a_client_that_is_never_closed_causes_no_warnings(judge: JudgeHandle) -> None:
    code = (
        "import asyncio, sys\n"
        "from rstar2.judge.client import JudgeClient\n"
        "from rstar2.judge.schema import RunRequest\n"
        "client = JudgeClient(sys.argv[1])\n"
        f"print(asyncio.run(client.run(RunRequest(code='1', timeout_s={TIMEOUT_S}))).value)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, judge.url], capture_output=True, text=True, timeout=600
    )
    assert (process.stdout, process.stderr) == ("1\n", "")


@pytest.mark.slow
@pytest.mark.parametrize("token", [None, "another"])
async def test_a_wrong_token_is_the_users_mistake(limited_judge: JudgeHandle, token: str | None) -> None:
    async with JudgeClient(limited_judge.url, token) as client:
        with pytest.raises(WrongToken, match="refused the token") as caught:
            await client.run(RunRequest(code="1"))
    assert caught.value.exit_code == UserError.exit_code


async def test_a_judge_that_is_away_or_full_for_long_is_asked_again_until_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This also holds if the judge answers other requests meanwhile, and if it has never answered before."""
    monkeypatch.setattr(client_http, "PAUSES", Pauses(0.001, 0.01))
    refusals = [429, 503] * (2 * ATTEMPTS)
    free_call_done = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        status = 200
        if "/full" in (await reader.readuntil(b"\r\n\r\n")).decode():
            await free_call_done.wait()
            free_call_done.clear()
            status = refusals.pop() if refusals else 200
        writer.write(b"HTTP/1.1 %d -\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}" % status)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with JudgeClient(url) as client:
            refused_call = asyncio.create_task(client.request("POST", "/full", "", TIMEOUT_S, str))
            while not refused_call.done():
                assert await client.request("POST", "/free", "", TIMEOUT_S, str) == "{}"
                free_call_done.set()
            assert await refused_call == "{}"
    assert refusals == []
