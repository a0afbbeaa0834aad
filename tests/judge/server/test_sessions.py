"""Sessions keep their state by keeping their process, and say so when they end."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import pytest
import redis
from support.judge_faults import parts
from support.waiting import TIMEOUT_S

from rstar2.judge.client import JudgeClient
from rstar2.judge.client.http import JudgeError
from rstar2.judge.client.session import OPEN_S, JudgeSession
from rstar2.judge.queue import tasks as queue
from rstar2.judge.schema import CellRequest, CellResult, SessionRequest
from rstar2.judge.service.start import JudgeHandle

pytestmark = pytest.mark.slow  # A session has all libraries, which each worker loads for the first one.


def open_session(http: httpx.Client, **limits: Any) -> str:
    answer = http.post("/v1/sessions", json=limits)
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["id"]
    return found


def cell(http: httpx.Client, session: str, code: str, **more: Any) -> dict[str, Any]:
    answer = http.post(f"/v1/sessions/{session}/cells", json={"code": code, **more})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_state_is_kept_and_the_last_expression_shown(http: httpx.Client) -> None:
    session = open_session(http)
    assert cell(http, session, "import math\nx = 20\nprint('set')")["stdout"] == "set\n"
    result = cell(http, session, "def double(n): return 2 * n\ndouble(x) + math.floor(2.5)")
    assert (result["outcome"], result["value"], result["stdout"]) == ("ok", "42", "")
    failed = cell(http, session, "1 / 0")
    assert failed["outcome"] == "error"
    assert "ZeroDivisionError" in failed["stderr"]
    assert cell(http, session, "x")["value"] == "20"


@pytest.fixture
def one(limited_judge: JudgeHandle) -> Iterator[httpx.Client]:
    """A client of a judge with one worker."""
    headers = {"Authorization": f"Bearer {limited_judge.token}"}
    url, bound = limited_judge.url, TIMEOUT_S
    with httpx.Client(base_url=url, headers=headers, timeout=bound, trust_env=False) as client:
        yield client


def test_sessions_of_one_worker_do_not_see_each_other(http: httpx.Client) -> None:
    # The judge has two workers: of three sessions, two share one.
    opened = sorted(open_session(http) for _ in range(3))
    [first, second] = next(
        pair for pair in pairwise(opened) if len({session.rpartition(".")[0] for session in pair}) == 1
    )
    cell(http, first, "import math\nmath.tau = x = 1\nopen('mine', 'w').write('1')")
    seen = "import math, os\n('x' in globals(), math.tau == 1, os.path.exists('mine'))"
    assert cell(http, first, seen)["value"] == "(True, True, True)"
    assert cell(http, second, seen)["value"] == "(False, False, False)"


def test_a_cell_is_not_run_twice_under_one_key(http: httpx.Client) -> None:
    session = open_session(http)
    cell(http, session, "n = 0")
    headers = {"Idempotency-Key": f"cell-{time.time_ns()}"}
    for _ in range(2):
        answer = http.post(f"/v1/sessions/{session}/cells", json={"code": "n += 1\nn"}, headers=headers)
        assert answer.json()["value"] == "1"


def hang_up(url: str, path: str, body: dict[str, Any], key: str, after_s: float) -> None:
    """Ask, and close the connection before the answer comes."""
    headers = {"Idempotency-Key": key}
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{url}{path}", json=body, headers=headers, timeout=after_s, trust_env=False)


def again(http: httpx.Client, path: str, body: dict[str, Any], key: str) -> httpx.Response:
    return http.post(path, json=body, headers={"Idempotency-Key": key})


@pytest.mark.parametrize("later_s", [0.0, 1.2], ids=["while it runs", "when it has ended"])
def test_a_cell_whose_connection_broke_is_not_run_again(
    http: httpx.Client, judge: JudgeHandle, later_s: float
) -> None:
    session = open_session(http)
    cell(http, session, "n = 0")
    path, key = f"/v1/sessions/{session}/cells", f"broken-{time.time_ns()}"
    body = {"code": "import time\nn += 1\ntime.sleep(1)\nn"}
    hang_up(judge.url, path, body, key, 0.4)
    time.sleep(0.2 + later_s)
    assert again(http, path, body, key).json()["value"] == "1"
    assert cell(http, session, "n")["value"] == "1"


def test_a_cell_that_still_waits_is_taken_back_by_hanging_up(http: httpx.Client, judge: JudgeHandle) -> None:
    session = open_session(http)
    cell(http, session, "n = 0")
    path = f"/v1/sessions/{session}/cells"
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(cell, http, session, "import time; time.sleep(2)")
        time.sleep(0.3)
        hang_up(judge.url, path, {"code": "n += 1"}, f"waits-{time.time_ns()}", 0.3)
        assert busy.result()["outcome"] == "ok"
    assert cell(http, session, "n")["value"] == "0"


def test_a_cell_that_the_queue_forgot_is_not_run_again(http: httpx.Client, judge: JudgeHandle) -> None:
    session = open_session(http)
    cell(http, session, "n = 0")
    path, key = f"/v1/sessions/{session}/cells", f"forgotten-{time.time_ns()}"
    values = []
    for _ in range(2):
        values.append(again(http, path, {"code": "n += 1\nn"}, key).json()["value"])
        with redis.Redis.from_url(judge.redis_url) as client:
            client.delete(queue.state_key(key))
    assert values == ["1", "1"]


def test_opening_twice_under_one_key_opens_one_session(http: httpx.Client, judge: JudgeHandle) -> None:
    key = f"open-{time.time_ns()}"
    first, second = (again(http, "/v1/sessions", {}, key).json()["id"] for _ in range(2))
    assert first == second
    assert cell(http, first, "1")["value"] == "1"
    assert again(http, "/v1/runs", {"code": "2"}, key).json()["value"] == "2"


def test_an_opening_that_was_lost_can_be_tried_again_under_its_key(
    http: httpx.Client, judge: JudgeHandle
) -> None:
    key = f"lost-{time.time_ns()}"
    lost = CellResult(id=key, outcome="lost", stderr="gone", session_alive=False).model_dump_json()
    with redis.Redis.from_url(judge.redis_url) as client:
        client.set(queue.state_key(f"open/{key}"), queue.NO_FINGERPRINT + lost, ex=60)
    assert again(http, "/v1/sessions", {}, key).status_code == 503
    assert again(http, "/v1/sessions", {}, key).status_code == 201


def test_earlier_cells_are_not_run_again(http: httpx.Client) -> None:
    session = open_session(http)
    cell(http, session, "import os, time\nstamp, total = (os.getpid(), time.monotonic_ns()), 0")
    # A session that ran its earlier cells again would have another stamp.
    stamps = {cell(http, session, "total += 1\nstamp")["value"] for _ in range(5)}
    assert len(stamps) == 1
    assert cell(http, session, "total")["value"] == "5"


def test_a_cell_over_its_time_is_interrupted_and_the_state_survives(http: httpx.Client) -> None:
    session = open_session(http)
    cell(http, session, "x = 5")
    result = cell(http, session, "import time\ntime.sleep(60)", timeout_s=0.5)
    assert (result["outcome"], result["session_alive"]) == ("timeout", True)
    assert 0.5 <= result["wall_s"] < 60
    assert cell(http, session, "x")["value"] == "5"


def test_a_session_that_dies_says_so(http: httpx.Client) -> None:
    session = open_session(http)
    result = cell(http, session, "import os\nos._exit(3)")
    assert not result["session_alive"]
    assert "exit code 3" in result["session_end"]
    after = cell(http, session, "1")
    assert (after["outcome"], after["session_alive"]) == ("lost", False)
    assert "exit code 3" in after["stderr"]


def test_an_idle_session_ends(http: httpx.Client) -> None:
    session = open_session(http, idle_s=1)
    time.sleep(1.2)
    after = cell(http, session, "1")
    assert after["outcome"] == "lost"
    assert "idle for 1 s" in after["session_end"]


def test_an_old_session_ends_however_busy(http: httpx.Client) -> None:
    session = open_session(http, total_s=2)
    ends = time.monotonic() + 30
    while (result := cell(http, session, "1"))["session_alive"] and time.monotonic() < ends:
        time.sleep(0.2)
    assert "open for its 2 s" in result["session_end"]


def test_a_cell_ends_with_its_sessions_time(http: httpx.Client) -> None:
    session = open_session(http, total_s=2)
    result = cell(http, session, "import time\ntime.sleep(30)", timeout_s=20)
    assert (result["outcome"], result["session_alive"]) == ("timeout", False)
    assert "open for its 2 s" in result["session_end"]
    assert result["wall_s"] < 20


def test_waiting_for_a_busy_worker_is_not_idleness(one: httpx.Client) -> None:
    idle, waits = open_session(one, idle_s=2), open_session(one, idle_s=2)
    with ThreadPoolExecutor(1) as pool:
        busy = pool.submit(one.post, "/v1/runs", json={"code": "import time; time.sleep(4.2)"})
        time.sleep(0.3)
        result = cell(one, waits, "1")
        assert (result["value"], busy.result().status_code) == ("1", 200)
    assert result["queue_s"] > 2.5
    assert "idle for 2 s" in cell(one, idle, "1")["session_end"]


def test_a_key_holds_for_one_cell_of_one_session(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": f"held-{time.time_ns()}"}
    one, other = open_session(http), open_session(http)

    def ask(session: str, code: str) -> httpx.Response:
        return http.post(f"/v1/sessions/{session}/cells", json={"code": code}, headers=headers)

    assert ask(one, "1").json()["value"] == "1"
    assert ask(one, "2").status_code == ask(other, "1").status_code == 422
    assert ask(one, "1").json()["value"] == "1"
    assert http.post("/v1/runs", json={"code": "1"}, headers=headers).status_code == 422
    opened = http.post("/v1/sessions", json={}, headers=headers).json()["id"]
    assert http.post("/v1/sessions", json={}, headers=headers).json()["id"] == opened
    assert http.post("/v1/sessions", json={"idle_s": 5}, headers=headers).status_code == 422


def test_a_closed_session_is_gone(http: httpx.Client) -> None:
    session = open_session(http)
    assert http.delete(f"/v1/sessions/{session}").status_code == 204
    assert "was closed" in cell(http, session, "1")["session_end"]
    assert http.delete(f"/v1/sessions/{session}").status_code == 404


def test_what_is_no_session_is_told(http: httpx.Client) -> None:
    assert http.post("/v1/sessions/nothing/cells", json={"code": "1"}).status_code == 404
    gone = cell(http, "some-worker.0123", "1")
    assert (gone["outcome"], gone["session_alive"]) == ("lost", False)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/sessions", {"memory_mb": -1}, "memory_mb"),
        ("/v1/sessions", {"idle": 3}, "idle"),
        ("/v1/sessions/a.b/cells", {"code": "a\0b"}, "code"),
        ("/v1/sessions/a.b/cells", {}, "code"),
    ],
)
def test_a_bad_request_is_refused_by_the_name_of_its_field(
    http: httpx.Client, path: str, body: dict[str, Any], field: str
) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 422
    assert field in answer.json()["error"]


async def test_the_client_keeps_many_sessions_apart(judge: JudgeHandle) -> None:
    async with JudgeClient(judge.url) as client:

        async def count(start: int) -> str | None:
            async with JudgeSession(client, SessionRequest(memory_mb=512)) as session:
                await session.run(CellRequest(code=f"x = {start}"))
                for _ in range(3):
                    result = await session.run(CellRequest(code="x += 1\nx"))
                return result.value

        assert await asyncio.gather(*(count(10 * i) for i in range(8))) == [str(10 * i + 3) for i in range(8)]


async def test_the_client_asks_again_on_a_broken_connection_and_the_cell_runs_once(
    judge: JudgeHandle,
) -> None:
    address = httpx.URL(judge.url)
    open_ends: list[asyncio.StreamWriter] = []

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection(address.host, address.port)
        open_ends.extend((writer, far_writer))
        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))

    async with await asyncio.start_server(pass_on, "127.0.0.1") as proxy:
        url = f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        async with JudgeClient(url) as client, JudgeSession(client) as session:
            await session.run(CellRequest(code="n = 0"))
            waiting = asyncio.create_task(
                session.run(CellRequest(code="import time\nn += 1\ntime.sleep(1)\nn"))
            )
            await asyncio.sleep(0.4)
            for writer in open_ends:
                writer.transport.abort()
            assert (await waiting).value == "1"
            assert (await session.run(CellRequest(code="n"))).value == "1"


async def test_a_session_is_given_up_when_no_judge_answers_in_time() -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>")
        writer.close()

    async with await asyncio.start_server(page, "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with JudgeClient(url) as client:
            session = JudgeSession(client, wait_s=0.3 - OPEN_S)
            with pytest.raises(JudgeError, match="in time"):
                await asyncio.wait_for(session.__aenter__(), 10)


def test_a_worker_that_dies_tells_its_sessions(limited_judge: JudgeHandle, one: httpx.Client) -> None:
    session = open_session(one)
    assert cell(one, session, "1")["value"] == "1"
    [worker] = parts(limited_judge, "rstar2.judge.worker.main")
    os.kill(worker, signal.SIGKILL)
    result = cell(one, session, "1")
    assert (result["outcome"], result["session_alive"]) == ("lost", False)
    assert "worker" in result["session_end"]
    asyncio.run(_opens_again(limited_judge))


async def _opens_again(judge: JudgeHandle) -> None:
    async with JudgeClient(judge.url, judge.token) as client, JudgeSession(client) as session:
        assert (await session.run(CellRequest(code="2"))).value == "2"
