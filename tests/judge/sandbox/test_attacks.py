"""Hostile and honest programs have the outcome that their case expects, and the host is unchanged."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest
import sandbox_own_exhaust
import sandbox_own_honest
import sandbox_own_reach
from sandbox_own import ANY, CASES, NOT_IN_LANDLOCK, PROCESSES
from support.judge import attacks
from support.judge.attack_programs import PROGRAMS
from support.judge.attacks import Case, Surroundings, run_case
from support.judge.ordinary_user import OrdinaryUser
from support.waiting import TIMEOUT_S

from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import RunRequest, RunResult

_FILES = (sandbox_own_reach, sandbox_own_exhaust, sandbox_own_honest)
"""Importing these modules fills CASES."""
_REACHING = {
    *("secret", "write", "symlink", "descriptors", "share", "cache", "kernel memory", "network", "kernel"),
    *("spoof", "poison"),
}
"""Classes of attacks that a sandbox must prevent even if the worker is not root."""
pytestmark = pytest.mark.slow


def _with_all_zygotes(sandbox: Sandbox) -> Sandbox:
    sandbox.start_zygotes()
    # The largest zygote answers when all are there: tests that count processes must not see more appear.
    assert sandbox.run(RunRequest(code="import pandas", timeout_s=TIMEOUT_S), "first").outcome == "ok"
    while sandbox.profile_next_zygote():
        pass
    return sandbox


@pytest.fixture(scope="module", name="strict")
def complete_strict(strict: Sandbox) -> Sandbox:
    return _with_all_zygotes(strict)


@pytest.fixture(scope="module", name="landlock")
def complete_landlock(landlock: Sandbox) -> Sandbox:
    return _with_all_zygotes(landlock)


@pytest.fixture(scope="module")
def surroundings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    host = Surroundings(tmp_path_factory.mktemp("host"))
    yield host
    host.close()


def test_a_process_that_stays_behind_fails_its_case(
    surroundings: Surroundings, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[subprocess.Popen[bytes]] = []

    class Leaves(Sandbox):
        def __init__(self) -> None:
            pass

        def run(self, request: RunRequest, run_id: str) -> RunResult:
            left.append(subprocess.Popen(["sleep", "600"]))
            return RunResult(id=run_id, outcome="ok")

    monkeypatch.setattr(attacks, "_SURVIVOR_S", 0.1)
    case = Case("leaves", "", "", "", {"status_any": ["ok"], "checks": ["no_survivors"]})
    try:
        [fault] = run_case(Leaves(), case, surroundings)
        assert "no_survivors" in fault
    finally:
        for process in left:
            process.kill()
            process.wait()


@pytest.mark.parametrize("case", PROGRAMS, ids=lambda case: case.id)
def test_program_in_strict(strict: Sandbox, surroundings: Surroundings, case: Case) -> None:
    assert run_case(strict, case, surroundings) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_own_case_in_strict(strict: Sandbox, surroundings: Surroundings, case: Case) -> None:
    assert run_case(strict, case, surroundings) == []


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.id not in NOT_IN_LANDLOCK], ids=lambda case: case.id
)
def test_own_case_in_landlock(landlock: Sandbox, surroundings: Surroundings, case: Case) -> None:
    assert run_case(landlock, case, surroundings) == []


@pytest.mark.parametrize(
    ("user", "case"),
    [
        pytest.param(user, case, id=f"{user}-{case.id}")
        for user in ("strict_user", "landlock_user")
        for case in CASES
        if case.attack_class in _REACHING and not (user == "landlock_user" and case.id in NOT_IN_LANDLOCK)
    ],
)
def test_own_case_of_an_ordinary_user(
    request: pytest.FixtureRequest, surroundings: Surroundings, user: str, case: Case
) -> None:
    worker: OrdinaryUser = request.getfixturevalue(user)
    assert run_case(worker, case, surroundings) == []


@pytest.mark.parametrize(
    "case", [case for case in CASES if NOT_IN_LANDLOCK.get(case.id) == PROCESSES], ids=lambda case: case.id
)
def test_a_program_that_needs_processes_does_no_harm_in_landlock(
    landlock: Sandbox, surroundings: Surroundings, case: Case
) -> None:
    harmless = {"status_any": ANY, "stdout_lacks": ["PWNED"], "checks": case.expect["checks"]}
    assert run_case(landlock, replace(case, expect=harmless, timeout_s=1.5), surroundings) == []
