"""The client: calls at the same time, several loops, forks, cancellation, an absent judge."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from support.judge_faults import status_when, unfinished

from rstar2.errors import UserError
from rstar2.judge.client import JudgeClient, SyncJudgeClient
from rstar2.judge.client.http import JudgeError, WrongToken
from rstar2.judge.schema import RunRequest
from rstar2.judge.service.start import JudgeHandle


async def seen(judge: JudgeHandle, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """See `status_when`; the loop continues meanwhile."""
    return await asyncio.to_thread(status_when, judge, condition)


async def test_many_calls_come_back_each_with_its_own_result(judge: JudgeHandle) -> None:
    async with JudgeClient(judge.url) as client:
        results = await client.run_many([RunRequest(code=f"print({i})") for i in range(100)])
    assert [result.stdout for result in results] == [f"{i}\n" for i in range(100)]


def test_one_client_serves_several_loops_threads_and_a_copy(judge: JudgeHandle) -> None:
    client: JudgeClient = pickle.loads(pickle.dumps(JudgeClient(judge.url)))

    async def once(number: int) -> str:
        try:
            return (await client.run(RunRequest(code=f"print({number})"))).stdout
        finally:
            await client.aclose()

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(lambda i: asyncio.run(once(i)), range(4))) == [f"{i}\n" for i in range(4)]


def test_the_synchronous_client_answers_from_many_threads(judge: JudgeHandle) -> None:
    with SyncJudgeClient(judge.url) as client, ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda i: client.run(RunRequest(code=f"print({i})")).stdout, range(16))
        assert list(found) == [f"{i}\n" for i in range(16)]


async def test_what_is_no_valid_request_is_invalid_alone(judge: JudgeHandle) -> None:
    codes: list[Any] = ["print(1)", "\ud800", 5, None]
    requests = [RunRequest.model_construct(code=code) for code in codes]
    async with JudgeClient(judge.url) as client:
        results = await client.run_many(requests)
    assert [result.outcome for result in results] == ["ok", "invalid", "invalid", "invalid"]


async def test_what_has_no_end_as_json_is_invalid_alone(judge: JudgeHandle) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    requests = [RunRequest.model_construct(code=deep), RunRequest(code="1")]
    async with JudgeClient(judge.url) as client:
        results = await client.run_many(requests)
    assert [result.outcome for result in results] == ["invalid", "ok"]


@pytest.mark.parametrize("limit", [None, "5", True, float("nan"), float("inf"), 10**400])
async def test_what_is_no_time_limit_is_invalid(judge: JudgeHandle, limit: Any) -> None:
    request = RunRequest.model_construct(code="1", timeout_s=limit)
    async with JudgeClient(judge.url, wait_s=60) as client:
        result = await client.run(request)
    assert result.outcome == "invalid"
    assert result.stderr.startswith("timeout_s")


async def test_cancelled_work_is_dropped_from_the_queue(judge: JudgeHandle) -> None:
    async with JudgeClient(judge.url) as client, httpx.AsyncClient(base_url=judge.url) as http:
        before = (await http.get("/status")).json()["outcomes"]
        sleepers = [RunRequest(code="import time; time.sleep(0.5)") for _ in range(60)]
        waiting = asyncio.create_task(client.run_many(sleepers))
        await seen(judge, lambda status: status["queue"] > 30)
        waiting.cancel()
        after = (await seen(judge, lambda status: not unfinished(status)))["outcomes"]
    assert after.get("ok", 0) - before.get("ok", 0) < 10


@pytest.mark.slow
async def test_cancelling_ends_what_runs_and_the_same_id_can_run_again(judge: JudgeHandle) -> None:
    endless = {"code": "while True: pass", "timeout_s": 60}
    async with JudgeClient(judge.url) as client, httpx.AsyncClient(base_url=judge.url) as http:
        before = (await http.get("/status")).json()["outcomes"]
        waiting = asyncio.create_task(client.run_many([RunRequest.model_validate(endless)] * 3))
        under_key = asyncio.create_task(
            http.post("/v1/runs", json=endless, headers={"Idempotency-Key": "again"}, timeout=600)
        )
        await seen(judge, lambda status: unfinished(status) == 4)
        waiting.cancel()
        await seen(judge, lambda status: (status["queue"], status["running"]) == (0, 1))
        await asyncio.sleep(0.3)
        under_key.cancel()
        # Asked for again before the judge has seen the connection close, it would join the endless run.
        await seen(judge, lambda status: not unfinished(status))
        body, key = {"code": "print(6)"}, {"Idempotency-Key": "again"}
        [result, answer] = await asyncio.gather(
            client.run(RunRequest(code="print(5)")),
            http.post("/v1/runs", json=body, headers=key, timeout=600),
        )
        after = (await seen(judge, lambda status: not unfinished(status)))["outcomes"]
    assert (result.outcome, result.stdout) == ("ok", "5\n")
    assert (answer.json()["outcome"], answer.json()["stdout"]) == ("ok", "6\n")
    assert {name: after[name] - before.get(name, 0) for name in after} == {
        name: 2 * (name == "ok") for name in after
    }


async def test_one_cancelled_call_of_many_is_taken_back_alone(judge: JudgeHandle) -> None:
    endless = RunRequest(code="while True: pass", timeout_s=60)
    async with JudgeClient(judge.url) as client:
        calls = [asyncio.create_task(client.run(endless)) for _ in range(4)]
        await seen(judge, lambda status: unfinished(status) == 4)
        calls.pop().cancel()
        await seen(judge, lambda status: unfinished(status) == 3)
        assert not any(call.done() for call in calls)
        for call in calls:
            call.cancel()
        await seen(judge, lambda status: not unfinished(status))


async def test_a_short_program_does_not_wait_for_a_long_one_it_travels_with(judge: JudgeHandle) -> None:
    async with JudgeClient(judge.url) as client:
        long = asyncio.create_task(client.run(RunRequest(code="while True: pass", timeout_s=60)))
        result = await client.run(RunRequest(code="print(1)"))
        assert (result.stdout, long.done()) == ("1\n", False)
        long.cancel()
        await seen(judge, lambda status: not unfinished(status))


async def test_no_character_ends_a_result(judge: JudgeHandle) -> None:
    text = "a\u2028b\x85c\x0cd\r\ne"
    async with JudgeClient(judge.url, wait_s=60) as client:
        results = await client.run_many([RunRequest(code=f"print({text!a}, end='')")] * 2)
    assert [result.stdout for result in results] == [text] * 2


@pytest.mark.slow
async def test_programs_too_large_to_travel_together_travel_apart(judge: JudgeHandle) -> None:
    stdin = "é" * (1 << 20)
    requests = [RunRequest(code="print(len(input()))", stdin=stdin, memory_mb=256) for _ in range(16)]
    async with JudgeClient(judge.url) as client:
        results = await client.run_many(requests)
    assert [result.stdout for result in results] == [f"{1 << 20}\n"] * 16


async def test_a_program_longer_than_any_message_may_be_is_invalid_alone(judge: JudgeHandle) -> None:
    requests = [RunRequest(code="print(1)"), RunRequest(code="1", stdin="\x01" * (12 << 20))]
    async with JudgeClient(judge.url) as client:
        results = await client.run_many(requests)
    assert [result.outcome for result in results] == ["ok", "invalid"]
    assert "more than" in results[1].stderr


async def test_closing_the_client_leaves_no_call_behind(judge: JudgeHandle) -> None:
    client = JudgeClient(judge.url)
    sent = [asyncio.create_task(client.run(RunRequest(code="while True: pass"))) for _ in range(2)]
    await seen(judge, lambda status: status["running"] == 2)
    unsent = asyncio.create_task(client.run(RunRequest(code="1")))
    await asyncio.sleep(0)
    await client.aclose()
    done, _ = await asyncio.wait([*sent, unsent], timeout=20)
    assert [call.cancelled() for call in done] == [True, True, True]


async def test_an_absent_judge_is_an_answer_within_the_time_given() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        async with JudgeClient(url, wait_s=0.5) as client, asyncio.timeout(60):
            result = await client.run(RunRequest(code="1", timeout_s=0.1))
            assert result.outcome == "lost"
            assert f"cannot connect to {url.removeprefix('http://')}" in result.stderr
            with pytest.raises(JudgeError, match="no judge answers"):
                await client.health()


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
    async with asyncio.timeout(60), JudgeClient(url, token="t", wait_s=60) as client:
        with pytest.raises(JudgeError, match="not the URL"):
            await client.run(RunRequest(code="1"))


@pytest.mark.slow
def test_loops_that_are_over_leave_nothing_open(judge: JudgeHandle) -> None:
    client = JudgeClient(judge.url)
    open_files = []
    for _ in range(6):
        assert asyncio.run(client.run(RunRequest(code="1"))).value == "1"
        gc.collect()
        open_files.append(len(os.listdir("/proc/self/fd")))
    assert open_files[-1] <= open_files[1]


@pytest.mark.slow
@pytest.mark.parametrize("does", ["", "print(client.run(RunRequest(code='5')).value, flush=True)\n    "])
def test_a_child_that_ends_leaves_its_parents_connection_alone(judge: JudgeHandle, does: str) -> None:
    code = f"""
