"""The WebSocket for many programs, tested without the package's own client."""

from __future__ import annotations

import json
import resource
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import redis
from fastapi import FastAPI
from starlette.testclient import TestClient
from support.judge.judge_faults import parts, status, status_when, unfinished
from support.waiting import TIMEOUT_S, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from rstar2.judge.queue import tasks as queue
from rstar2.judge.server.websocket import StreamConnection, websocket_router
from rstar2.judge.service.start import JudgeHandle

ENDLESS = {"code": "while True: pass", "timeout_s": 250}


def dial(judge: JudgeHandle, headers: dict[str, str] | None = None) -> ClientConnection:
    """Open a connection with a small receive buffer. The kernel would otherwise let the buffer grow to 32 MiB."""
    url = judge.url.replace("http", "ws", 1) + "/v1/runs/stream"
    address = urlsplit(judge.url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
    connection.settimeout(TIMEOUT_S)
    connection.connect((address.hostname, address.port))
    connection.settimeout(None)
    # No pings: the client would end a connection that it does not read, because it would see no answer to its pings.
    more = {"max_size": None, "max_queue": 1, "ping_interval": None, "open_timeout": TIMEOUT_S}
    return connect(url, sock=connection, additional_headers=headers, proxy=None, **more)


@pytest.fixture
def stream(judge: JudgeHandle) -> Iterator[ClientConnection]:
    with dial(judge) as connection:
        yield connection


def quick(code: str) -> dict[str, Any]:
    """A program whose time limit is long enough for every machine."""
    return {"code": code, "timeout_s": TIMEOUT_S}


def wait_until_idle(judge: JudgeHandle) -> None:
    status_when(judge, lambda state: not unfinished(state))


def ask(stream: ClientConnection, **programs: Any) -> None:
    stream.send(json.dumps([{"id": name, "run": program} for name, program in programs.items()]))


def receive(stream: ClientConnection, count: int) -> dict[str, dict[str, Any]]:
    """Receive `count` answers and return them by id."""
    answers: dict[str, dict[str, Any]] = {}
    while len(answers) < count:
        answers.update({answer["id"]: answer for answer in json.loads(stream.recv(timeout=TIMEOUT_S))})
    return answers


def test_answers_come_as_they_are_there_and_what_is_wrong_is_invalid_alone(stream: ClientConnection) -> None:
    ask(
        stream,
        late=ENDLESS,
        good=quick("print(1)"),
        bad={},
    )
    ask(stream, surrogate={"code": "\ud800"}, nothing=None)
    answers = receive(stream, 4)
    outcomes = {name: answer["result"]["outcome"] for name, answer in answers.items()}
    assert outcomes == {"good": "ok", "bad": "invalid", "surrogate": "invalid", "nothing": "invalid"}
    assert answers["good"]["result"]["stdout"] == "1\n"
    assert answers["bad"]["result"]["stderr"].startswith("code: ")


def test_an_id_is_run_once_on_whatever_connection_it_is_asked_for(
    judge: JudgeHandle, http: httpx.Client
) -> None:
    program = quick("import time\ntime.sleep(0.5)\nprint(time.time_ns())")
    with dial(judge) as first_stream, dial(judge) as second_stream:
        for stream in (first_stream, second_stream, first_stream):
            ask(stream, same=program)
        first, second = (receive(stream, 1)["same"]["result"] for stream in (first_stream, second_stream))
    with dial(judge) as later:
        ask(later, same=program)
        third = receive(later, 1)["same"]["result"]
    fourth = http.post("/v1/runs", json=program, headers={"Idempotency-Key": "same"}).json()
    assert first["outcome"] == "ok"
    assert first == second == third == fourth


def test_another_program_under_the_id_of_one_that_runs_is_invalid(
    judge: JudgeHandle, http: httpx.Client
) -> None:
    wait_until_idle(judge)
    with dial(judge) as first_stream, dial(judge) as second_stream:
        ask(first_stream, taken=ENDLESS)
        status_when(judge, lambda state: unfinished(state) == 1)
        ask(second_stream, taken={"code": "1"})
        result = receive(second_stream, 1)["taken"]["result"]
        assert result["outcome"] == "invalid"
        answer = http.post("/v1/runs", json={"code": "1"}, headers={"Idempotency-Key": "taken"})
        assert answer.status_code == 422
        assert answer.json()["error"] == result["stderr"]
        assert unfinished(status(judge)) == 1
        first_stream.send(json.dumps([{"id": "taken", "cancel": True}]))
        assert list(receive(first_stream, 1)) == ["taken"]
    wait_until_idle(judge)


def test_a_cancelled_program_is_ended_and_others_continue(
    judge: JudgeHandle, stream: ClientConnection
) -> None:
    wait_until_idle(judge)
    ask(stream, endless=ENDLESS, stays=ENDLESS)
    status_when(judge, lambda state: unfinished(state) == 2)
    stream.send(json.dumps([{"id": "endless", "cancel": True}, {"id": "unknown", "cancel": True}]))
    assert receive(stream, 2) == {name: {"id": name, "cancelled": True} for name in ("endless", "unknown")}
    status_when(judge, lambda state: unfinished(state) == 1)
    ask(stream, short=quick("print(2)"), endless=quick("print(3)"))
    answers = receive(stream, 2)
    assert answers["short"]["result"]["outcome"] == "ok"
    assert answers["endless"]["result"]["outcome"] == "invalid"
    assert "other contents" in answers["endless"]["result"]["stderr"]
    stream.send(json.dumps([{"id": "stays", "cancel": True}]))
    assert list(receive(stream, 1)) == ["stays"]
    wait_until_idle(judge)


def test_what_nobody_else_waits_for_ends_with_its_connection(judge: JudgeHandle) -> None:
    with dial(judge) as stays:
        with dial(judge) as leaves:
            ask(leaves, **{f"gone{number}": ENDLESS for number in range(20)}, shared=quick("print(3)"))
            ask(stays, shared=quick("print(3)"))
            status_when(judge, lambda state: unfinished(state) > 10)
        assert receive(stays, 1)["shared"]["result"]["stdout"] == "3\n"
    wait_until_idle(judge)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ("{", "JSON"),
        ("{}", "array"),
        ("[5]", "0.body"),
        (json.dumps([{"id": "a", "cancel": True}] * 1025), "1024"),
        ('[{"id": "a", "cancel": "yes"}]', "0.cancel"),
        ('[{"id": "a", "run": {"code": "1"}, "cancel": true}]', "both"),
        ('[{"run": {}}]', "0.id"),
        ('[{"id": "a b", "run": {}}]', "0.id"),
        ('[{"id": "\\ud800", "run": {}}]', "0.id"),
        ('[{"id": 5}]', "0.id"),
        ('[{"id": "a", "\\ud800\u00e9\u00e9": 5}]', "0."),
        ('[{"id": "a", "run": {"code": "1"}}, {"id": ""}]', "1.id"),
        ("[" * 100_000, "JSON"),
        ("", "JSON"),
        (b"\xff", "JSON"),
    ],
    ids=[
        "cut",
        "object",
        "number",
        "many",
        "word",
        "both",
        "nameless",
        "blank",
        "surrogate",
        "id",
        "field",
        "second",
        "deep",
        "empty",
        "bytes",
    ],
)
def test_what_is_no_order_ends_the_connection_by_the_name_of_its_field(
    judge: JudgeHandle, stream: ClientConnection, message: str | bytes, field: str
) -> None:
    wait_until_idle(judge)
    before = sum(status(judge)["outcomes"].values())
    stream.send(message)
    with pytest.raises(ConnectionClosed) as closed:
        stream.recv(timeout=600)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert field in closed.value.rcvd.reason
    assert sum(status(judge)["outcomes"].values()) == before


