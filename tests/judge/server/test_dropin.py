"""The drop-in endpoints for clients of code-judge and of SandboxFusion."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from support.judge.judge_faults import status_when
from support.optional import needs
from support.waiting import TIMEOUT_S

from rstar2.judge.schema import RunResult
from rstar2.judge.server import codejudge
from rstar2.judge.service.start import JudgeHandle

BOTH_VERBS = pytest.mark.parametrize("verb", ["run", "judge"])


def submit(http: httpx.Client, path: str, solution: str, **more: Any) -> dict[str, Any]:
    answer = http.post(path, json={"type": "python", "solution": solution, **more})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_ping_and_status(http: httpx.Client, judge: JudgeHandle) -> None:
    assert http.get("/ping").json() == "pong"
    # Programs of earlier tests may still wait to be cancelled.
    status_when(judge, lambda status: (status["queue"], status["num_workers"]) == (0, 2))


@BOTH_VERBS
def test_right_output_succeeds_whatever_the_space_around_it(http: httpx.Client, verb: str) -> None:
    result = submit(http, f"/{verb}", "print(input())", input="a", expected_output=" a", sub_id="mine")
    assert (result["sub_id"], result["success"], result["run_success"], result["reason"]) == (
        "mine",
        True,
        True,
        "",
    )
    assert result["cost"] > 0


@BOTH_VERBS
def test_wrong_output_ran_and_did_not_succeed(http: httpx.Client, verb: str) -> None:
    result = submit(http, f"/{verb}", "print(input())", input="a", expected_output="b")
    assert (result["success"], result["run_success"], result["reason"]) == (False, True, "")


@BOTH_VERBS
def test_missing_stdin_is_a_failed_run(http: httpx.Client, verb: str) -> None:
    result = submit(http, f"/{verb}", "print(input())", input="", expected_output="a")
    assert (result["success"], result["run_success"]) == (False, False)


def test_only_run_shows_the_output(http: httpx.Client) -> None:
    assert submit(http, "/run", "print(1)")["stdout"] == "1\n"
    assert not {"stdout", "stderr"} & submit(http, "/judge", "print(1)").keys()


@BOTH_VERBS
def test_writes_into_the_work_folder_are_allowed(http: httpx.Client, verb: str) -> None:
    code = "with open('test.txt', 'w') as f:\n    f.write('Hello')"
    assert submit(http, f"/{verb}", code, expected_output="")["success"]


def test_a_run_that_takes_too_long_says_so() -> None:
    async def limit_s() -> float:
        _, run = codejudge.prepare({"type": "python", "solution": "while True: pass"})
        return float(json.loads(run.body)["timeout_s"])

    assert asyncio.run(limit_s()) == codejudge.TIMEOUT_S
    answer = codejudge.answer_for("a", RunResult(id="a", outcome="timeout", stdout="so far\n", wall_s=10.0))
    assert answer["stdout"] == "so far\nSuicide from timeout.\n"
    assert (answer["success"], answer["run_success"], answer["reason"]) == (False, False, "worker_timeout")
    assert answer["cost"] == 10.0


def test_a_leftover_child_does_not_outlast_its_run(http: httpx.Client) -> None:
    code = "import os, time\nif os.fork() == 0: time.sleep(600)\nelse: print('left')"
    result = submit(http, "/run", code)
    assert (result["run_success"], result["stdout"]) == (True, "left\n")


@BOTH_VERBS
@pytest.mark.parametrize("kind", ["batch", "long-batch"])
def test_a_mixed_batch_is_answered_in_order(http: httpx.Client, verb: str, kind: str) -> None:
    items: list[object] = [
        {"type": "python", "solution": "print(input())", "input": "", "expected_output": "b"},
        {"type": "cpp", "solution": "int main(){}", "sub_id": "c++"},
        {"type": "python", "solution": "print(input())", "input": "a", "expected_output": "a", "sub_id": "p"},
        {"type": "python", "solution": 5},
        "nonsense",
    ]
    answer = http.post(
        f"/{verb}/{kind}", json={"type": "batch", "sub_id": "all", "submissions": items}
    ).json()
    results = answer["results"]
    assert answer["sub_id"] == "all"
    assert [r["success"] for r in results] == [False, False, True, False, False]
    assert [r["reason"] for r in results] == ["", "invalid_input", "", "invalid_input", "invalid_input"]
    assert [results[1]["sub_id"], results[2]["sub_id"]] == ["c++", "p"]
    if verb == "run":
        assert "type" in results[1]["stderr"]


SURROGATE = b'{"sub_id": "\\ud800", "type": "python", "solution": "print(1)"}'
BAD_SURROGATE = b'{"sub_id": "\\ud800", "type": "cpp", "solution": "1"}'


@BOTH_VERBS
@pytest.mark.parametrize("item", [SURROGATE, BAD_SURROGATE])
def test_an_id_that_cannot_be_sent_back_is_invalid_input(http: httpx.Client, verb: str, item: bytes) -> None:
    single = http.post(f"/{verb}", content=item)
    batch = http.post(f"/{verb}/batch", content=b'{"submissions": [' + item + b', {"type": "python"}]}')
    assert (single.status_code, batch.status_code) == (200, 200)
    results = [single.json(), *batch.json()["results"]]
    assert [result["reason"] for result in results] == ["invalid_input"] * 3
    assert len({result["sub_id"] for result in results}) == 3
    if verb == "run":
        assert "sub_id: " in results[0]["stderr"]


def test_a_batch_whose_id_cannot_be_sent_back_is_refused(http: httpx.Client) -> None:
    body = b'{"sub_id": "\\ud800", "submissions": [' + SURROGATE + b"]}"
    answer = http.post("/run/long-batch", content=body)
    assert answer.status_code == 422
    assert answer.json()["error"].startswith("sub_id: ")


def test_an_empty_batch_is_refused(http: httpx.Client) -> None:
    answer = http.post("/run/batch", json={"type": "batch", "submissions": []})
    assert answer.status_code == 422
    assert "submissions" in answer.json()["error"]


def fusion(http: httpx.Client, **request: Any) -> dict[str, Any]:
    answer = http.post("/run_code", json={"language": "python", **request})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def test_run_code_answers_in_the_terms_of_sandboxfusion(http: httpx.Client) -> None:
    good = fusion(http, code="print(input())", stdin="x", compile_timeout=5, run_timeout=TIMEOUT_S)
    assert good["status"] == "Success"
    run = good["run_result"]
    assert (run["status"], run["return_code"], run["stdout"], run["stderr"]) == ("Finished", 0, "x\n", "")
    bad = fusion(http, code="raise SystemExit(3)", run_timeout=TIMEOUT_S)
    assert (bad["status"], bad["run_result"]["return_code"]) == ("Failed", 3)
    late = fusion(http, code="while True: pass", run_timeout=0.5)
    assert (late["status"], late["run_result"]["status"]) == ("Failed", "TimeLimitExceeded")


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({"language": "cpp"}, "language"),
        ({"files": {"a": "b"}}, "files"),
        ({"run_timeout": -1}, "run_timeout"),
    ],
)
def test_what_run_code_does_not_serve_is_named(
    http: httpx.Client, request_: dict[str, Any], field: str
) -> None:
    answer = http.post("/run_code", json={"language": "python", "code": "1", **request_})
    assert answer.status_code == 422
    assert field in answer.json()["error"]


def _alone(package: str, path: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Import one folder of an installed package as a separate package, without the imports of its parent."""
    package_spec = importlib.util.find_spec(package)
    assert package_spec is not None
    assert package_spec.origin is not None
    folder = Path(package_spec.origin).parent / path
    name = f"{package}_{folder.name}"
    spec = importlib.util.spec_from_file_location(
        name, folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@needs("verl")
def test_verls_own_client_works_unmodified(judge: JudgeHandle, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox_fusion = _alone("verl", "utils/reward_score/sandbox_fusion", monkeypatch)
    client = importlib.import_module(f"{sandbox_fusion.__name__}.utils")
    # The client waits this long beyond the program's time limit. Its default is ten seconds.
    monkeypatch.setattr(client, "API_TIMEOUT", TIMEOUT_S)
    cases = {"inputs": ["1\n", "2\n", "3\n", "boom\n"], "outputs": ["1", "2", "wrong", ""]}
    code = "x = input()\nif x == 'boom': raise ValueError\nwhile x == 'loop': pass\nprint(x)"
    results, details = client.check_correctness(f"{judge.url}/run_code", cases, code, timeout=60)
    assert results == [True, True, False, -2]
    assert details[0]["stdout"] == "1\n"
    endless = {"inputs": ["loop\n"], "outputs": [""]}
    assert client.check_correctness(f"{judge.url}/run_code", endless, code, timeout=1)[0] == [-3]
    completion = "```python\nprint(int(input()) ** 2)\n```"
    tests = {"inputs": ["3", "4"], "outputs": ["9", "16"]}
    score, _ = sandbox_fusion.compute_score(f"{judge.url}/run_code", None, 1024, completion, tests)
    assert score == 1.0