import os, sys, threading, time
from rstar2.judge.client import SyncJudgeClient
from rstar2.judge.schema import RunRequest
client = SyncJudgeClient(sys.argv[1], wait_s=60)
client.run(RunRequest(code="1"))
slow = RunRequest(code="import time\\ntime.sleep(2)\\nprint(4)")
call = threading.Thread(target=lambda: print(client.run(slow).outcome, flush=True))
call.start()
time.sleep(0.5)
child = os.fork()
if child == 0:
    {does}sys.exit(0)
os.waitpid(child, 0)
call.join()
print(client.run(RunRequest(code="6")).value)
"""
    done = subprocess.run([sys.executable, "-c", code, judge.url], capture_output=True, text=True, timeout=90)
    assert done.stdout.split() == [*(["5"] if does else []), "ok", "6"]


@pytest.mark.slow
def test_a_client_that_is_never_closed_causes_no_warnings(judge: JudgeHandle) -> None:
    code = (
        "import asyncio, sys\n"
        "from rstar2.judge.client import JudgeClient\n"
        "from rstar2.judge.schema import RunRequest\n"
        "client = JudgeClient(sys.argv[1])\n"
        "print(asyncio.run(client.run(RunRequest(code='1'))).value)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, judge.url], capture_output=True, text=True, timeout=600
    )
    assert (done.stdout, done.stderr) == ("1\n", "")


@pytest.mark.parametrize("token", [None, "another"])
async def test_a_wrong_token_is_the_users_mistake(limited_judge: JudgeHandle, token: str | None) -> None:
    async with JudgeClient(limited_judge.url, token, wait_s=60) as client:
        with pytest.raises(WrongToken, match="wants another token") as caught:
            await client.run(RunRequest(code="1"))
    assert caught.value.exit_code == UserError.exit_code