def test_a_text_that_is_no_utf8_ends_the_connection_and_takes_one_line_of_the_log(
    judge: JudgeHandle, stream: ClientConnection
) -> None:
    log = Path(judge.folder) / "logs" / "api.log"
    before = len(log.read_text())
    stream.send(b"\xff", text=True)
    with pytest.raises(ConnectionClosed) as closed:
        stream.recv(timeout=600)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1007
    [line] = log.read_text()[before:].splitlines()
    assert "UTF-8" in line


def test_a_page_in_a_browser_is_not_let_in(judge: JudgeHandle) -> None:
    with pytest.raises(InvalidStatus, match="403"):
        dial(judge, {"Origin": "http://elsewhere.example"})


def with_token(judge: JudgeHandle) -> dict[str, str]:
    return {"Authorization": f"Bearer {judge.token}"}


@pytest.mark.slow
def test_a_token_is_asked_for(limited_judge: JudgeHandle) -> None:
    with pytest.raises(InvalidStatus, match="401"):
        dial(limited_judge)
    with pytest.raises(InvalidStatus, match="401"):
        dial(limited_judge, {"Authorization": "Bearer wrong"})
    with dial(limited_judge, with_token(limited_judge)) as stream:
        ask(stream, token=quick("7"))
        assert receive(stream, 1)["token"]["result"]["value"] == "7"


@pytest.mark.slow
def test_a_full_queue_is_an_answer_for_each_program(limited_judge: JudgeHandle) -> None:
    wait_until_idle(limited_judge)
    with dial(limited_judge, with_token(limited_judge)) as stream:
        ask(stream, a=ENDLESS, b=ENDLESS, c=ENDLESS, d=quick("print(1)"))
        answer = receive(stream, 1)["d"]
        assert set(answer) == {"id", "retry_after_s"}
        assert 1 <= answer["retry_after_s"] <= 10
        stream.send(json.dumps([{"id": name, "cancel": True} for name in "abc"]))
        assert set(receive(stream, 3)) == {"a", "b", "c"}
        wait_until_idle(limited_judge)
        ask(stream, d=quick("print(1)"))
        while "retry_after_s" in (answer := receive(stream, 1)["d"]):
            time.sleep(answer["retry_after_s"])
            ask(stream, d=quick("print(1)"))
        assert answer["result"]["stdout"] == "1\n"


