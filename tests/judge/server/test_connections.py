"""Attacks on the HTTP process with bare connections, and from web pages."""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from support.judge.judge_faults import parts
from support.waiting import TIMEOUT_S, wait_until

from rstar2.judge.server.settings import ServerLimits
from rstar2.judge.service.settings import ServiceSettings
from rstar2.judge.service.start import JudgeHandle, start_service, stop_service

BODY_BUDGET = 12 << 20
"""`max_body_bytes` of `limited_judge`."""
READ_S = 1.0
FIRST_BYTES = 8 << 10
"""Number of bytes at the start of a request that are sure to fit into the socket buffers."""
MAX_LOG_BYTES = 4000
UPGRADE = (
    "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n"
)


@pytest.fixture(scope="module")
def strict_limits(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeHandle]:
    """A judge with short timeouts that also has the host name `here`."""
    settings = ServiceSettings(
        folder=str(tmp_path_factory.mktemp("limits")),
        workers=1,
        preload=False,
        hosts=["here"],
        limits=ServerLimits(read_s=READ_S, unread_s=1.0),
        max_log_bytes=MAX_LOG_BYTES,
    )
    process, handle = start_service(settings)
    yield handle
    stop_service(process)


def dial(judge: JudgeHandle) -> socket.socket:
    address = httpx.URL(judge.url)
    return socket.create_connection((address.host, address.port), timeout=TIMEOUT_S)


def with_token(judge: JudgeHandle) -> dict[str, str]:
    return {"Authorization": f"Bearer {judge.token}"}


def read_all(connection: socket.socket) -> bytes:
    """Returns all data until the judge ends the connection."""
    received = b""
    try:
        while data := connection.recv(65536):
            received += data
    except ConnectionResetError:
        # The judge ended the connection while the test was still sending.
        pass
    return received


@contextmanager
def connected(judge: JudgeHandle, data: bytes) -> Iterator[socket.socket]:
    """Open a connection whose first data has arrived before the judge accepts the connection.

    A slow test therefore cannot exceed the judge's short read timeout.
    """
    [server] = parts(judge, "rstar2.judge.server.app")
    os.kill(server, signal.SIGSTOP)
    try:
        connection = dial(judge)
        connection.sendall(data[:FIRST_BYTES])
    finally:
        os.kill(server, signal.SIGCONT)
    with connection:
        connection.sendall(data[FIRST_BYTES:])
        yield connection


def answer_to(judge: JudgeHandle, head: str, body: bytes = b"") -> bytes:
    """Send a request and return everything that the judge answers before it ends the connection."""
    with connected(judge, head.encode() + b"\r\n" + body) as connection:
        return read_all(connection)


CHUNKED = "HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    "head",
    [
        "GET / HTTP/1.1\r\nHost: localhost\r\nX: ",
        f"POST /v1/runs {CHUNKED}2\r\n{{}}\r\n0\r\nX: ",
        f"POST /nothing {CHUNKED}0\r\nX: ",
        f"POST /v1/runs {CHUNKED}2;",
    ],
    ids=["head", "trailer", "trailer-after-the-answer", "chunk"],
)
def test_a_long_head_is_refused_early_and_holds_up_nobody(strict_limits: JudgeHandle, head: str) -> None:
    sent_mib = 0
    with (
        connected(strict_limits, head.encode()) as connection,
        httpx.Client(base_url=strict_limits.url) as http,
    ):
        try:
            for _ in range(128):
                connection.sendall(b"a" * (1 << 20))
                sent_mib += 1
                assert http.get("/ping", timeout=TIMEOUT_S).status_code == 200
        except (ConnectionResetError, BrokenPipeError):
            pass
    # The buffers of both sockets take less than 32 MiB.
    assert sent_mib < 32


