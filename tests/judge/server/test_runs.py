"""Answers of the native HTTP endpoints."""

from __future__ import annotations

import time
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from support.judge.judge_faults import status_when, unfinished
from support.waiting import TIMEOUT_S

from rstar2.judge.schema import RunRequest, RunResult
from rstar2.judge.server.app import create_app
from rstar2.judge.server.http import add_error_answers
from rstar2.judge.server.settings import ServerSettings
from rstar2.judge.service.start import JudgeHandle


def run(http: httpx.Client, code: str, **more: Any) -> dict[str, Any]:
    """Run a program. Its default time limit is long enough for every machine."""
    answer = http.post("/v1/runs", json={"code": code, "timeout_s": TIMEOUT_S, **more})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_output_and_value_are_told_apart(http: httpx.Client) -> None:
    result = run(http, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n6 * 7")
    assert (result["outcome"], result["stdout"], result["value"], result["exit_code"]) == (
        "ok",
        "out\n",
        "42",
        0,
    )
    assert result["stderr"] == "err\n"
    assert result["wall_s"] > 0


def test_none_is_no_value(http: httpx.Client) -> None:
    assert run(http, "print(1)")["value"] is None


def test_stdin_reaches_the_program(http: httpx.Client) -> None:
    assert run(http, "print(sum(map(int, input().split())))", stdin="1 2 3\n")["stdout"] == "6\n"


def test_an_exception_is_an_error_with_its_line(http: httpx.Client) -> None:
    result = run(http, "from __future__ import annotations\nx = 1\n1 / 0")
    assert result["outcome"] == "error"
    assert result["exit_code"] == 1
    assert "line 3" in result["stderr"]
    assert "ZeroDivisionError" in result["stderr"]


def test_exit_code_is_the_programs_own(http: httpx.Client) -> None:
    result = run(http, "raise SystemExit(3)")
    assert (result["outcome"], result["exit_code"]) == ("error", 3)


def test_an_endless_loop_is_ended_at_its_limit(http: httpx.Client) -> None:
    result = run(http, "while True: pass", timeout_s=0.5)
    assert result["outcome"] == "timeout"
    assert result["wall_s"] >= 0.5


def test_too_much_memory_is_its_own_outcome(http: httpx.Client) -> None:
    assert run(http, "x = bytearray(900 << 20)", memory_mb=256)["outcome"] == "memory"


def test_long_output_is_cut_and_said_to_be(http: httpx.Client) -> None:
    result = run(http, "print('x' * (3 << 20))")
    assert result["stdout_truncated"]
    assert len(result["stdout"]) == 1 << 20


def test_files_of_one_run_are_gone_in_the_next(http: httpx.Client) -> None:
    assert run(http, "open('left', 'w').write('1')")["outcome"] == "ok"
    assert run(http, "import os\nprint(os.path.exists('left'))")["stdout"] == "False\n"


def test_a_batch_keeps_its_order_and_a_bad_item_is_invalid_alone(http: httpx.Client) -> None:
    items: list[object] = [{"code": "print(0)"}, {"code": 5}, {"code": "print(2)"}, "nonsense", {"cod": ""}]
    results = http.post("/v1/runs/batch", json={"runs": items}).json()["results"]
    assert [r["outcome"] for r in results] == ["ok", "invalid", "ok", "invalid", "invalid"]
    assert [r["stdout"] for r in results] == ["0\n", "", "2\n", "", ""]
    assert results[1]["stderr"].startswith("code:")
    assert "cod:" in results[4]["stderr"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"code": "\\ud800"}', "code"),
        (b'{"code": "a\\u0000b"}', "code"),
        (b'{"code": "1", "timeout_s": -1}', "timeout_s"),
        (b'{"code": "1", "timeout_s": NaN}', "timeout_s"),
        (b'{"code": "1", "timeout_s": true}', "timeout_s"),
        (b'{"code": "1", "timeout_s": "5"}', "timeout_s"),
        (b'{"code": "1", "\\ud800": 1}', "\\ud800"),
        (b'{"code": "1", "stdin": 7}', "stdin"),
        (b'{"code": "1", "memory_mb": "much"}', "memory_mb"),
        (b'{"code": "1", "colour": 1}', "colour"),
        (b'{"code": "' + b"a" * (2 << 20) + b'"}', "code"),
        (b"{}", "code"),
        (b"[]", "body"),
        (b"{", "body"),
        (b"[" * 100_000, "body"),
        (b"\xff\xfe\x00", "body"),
    ],
)
def test_a_bad_request_is_refused_by_the_name_of_its_field(
    http: httpx.Client, body: bytes, field: str
) -> None:
    answer = http.post("/v1/runs", content=body)
    assert 400 <= answer.status_code < 500
    assert field in answer.json()["error"]


