"""A session keeps its state while its process lives, and its results say why it ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import httpx
import pytest
import redis
from support.judge.judge_faults import parts, status, status_when
from support.judge.waiting_programs import WAIT_FOR_RELEASE, release_until
from support.waiting import TIMEOUT_S, wait_until

from rstar2.judge.client import JudgeClient, SyncJudgeClient
from rstar2.judge.client.http import JudgeError
from rstar2.judge.client.session import OPEN_S, JudgeSession
from rstar2.judge.queue import tasks as queue
from rstar2.judge.schema import CellRequest, CellResult, SessionRequest
from rstar2.judge.service.start import JudgeHandle
from rstar2.judge.worker.local_queue import LONG_S

pytestmark = pytest.mark.slow  # Each worker loads all libraries before its first session.


def open_session(http: httpx.Client, **limits: Any) -> str:
    answer = http.post("/v1/sessions", json=limits)
    assert answer.status_code == 201, answer.text
    session_id: str = answer.json()["id"]
    return session_id


def cell(http: httpx.Client, session: str, code: str, **more: Any) -> dict[str, Any]:
    answer = http.post(f"/v1/sessions/{session}/cells", json={"code": code, "timeout_s": TIMEOUT_S, **more})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


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
def one_worker(limited_judge: JudgeHandle) -> Iterator[httpx.Client]:
    """An HTTP client of a judge that has one worker."""
    headers = {"Authorization": f"Bearer {limited_judge.token}"}
    url, bound = limited_judge.url, TIMEOUT_S
    with httpx.Client(base_url=url, headers=headers, timeout=bound, trust_env=False) as client:
        yield client


def test_sessions_of_one_worker_do_not_see_each_other(http: httpx.Client) -> None:
    # The judge has two workers, so at least two of three sessions share a worker.
    sessions = sorted(open_session(http) for _ in range(3))
    [first, second] = next(
        pair for pair in pairwise(sessions) if len({session.rpartition(".")[0] for session in pair}) == 1
    )
    cell(http, first, "import math\nmath.tau = x = 1\nopen('mine', 'w').write('1')")
    look = "import math, os\n('x' in globals(), math.tau == 1, os.path.exists('mine'))"
    assert cell(http, first, look)["value"] == "(True, True, True)"
    assert cell(http, second, look)["value"] == "(False, False, False)"


def test_every_field_of_a_session_is_optional_and_one_that_ended_is_told_from_none(
    http: httpx.Client,
) -> None:
    answer = http.post("/v1/sessions")
    assert answer.status_code == 201, answer.text
    session = answer.json()["id"]
    assert http.delete(f"/v1/sessions/{session}").status_code == 204
    assert http.delete(f"/v1/sessions/{session}").status_code == 404
    assert cell(http, session, "1")["outcome"] == "lost"
    assert http.post("/v1/sessions/nope/cells", json={"code": "1"}).status_code == 404


async def test_a_session_of_another_client_and_a_cell_of_another_type_are_refused(judge: JudgeHandle) -> None:
    with pytest.raises(TypeError, match="needs the asynchronous JudgeClient, not SyncJudgeClient"):
        JudgeSession(SyncJudgeClient(judge.url, judge.token))  # type: ignore[arg-type]
    async with JudgeClient(judge.url, judge.token) as client:
        with pytest.raises(TypeError, match=r"a CellRequest is needed, .* not str"):
            await JudgeSession(client).run("1")  # type: ignore[arg-type]


def test_a_cell_is_not_run_twice_under_one_key(http: httpx.Client) -> None:
    session = open_session(http)
    cell(http, session, "n = 0")
    headers, body = (
        {"Idempotency-Key": f"cell-{time.time_ns()}"},
        {"code": "n += 1\nn", "timeout_s": TIMEOUT_S},
    )
    for _ in range(2):
        answer = http.post(f"/v1/sessions/{session}/cells", json=body, headers=headers)
        assert answer.json()["value"] == "1"


@contextmanager
def dropped_request(judge: JudgeHandle, path: str, body: dict[str, Any], key: str) -> Iterator[None]:
    """Send a request. At the end of the block, close its connection without reading the answer."""
    address, text = httpx.URL(judge.url), json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: {key}\r\n"
    head += f"Authorization: Bearer {judge.token}\r\nContent-Length: {len(text)}\r\n\r\n"
    with socket.create_connection((address.host, address.port or 80), timeout=TIMEOUT_S) as connection:
        connection.sendall(head.encode() + text)
        yield


def state(judge: JudgeHandle, key: str) -> str:
    """Returns the state of a cell or program in the queue, or an empty string if there is none."""
    with redis.Redis.from_url(judge.redis_url, decode_responses=True) as client:
        return str(client.execute_command(*queue.get_state(key)))


def is_delivered(judge: JudgeHandle, key: str) -> bool:
    """Returns whether a worker has fetched a cell or has already run it."""
    cell_state = state(judge, key)
    if not cell_state.startswith("@"):
        return queue.is_result(cell_state)
    stream, entry = cell_state[1:].split()
    with redis.Redis.from_url(judge.redis_url) as client:
        return bool(client.xpending_range(stream, queue.GROUP, entry, entry, 1))


def keyed_post(http: httpx.Client, path: str, body: dict[str, Any], key: str) -> httpx.Response:
    return http.post(path, json=body, headers={"Idempotency-Key": key})


@pytest.mark.parametrize("is_over", [False, True], ids=["while it runs", "when it has ended"])
def test_a_cell_whose_connection_broke_is_not_run_again(
    http: httpx.Client, judge: JudgeHandle, is_over: bool
) -> None:
    session = open_session(http)
    cell(http, session, "n = 0")
    path, key = f"/v1/sessions/{session}/cells", f"broken-{time.time_ns()}"
    body = {"code": f"n += 1\n{WAIT_FOR_RELEASE}n", "timeout_s": TIMEOUT_S}

    def has_ended() -> bool:
        return queue.is_result(state(judge, key))

    with dropped_request(judge, path, body, key):
        wait_until(lambda: is_delivered(judge, key))
    if is_over:
        release_until(has_ended, judge.pid)
    with ThreadPoolExecutor(1) as pool:
        second_request = pool.submit(keyed_post, http, path, body, key)
        release_until(has_ended, judge.pid)
        assert second_request.result().json()["value"] == "1"
    assert cell(http, session, "n")["value"] == "1"


@contextmanager
def busy(judge: JudgeHandle, http: httpx.Client) -> Iterator[None]:
    """Keep the only worker of a judge busy during the block. Its program ends when the block ends."""
    key = f"busy-{time.time_ns()}"
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(
            keyed_post, http, "/v1/runs", {"code": WAIT_FOR_RELEASE, "timeout_s": TIMEOUT_S}, key
        )
        try:
            wait_until(lambda: is_delivered(judge, key))
            [before] = status(judge)["workers"]  # its last heartbeat may describe an earlier program
            # A worker whose program runs longer than LONG_S fetches nothing more. A fetched cell cannot be cancelled.
            status_when(
                judge,
                lambda current: any(
                    each["beat"] > before["beat"] and each["running_s"] > LONG_S
                    for each in current["workers"]
                ),
            )
            yield
        finally:
            release_until(running.done, judge.pid)
        assert running.result().json()["outcome"] == "ok"


def test_a_cell_that_still_waits_is_taken_back_by_hanging_up(
    one_worker: httpx.Client, limited_judge: JudgeHandle
) -> None:
    session = open_session(one_worker)
    cell(one_worker, session, "n = 0")
    path, key = f"/v1/sessions/{session}/cells", f"waits-{time.time_ns()}"
    with busy(limited_judge, one_worker):
        with dropped_request(limited_judge, path, {"code": "n += 1"}, key):
            wait_until(lambda: state(limited_judge, key))
        wait_until(lambda: state(limited_judge, key) == queue.CANCELLED)
    assert cell(one_worker, session, "n")["value"] == "0"


def test_a_cell_that_the_queue_forgot_is_not_run_again(http: httpx.Client, judge: JudgeHandle) -> None:
    session = open_session(http)
    cell(http, session, "n = 0")
    path, key = f"/v1/sessions/{session}/cells", f"forgotten-{time.time_ns()}"
    values = []
    for _ in range(2):
        values.append(
            keyed_post(http, path, {"code": "n += 1\nn", "timeout_s": TIMEOUT_S}, key).json()["value"]
        )
        with redis.Redis.from_url(judge.redis_url) as client:
            client.delete(queue.state_key(key))
    assert values == ["1", "1"]


def test_opening_twice_under_one_key_opens_one_session(http: httpx.Client, judge: JudgeHandle) -> None:
    key = f"open-{time.time_ns()}"
    first, second = (keyed_post(http, "/v1/sessions", {}, key).json()["id"] for _ in range(2))
    assert first == second
    assert cell(http, first, "1")["value"] == "1"
    assert keyed_post(http, "/v1/runs", {"code": "2"}, key).json()["value"] == "2"


def test_an_opening_that_was_lost_can_be_tried_again_under_its_key(
    http: httpx.Client, judge: JudgeHandle
) -> None:
    key = f"lost-{time.time_ns()}"
    lost_result = CellResult(id=key, outcome="lost", stderr="gone", session_alive=False).model_dump_json()
    with redis.Redis.from_url(judge.redis_url) as client:
        client.set(queue.state_key(f"open/{key}"), queue.NO_FINGERPRINT + lost_result, ex=60)
    assert keyed_post(http, "/v1/sessions", {}, key).status_code == 503
    assert keyed_post(http, "/v1/sessions", {}, key).status_code == 201


def test_earlier_cells_are_not_run_again(http: httpx.Client) -> None:
    session = open_session(http)
    cell(http, session, "import os, time\nstamp, total = (os.getpid(), time.monotonic_ns()), 0")
    # If the session ran its earlier cells again, the stamp would differ.
    stamps = {cell(http, session, "total += 1\nstamp")["value"] for _ in range(5)}
    assert len(stamps) == 1
    assert cell(http, session, "total")["value"] == "5"


def test_a_cell_over_its_time_is_interrupted_and_the_state_survives(http: httpx.Client) -> None:
    session = open_session(http)
    cell(http, session, "x = 5")
    result = cell(http, session, "import time\ntime.sleep(600)", timeout_s=0.5)
    assert (result["outcome"], result["session_alive"]) == ("timeout", True)
    assert result["wall_s"] >= 0.5
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
    ends = time.monotonic() + TIMEOUT_S
    while (result := cell(http, session, "1"))["session_alive"]:
        assert time.monotonic() < ends
        time.sleep(0.2)
    assert "maximum lifetime of 2 s" in result["session_end"]


def test_a_cell_ends_with_its_sessions_time(http: httpx.Client) -> None:
    # On a slow machine, a short session ends before its cell starts. Then try a longer one.
    for total_s in (2, 10, 60):
        session = open_session(http, total_s=total_s)
        result = cell(http, session, "import time\ntime.sleep(600)")
        assert f"maximum lifetime of {total_s} s" in result["session_end"]
        assert not result["session_alive"]
        if result["outcome"] != "lost":
            break
    assert result["outcome"] == "timeout"
    assert result["wall_s"] < TIMEOUT_S


def test_waiting_for_a_busy_worker_is_not_idleness(
    one_worker: httpx.Client, limited_judge: JudgeHandle
) -> None:
    # On a slow machine, the cell is queued only after a short idle limit. Then try a longer limit.
    for idle_s in (2, 8, 32):
        began = time.monotonic()
        idle_session, waiting_session = (
            open_session(one_worker, idle_s=idle_s),
            open_session(one_worker, idle_s=idle_s),
        )
        path, key = f"/v1/sessions/{waiting_session}/cells", f"idle-{time.time_ns()}"
        with ThreadPoolExecutor(1) as pool, busy(limited_judge, one_worker):
            waiting = pool.submit(keyed_post, one_worker, path, {"code": "1", "timeout_s": TIMEOUT_S}, key)
            wait_until(lambda key=key: state(limited_judge, key))  # type: ignore[misc]
            queued_at = time.monotonic()
            wait_until(lambda idle_s=idle_s, since=queued_at: time.monotonic() > since + 1.1 * idle_s)  # type: ignore[misc]
            if is_in_time := queued_at - began < idle_s:
                break
    assert is_in_time
    result = waiting.result().json()
    assert result["value"] == "1"
    assert result["queue_s"] > idle_s
    assert f"idle for {idle_s} s" in cell(one_worker, idle_session, "1")["session_end"]


def test_a_key_holds_for_one_cell_of_one_session(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": f"held-{time.time_ns()}"}
    first, second = open_session(http), open_session(http)

    def ask(session: str, code: str) -> httpx.Response:
        body = {"code": code, "timeout_s": TIMEOUT_S}
        return http.post(f"/v1/sessions/{session}/cells", json=body, headers=headers)

    assert ask(first, "1").json()["value"] == "1"
    assert ask(first, "2").status_code == ask(second, "1").status_code == 422
    assert ask(first, "1").json()["value"] == "1"
    assert http.post("/v1/runs", json={"code": "1"}, headers=headers).status_code == 422
    session_id = http.post("/v1/sessions", json={}, headers=headers).json()["id"]
    assert http.post("/v1/sessions", json={}, headers=headers).json()["id"] == session_id
    assert http.post("/v1/sessions", json={"idle_s": 5}, headers=headers).status_code == 422


def test_a_closed_session_is_gone(http: httpx.Client) -> None:
    session = open_session(http)
    assert http.delete(f"/v1/sessions/{session}").status_code == 204
    assert "was closed" in cell(http, session, "1")["session_end"]
    assert http.delete(f"/v1/sessions/{session}").status_code == 404


def test_what_is_no_session_is_told(http: httpx.Client) -> None:
    assert http.post("/v1/sessions/nothing/cells", json={"code": "1"}).status_code == 404
    result = cell(http, "some-worker.0123", "1")
    assert (result["outcome"], result["session_alive"]) == ("lost", False)


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
            async with JudgeSession(client, SessionRequest(memory_mb=512), wait_s=TIMEOUT_S) as session:
                await session.run(CellRequest(code=f"x = {start}", timeout_s=TIMEOUT_S))
                for _ in range(3):
                    result = await session.run(CellRequest(code="x += 1\nx", timeout_s=TIMEOUT_S))
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
        async with JudgeClient(url) as client, JudgeSession(client, wait_s=TIMEOUT_S) as session:
            assert session.info is not None
            stream = queue.cells_stream(session.info.id.rpartition(".")[0])
            await session.run(CellRequest(code="n = 0", timeout_s=TIMEOUT_S))
            waiting = asyncio.create_task(
                session.run(CellRequest(code=f"n += 1\n{WAIT_FOR_RELEASE}n", timeout_s=TIMEOUT_S))
            )
            with redis.Redis.from_url(judge.redis_url) as queued:
                await asyncio.to_thread(wait_until, lambda: queued.xpending(stream, queue.GROUP)["pending"])
            broken = list(open_ends)
            for writer in broken:
                writer.transport.abort()
            await asyncio.to_thread(wait_until, lambda: len(open_ends) > len(broken))
            await asyncio.to_thread(release_until, waiting.done, judge.pid)
            assert (await waiting).value == "1"
            assert (await session.run(CellRequest(code="n", timeout_s=TIMEOUT_S))).value == "1"


@pytest.mark.parametrize("sets_wait_s", [True, False])
async def test_a_session_is_given_up_when_no_judge_answers_in_time(sets_wait_s: bool) -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n<html></html>")
        writer.close()

    async with await asyncio.start_server(page, "127.0.0.1") as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        wait_s = 0.3 - OPEN_S
        async with JudgeClient(url, wait_s=600.0 if sets_wait_s else wait_s) as client:
            session = JudgeSession(client, wait_s=wait_s if sets_wait_s else None)
            with pytest.raises(JudgeError, match="in time"):
                await asyncio.wait_for(session.__aenter__(), TIMEOUT_S)


def test_a_worker_that_dies_tells_its_sessions(limited_judge: JudgeHandle, one_worker: httpx.Client) -> None:
    session = open_session(one_worker)
    assert cell(one_worker, session, "1")["value"] == "1"
    [worker] = parts(limited_judge, "rstar2.judge.worker.main")
    os.kill(worker, signal.SIGKILL)
    result = cell(one_worker, session, "1")
    assert (result["outcome"], result["session_alive"]) == ("lost", False)
    assert "worker" in result["session_end"]
    asyncio.run(_open_another(limited_judge))


async def _open_another(judge: JudgeHandle) -> None:
    client = JudgeClient(judge.url, judge.token)
    async with client, JudgeSession(client, wait_s=TIMEOUT_S) as session:
        assert (await session.run(CellRequest(code="2", timeout_s=TIMEOUT_S))).value == "2"