def test_a_client_that_reads_no_answers_is_gone_after_a_while(strict_limits: JudgeHandle) -> None:
    with socket.socket() as connection:
        address = httpx.URL(strict_limits.url)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(TIMEOUT_S)
        connection.connect((address.host, address.port))
        # More than the buffers of both sockets take.
        runs = b'{"runs": [%b]}' % b",".join([b'{"code": "print(\'a\' * (1 << 20))"}'] * 8)
        head = f"POST /v1/runs/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(runs)}\r\n\r\n"
        connection.sendall(head.encode() + runs)
        deadline = time.monotonic() + TIMEOUT_S
        with pytest.raises((ConnectionResetError, BrokenPipeError)):  # noqa: PT012
            while time.monotonic() < deadline:
                connection.sendall(b"\r\n")
                time.sleep(0.1)


def test_a_body_that_stops_coming_is_refused_after_a_while(strict_limits: JudgeHandle) -> None:
    head = "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n"
    assert answer_to(strict_limits, head, b"{").startswith(b"HTTP/1.1 408")


def test_requests_sent_ahead_are_answered_in_turn(strict_limits: JudgeHandle) -> None:
    body = b'{"code": "import time; time.sleep(0.5)", "timeout_s": 300.0}'
    head = f"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    ahead = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /ping HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answer = answer_to(strict_limits, head, body + 5000 * ahead + last)
    assert b"outcome" in answer[: answer.index(b"pong")]
    assert answer.count(b"HTTP/1.1 200") == 5002


def test_another_protocol_is_not_taken_up(strict_limits: JudgeHandle) -> None:
    """Some clients ask for HTTP/2 with every first request."""
    body = b'{"code": "6 * 7", "timeout_s": 300.0}'
    head = (
        "POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, HTTP2-Settings, close\r\n"
        f"Upgrade: h2c\r\nHTTP2-Settings: AAMA\r\nContent-Length: {len(body)}\r\n"
    )
    answer = answer_to(strict_limits, head, body)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"42"' in answer


@pytest.mark.slow
def test_a_slow_body_that_keeps_coming_and_a_slow_program_are_waited_for(strict_limits: JudgeHandle) -> None:
    program = {"code": "import time; time.sleep(2.5); print(7)", "timeout_s": TIMEOUT_S}
    body = json.dumps(program).encode()
    head = f"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    deadline = time.monotonic() + TIMEOUT_S
    silent_s = READ_S
    # Repeat the test if this process had to wait for a CPU and was therefore silent for too long.
    while silent_s >= READ_S:
        assert time.monotonic() < deadline
        silent_s, sent_at = 0.0, time.monotonic()
        with connected(strict_limits, head.encode()) as connection:
            try:
                for start in range(0, len(body), 2):
                    time.sleep(0.05)
                    silent_s, sent_at = max(silent_s, time.monotonic() - sent_at), time.monotonic()
                    connection.sendall(body[start : start + 2])
                silent_s = max(silent_s, time.monotonic() - sent_at)
                answer = connection.recv(65536)
            except (ConnectionResetError, BrokenPipeError):
                silent_s, answer = max(silent_s, time.monotonic() - sent_at), b""
        if answer.startswith(b"HTTP/1.1 200"):
            return
    pytest.fail(f"{answer!r} though never silent for more than {silent_s:.2f} s")