def test_a_field_whose_name_cannot_be_sent_back_is_named_in_its_item(http: httpx.Client) -> None:
    body = b'{"runs": [{"code": "1", "\\ud800": 1}, {"code": "2"}]}'
    answer = http.post("/v1/runs/batch", content=body)
    assert answer.status_code == 200
    assert "\\\\ud800: " in answer.text
    assert '"value":"2"' in answer.text


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/runs", 405), ("POST", "/v2", 404)])
def test_what_is_not_served_is_told_like_any_error(
    http: httpx.Client, method: str, path: str, status: int
) -> None:
    answer = http.request(method, path)
    assert (answer.status_code, list(answer.json())) == (status, ["error"])
    assert (answer.headers.get("Allow") == "POST") == (status == 405)


async def test_a_fault_of_ours_is_told_without_its_traceback() -> None:
    app = FastAPI()
    add_error_answers(app)

    @app.get("/")
    async def broken() -> None:
        raise RuntimeError("secret")

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://judge") as client:
        answer = await client.get("/")
    assert (answer.status_code, list(answer.json())) == (500, ["error"])
    assert "secret" not in answer.text


def test_a_batch_beyond_the_limit_is_refused(http: httpx.Client) -> None:
    answer = http.post("/v1/runs/batch", json={"runs": [{"code": "1"}] * 1025})
    assert answer.status_code == 422
    assert "runs" in answer.json()["error"]


def test_the_same_key_runs_once(http: httpx.Client) -> None:
    code = "import time\nprint(time.time_ns())"
    answers = [
        http.post("/v1/runs", json={"code": code}, headers={"Idempotency-Key": "once"}).json()
        for _ in range(2)
    ]
    assert answers[0] == answers[1]
    assert answers[0]["id"] == "once"


def test_a_key_holds_for_one_request_alone(http: httpx.Client) -> None:
    headers = {"Idempotency-Key": f"held-{time.time_ns()}"}
    for body, status in (({"code": "1"}, 200), ({"code": "2"}, 422), ({"code": "1", "stdin": "2"}, 422)):
        answer = http.post("/v1/runs", json=body, headers=headers)
        assert answer.status_code == status
    assert answer.json()["error"].startswith("Idempotency-Key: ")
    batch = {"Idempotency-Key": f"batch-{time.time_ns()}"}
    for code, status in (("1", 200), ("2", 422), ("1", 200)):
        runs = {"runs": [{"code": "0"}, {"code": code}]}
        assert http.post("/v1/runs/batch", json=runs, headers=batch).status_code == status


def test_status_counts_what_was_run(http: httpx.Client, judge: JudgeHandle) -> None:
    # Programs of earlier tests may still wait to be cancelled.
    before = status_when(judge, lambda status: not unfinished(status))["outcomes"].get("ok", 0)
    run(http, "1")
    after = http.get("/status").json()
    assert after["outcomes"]["ok"] == before + 1
    assert len(after["workers"]) == 2
    assert after["queue"] == 0
    # A worker whose heartbeat is late does not count until its next heartbeat.
    status_when(judge, lambda status: status["num_workers"] == 2)


def test_metrics_count_runs_in_the_format_of_prometheus(http: httpx.Client) -> None:
    run(http, "1")
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        families = {f.name: f for f in text_string_to_metric_families(http.get("/metrics").text)}
        run_seconds = {s.name: s.value for s in families["judge_run_seconds"].samples}
        if run_seconds["judge_run_seconds_count"] > 0 and families["judge_workers"].samples[0].value == 2:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    outcomes = {sample.labels["outcome"]: sample.value for sample in families["judge_runs"].samples}
    assert outcomes["ok"] >= 1


@pytest.mark.parametrize("token", [None, "secret"])
async def test_the_api_is_described_where_no_token_is_asked_for(token: str | None) -> None:
    app: Any = create_app(
        ServerSettings(redis_url="redis://127.0.0.1:1", socket_fd=0, token=token, hosts=["judge"])
    )
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://judge", headers=headers
    ) as http:
        page, answer = await http.get("/docs"), await http.get("/openapi.json")
    if token is not None:
        assert (page.status_code, answer.status_code) == (404, 404)
        return
    assert "/openapi.json" in page.text
    api = answer.json()
    body = api["paths"]["/v1/runs"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(body["properties"]) == set(RunRequest.model_fields)
    assert set(api["components"]["schemas"]["RunResult"]["properties"]) == set(RunResult.model_fields)
    for path in ("/v1/sessions", "/v1/sessions/{session}/cells", "/run", "/judge/long-batch", "/run_code"):
        assert "requestBody" in api["paths"][path]["post"], path
