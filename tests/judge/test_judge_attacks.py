"""Hostile and legitimate programs, sent through HTTP: they come out as their case says, the host is unharmed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from attacks import Case, Surroundings, read_cases, run_case
from judge.faults import parts

from rstar2.judge.schema import RunRequest, RunResult
from rstar2.judge.service import JudgeHandle

SHARED = Path(os.environ.get("RSTAR2_SHARED", Path(__file__).resolve().parents[3] / "shared")) / "attacks"


class OverHttp:
    """Stands where the attack runner wants a sandbox."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=60.0, trust_env=False)

    def run(self, request: RunRequest, run_id: str) -> RunResult:
        body = json.dumps({"runs": [request.model_dump(warnings=False)]})
        answer = self.client.post("/v1/runs/batch", content=body)
        assert answer.status_code == 200, answer.text
        [result] = answer.json()["results"]
        return RunResult(**result)


def cases() -> list[object]:
    files = sorted(SHARED.glob("*.jsonl"))
    if not files:
        reason = f"no attack programs in {SHARED}; set RSTAR2_SHARED"
        return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(case, id=case.id) for path in files for case in read_cases(path)]


@pytest.fixture(scope="module")
def over_http(judge: JudgeHandle) -> OverHttp:
    if judge.isolation != "strict":
        pytest.skip(f"this machine gives the judge the tier {judge.isolation}, not strict")
    return OverHttp(judge.url)


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    host = Surroundings(tmp_path_factory.mktemp("host"))
    yield host
    host.close()


@pytest.fixture(scope="module")
def workers(judge: JudgeHandle) -> list[int]:
    return parts(judge, "rstar2.judge.worker")


@pytest.mark.parametrize("case", cases())
def test_a_case_comes_out_as_it_says_and_the_workers_survive_it(
    over_http: OverHttp, surroundings: Surroundings, workers: list[int], judge: JudgeHandle, case: Case
) -> None:
    assert run_case(over_http, case, surroundings) == []
    assert parts(judge, "rstar2.judge.worker") == workers
