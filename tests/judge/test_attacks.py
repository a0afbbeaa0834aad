"""Hostile and legitimate programs over HTTP: each has an outcome that its case allows, and the host is unchanged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from support.judge.attack_programs import PROGRAMS
from support.judge.attacks import Case, Surroundings, not_in_landlock, run_case
from support.judge.judge_faults import parts
from support.waiting import TIMEOUT_S

from rstar2.judge.schema import RunRequest, RunResult
from rstar2.judge.service.start import JudgeHandle, running_judge

pytestmark = pytest.mark.long


class OverHttp:
    """Runs programs over HTTP. The attack runner uses it in place of a sandbox."""

    def __init__(self, url: str) -> None:
        self.client = httpx.Client(base_url=url, timeout=2 * TIMEOUT_S, trust_env=False)

    def run(self, request: RunRequest, run_id: str) -> RunResult:
        body = json.dumps({"runs": [request.model_dump(warnings=False)]})
        answer = self.client.post("/v1/runs/batch", content=body)
        assert answer.status_code == 200, answer.text
        [result] = answer.json()["results"]
        return RunResult(**result)


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    host = Surroundings(tmp_path_factory.mktemp("host"))
    yield host
    host.close()


@pytest.fixture(scope="module")
def judge(surroundings: Surroundings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JudgeHandle]:
    """A judge whose worker has a secret in its environment. It has only one worker, so that a later program runs on the
    same worker."""
    del surroundings  # It sets the secret.
    with running_judge(tmp_path_factory.mktemp("judge"), workers=1) as handle:
        [worker] = parts(handle, "rstar2.judge.worker.main")
        assert b"RSTAR2_CANARY_SECRET=CANARY" in Path(f"/proc/{worker}/environ").read_bytes()
        # The heaviest zygote answers when all are there: no more processes come after it.
        warm = RunRequest(code="import pandas", timeout_s=TIMEOUT_S)
        assert OverHttp(handle.url).run(warm, "warm").outcome == "ok"
        yield handle


@pytest.fixture(scope="module")
def over_http(judge: JudgeHandle) -> OverHttp:
    return OverHttp(judge.url)


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda case: case.id)
def test_a_case_comes_out_as_it_says_and_the_worker_survives_it(
    over_http: OverHttp, surroundings: Surroundings, judge: JudgeHandle, case: Case
) -> None:
    if judge.isolation == "landlock" and (why := not_in_landlock(case)):
        pytest.skip(why)
    workers = parts(judge, "rstar2.judge.worker.main")
    assert run_case(over_http, case, surroundings) == []
    assert parts(judge, "rstar2.judge.worker.main") == workers