def memory_mb(pid: int) -> float:
    """Returns the memory of a process in MiB."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize() / (1 << 20)


LONG = quick("print('\\0' * (1 << 20), end='')")
"""A program whose result would take 6 MiB as JSON. The result is cut at 2 MiB."""


@pytest.mark.slow
def test_a_client_that_does_not_read_fills_no_memory_is_not_read_from_and_loses_nothing(
    judge: JudgeHandle,
) -> None:
    names = [f"long{number}" for number in range(72)]
    [server] = parts(judge, "rstar2.judge.server.app")
    with dial(judge) as stream:
        wait_until_idle(judge)
        done_count = status(judge)["outcomes"].get("ok", 0) + len(names)
        before = memory_mb(server)
        ask(stream, **dict.fromkeys(names, LONG))
        status_when(judge, lambda state: state["outcomes"].get("ok", 0) == done_count)
        # The results that the judge is fetching and sending need more memory for a moment.
        wait_until(lambda: memory_mb(server) - before < 200)
        shorts = 0
        deadline = time.monotonic() + TIMEOUT_S
        while status(judge)["outcomes"]["ok"] == done_count + shorts:
            assert time.monotonic() < deadline, "the judge reads from a client that never reads"
            shorts += 1
            ask(stream, **{f"short{shorts}": quick("print(1)")})
            time.sleep(1)
        answers = receive(stream, len(names) + shorts)
    longs = [answers.pop(name)["result"] for name in names]
    assert all(result["stdout"].strip("\0") == "" and len(result["stdout"]) > 300_000 for result in longs)
    assert all(result["stdout_truncated"] for result in longs)
    assert {answer["result"]["stdout"] for answer in answers.values()} == {"1\n"}


@pytest.mark.slow
def test_a_result_is_kept_until_its_client_has_read_it(judge: JudgeHandle) -> None:
    names = [f"kept{number}" for number in range(8)]
    with redis.Redis.from_url(judge.redis_url) as client, dial(judge) as stream, dial(judge) as other_stream:

        def expires_s(names: list[str]) -> int:
            return max(int(client.ttl(queue.state_key(name))) for name in names)

        def wait_until_reported(names: list[str]) -> None:
            """Wait until Redis was told that these results were delivered."""
            wait_until(lambda: expires_s(names) <= queue.DELIVERED_TTL_S)

        ask(stream, **dict.fromkeys(names, LONG))
        wait_until_idle(judge)
        # The judge reports delivered results to Redis every few seconds. The marker is delivered after the long results
        # are finished. If those counted as delivered, they would be reported with the marker at the latest.
        ask(other_stream, marker=quick("1"))
        assert set(receive(other_stream, 1)) == {"marker"}
        wait_until_reported(["marker"])
        assert expires_s(names) > queue.DELIVERED_TTL_S
        assert set(receive(stream, len(names))) == set(names)
        wait_until_reported(names)


def test_another_program_under_an_id_in_use_on_the_connection_is_refused_by_name(
    judge: JudgeHandle, stream: ClientConnection
) -> None:
    wait_until_idle(judge)
    orders = [
        {"id": "twice", "run": ENDLESS},
        {"id": "twice", "run": ENDLESS},
        {"id": "twice", "run": {"code": "2"}},
    ]
    stream.send(json.dumps(orders))
    [result] = [answer["result"] for answer in receive(stream, 1).values()]
    assert (result["id"], result["outcome"]) == ("twice", "invalid")
    assert "other contents" in result["stderr"]
    ask(stream, twice={"code": "3"})
    assert receive(stream, 1)["twice"]["result"]["outcome"] == "invalid"
    ask(stream, twice={"code": 5})
    assert receive(stream, 1)["twice"]["result"]["stderr"].startswith("code: ")
    # The first program still runs.
    assert unfinished(status(judge)) == 1
    stream.send(json.dumps([{"id": "twice", "cancel": True}]))
    assert receive(stream, 1) == {"twice": {"id": "twice", "cancelled": True}}
    wait_until_idle(judge)


def test_a_connection_whose_writer_fails_ends_and_does_not_leave_its_client_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def broken(_: StreamConnection) -> None:
        raise ValueError("the writer is broken")

    monkeypatch.setattr(StreamConnection, "send_responses", broken)
    app = FastAPI()
    dispatcher: Any = None
    app.include_router(websocket_router(dispatcher))
    with (
        pytest.raises(ExceptionGroup) as errors,
        TestClient(app) as client,
        client.websocket_connect("/v1/runs/stream") as connection,
    ):
        connection.receive_text()
    assert [str(error) for error in errors.value.exceptions] == ["the writer is broken"]