@contextmanager
def incomplete_bodies(judge: JudgeHandle, count: int) -> Iterator[list[socket.socket]]:
    """Opens connections with incomplete bodies. Each body is a little over a quarter of the budget."""
    head = f"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {judge.token}\r\n"
    head += f"Content-Length: {BODY_BUDGET}\r\n\r\n"
    with ExitStack() as stack:
        connections = [stack.enter_context(dial(judge)) for _ in range(count)]
        for connection in connections:
            connection.sendall(head.encode() + b"a" * (BODY_BUDGET // 4 + 1))
        yield connections


@pytest.mark.slow
def test_bodies_have_a_budget_together(limited_judge: JudgeHandle) -> None:
    """Each request alone is legal. While they are incomplete, another request gets a response that tells it to try
    again."""
    with incomplete_bodies(limited_judge, 4) as connections:
        readable = select.select(connections, [], [], TIMEOUT_S)[0]
        answer = readable[0].recv(65536)
    assert answer.startswith(b"HTTP/1.1 429")
    assert b"retry-after: 1\r\n" in answer.lower()
    # The budget is free again as soon as the judge has seen that these connections are closed.
    program = {"code": "1", "stdin": "a" * (BODY_BUDGET * 3 // 4), "timeout_s": TIMEOUT_S}
    with httpx.Client(base_url=limited_judge.url, headers=with_token(limited_judge)) as http:
        wait_until(lambda: http.post("/v1/runs", json=program, timeout=TIMEOUT_S).status_code == 200)


@pytest.mark.slow
def test_what_ends_a_connection_before_its_answer_writes_no_traceback(limited_judge: JudgeHandle) -> None:
    log = Path(limited_judge.folder) / "logs" / "api.log"
    before = log.stat().st_size
    body = b'{"code": "import time; time.sleep(0.2)", "timeout_s": 300.0}'
    token = f"Host: localhost\r\nAuthorization: Bearer {limited_judge.token}\r\n"
    head = f"POST /v1/runs HTTP/1.1\r\n{token}Content-Length: {len(body)}\r\n"
    second = b"GET /ping HTTP/1.1\r\nHost: localhost\r\n\r\n"
    answer = answer_to(limited_judge, head, body + second + b"no request\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200") == 2
    assert answer.count(b"HTTP/1.1 400") == 1
    # When this program has run, the first connection is over, and all of its lines are in the log.
    with httpx.Client(base_url=limited_judge.url, headers=with_token(limited_judge)) as http:
        assert http.post("/v1/runs", json={"code": "1"}, timeout=TIMEOUT_S).status_code == 200
    assert answer_to(limited_judge, "no request\r\n\r\n").startswith(b"HTTP/1.1 400")
    wait_until(lambda: log.read_bytes()[before:].count(b"Invalid HTTP request") >= 2)
    assert log.read_bytes()[before:].count(b"Traceback") == 0


@pytest.mark.parametrize(
    "path", ["/v1/runs", "/run", "/run_code", "/v1/sessions", "/health", "/ping", "/status"]
)
@pytest.mark.parametrize(
    ("headers", "fault"),
    [
        ("Host: localhost\r\nOrigin: http://elsewhere.example\r\n", b"Origin"),
        ("Host: localhost\r\nOrigin: null\r\n", b"Origin"),
        ("Host: rebound.example\r\n", b"Host"),
        ("Host: localhost.rebound.example:80\r\n", b"Host"),
        ("Host: 127.0.0.1.rebound.example\r\n", b"Host"),
    ],
)
def test_web_pages_are_refused(strict_limits: JudgeHandle, path: str, headers: str, fault: bytes) -> None:
    method = "GET" if path in ("/health", "/ping", "/status") else "POST"
    body = b'{"code": "1"}'
    head = f"{method} {path} HTTP/1.1\r\n{headers}Connection: close\r\nContent-Length: {len(body)}\r\n"
    answer = answer_to(strict_limits, head, body)
    assert answer.startswith(b"HTTP/1.1 403")
    assert b'{"error":"%b: ' % fault in answer


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:80", "127.0.0.1:80", "[::1]:80", "192.0.2.7", "Here:1"]
)
def test_a_judge_answers_to_its_own_names(strict_limits: JudgeHandle, host: str) -> None:
    assert answer_to(
        strict_limits, f"GET /ping HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n"
    ).startswith(b"HTTP/1.1 200")


def test_with_a_token_a_judge_has_any_name(limited_judge: JudgeHandle) -> None:
    headers = {"Host": "judge.example", **with_token(limited_judge)}
    assert httpx.get(f"{limited_judge.url}/status", headers=headers, timeout=TIMEOUT_S).status_code == 200
    page = headers | {"Origin": "http://judge.example"}
    assert httpx.get(f"{limited_judge.url}/status", headers=page, timeout=TIMEOUT_S).status_code == 403


def test_a_long_log_is_put_aside(strict_limits: JudgeHandle) -> None:
    logs = Path(strict_limits.folder) / "logs"
    deadline = time.monotonic() + TIMEOUT_S
    while not (logs / "api.log.1").exists():
        assert time.monotonic() < deadline
        assert answer_to(strict_limits, "no request\r\n\r\n").startswith(b"HTTP/1.1 400")
    wait_until(lambda: (logs / "api.log").stat().st_size <= MAX_LOG_BYTES)
