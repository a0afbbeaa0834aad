"""Each run has one secret for the grader. All processes of the run have it, also after a resumption, and a model's
programs cannot read it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import rstar2
from support.waiting import TIMEOUT_S

from rstar2.errors import UserError
from rstar2.eval.grader import GraderPool
from rstar2.eval.grader.values.secret import VARIABLE
from rstar2.eval.harnesses.environment import isolated
from rstar2.judge.client import SyncJudgeClient
from rstar2.judge.schema import RunRequest
from rstar2.judge.service.start import running_judge
from rstar2.processes import start_bound
from rstar2.runs import GRADER_SECRET, SECRET_FILE, open_run
from rstar2.train.command import secrets_file, stage_command, worker_environment
from rstar2.train.recipe_files import stage_recipe

CHILD = f"import os; print(os.environ[{GRADER_SECRET!r}])"


@pytest.fixture(autouse=True)
def no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Removes a secret that an earlier test may have left in the environment."""
    monkeypatch.delenv(GRADER_SECRET, raising=False)


def secret_of(run: Path) -> str:
    return (run / SECRET_FILE).read_text().strip()


def test_a_resumed_run_has_the_same_secret_and_another_run_another_one(tmp_path: Path) -> None:
    seen = []
    for name in ("one", "one", "two"):
        with open_run(tmp_path / name, "eval", {}):
            seen.append(os.environ[GRADER_SECRET])
        assert GRADER_SECRET not in os.environ
        assert secret_of(tmp_path / name) == seen[-1]
    assert seen[0] == seen[1] != seen[2]
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in seen)


def test_a_run_keeps_the_secret_with_which_gold_answers_were_graded_before_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GRADER_SECRET, "ab" * 32)
    with open_run(tmp_path / "one", "eval", {}):
        pass
    assert secret_of(tmp_path / "one") == "ab" * 32
    monkeypatch.setenv(GRADER_SECRET, "cd" * 32)
    with open_run(tmp_path / "one", "eval", {}):
        assert os.environ[GRADER_SECRET] == "ab" * 32
    assert os.environ[GRADER_SECRET] == "cd" * 32


def test_only_the_owner_can_read_it_and_it_is_in_no_other_file_of_the_run(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "eval", {"model": "m"}) as run:
        run.status("running", phase="stage1")
        assert (run.path / SECRET_FILE).stat().st_mode & 0o777 == 0o600
    secret = secret_of(tmp_path / "run")
    files = [file for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert [file.name for file in files if secret in file.read_text()] == [SECRET_FILE]
    assert len(files) > 2


@pytest.mark.parametrize("damaged", ["", "not hexadecimal", "ab", "\u00e4" * 32])
def test_a_damaged_secret_is_told_with_what_to_do(tmp_path: Path, damaged: str) -> None:
    with open_run(tmp_path / "run", "eval", {}):
        pass
    (tmp_path / "run" / SECRET_FILE).write_text(damaged, encoding="utf-8")
    with pytest.raises(UserError, match="grader_secret") as refused, open_run(tmp_path / "run", "eval", {}):
        pass
    assert "remove it" in refused.value.hint
    assert GRADER_SECRET not in os.environ


def test_a_variable_that_is_no_secret_is_refused_and_stored_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(GRADER_SECRET, "guess me")
    with pytest.raises(UserError, match=GRADER_SECRET), open_run(tmp_path / "run", "eval", {}):
        pass
    with pytest.raises(UserError, match=GRADER_SECRET):
        GraderPool()
    assert not (tmp_path / "run" / SECRET_FILE).exists()
    (tmp_path / "rows.jsonl").write_text('{"gold": "n-k", "pred": "n-k+1"}\n')
    ran = rstar2("grade", tmp_path / "rows.jsonl")
    assert (ran.code, ran.stdout) == (2, "")
    assert GRADER_SECRET in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_graders_of_a_program_without_a_run_have_one_secret() -> None:
    with GraderPool(workers=2) as pool:
        pairs = [("\\sqrt{8}", "2\\sqrt{2}")] * 8
        assert all(verdict.correct for verdict in pool.grade_many(pairs)), "both have begun"
        environments = [Path(f"/proc/{worker.pid}/environ").read_bytes() for worker in pool._all]
    assert all(
        f"{GRADER_SECRET}={os.environ[GRADER_SECRET]}".encode() in each.split(b"\0") for each in environments
    )


def test_graders_and_trainers_that_a_run_starts_have_its_secret(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "train", {}) as run, GraderPool() as pool:
        (worker,) = pool._all
        assert pool.grade("\\sqrt{8}", "2\\sqrt{2}").correct, "it has begun"
        environment = Path(f"/proc/{worker.pid}/environ").read_bytes()
        # As the launcher starts a trainer.
        child = start_bound([sys.executable, "-c", CHILD], run.logs / "child.log")
        assert child.wait(TIMEOUT_S) == 0
        said = (run.logs / "child.log").read_text().strip()
    assert f"{GRADER_SECRET}={secret_of(tmp_path / 'run')}".encode() in environment.split(b"\0")
    assert said == secret_of(tmp_path / "run")


POINTS = """
from rstar2.eval.grader import grade
from rstar2.eval.grader.values.secret import keyed_number
print(grade("n-k+1", "\\\\boxed{6}").verdict, grade("n-k+1", "1+n-k").verdict, keyed_number("n-k+1", "6"))
"""


def test_two_processes_of_a_run_and_a_resumed_run_grade_at_equal_points(tmp_path: Path) -> None:
    assert GRADER_SECRET == VARIABLE, "the run sets what the grader reads"
    said = []
    for name in ("one", "one", "two"):
        with open_run(tmp_path / name, "eval", {}):
            for _ in range(2):
                ran = subprocess.run(
                    [sys.executable, "-c", POINTS],
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT_S,
                    check=True,
                )
                said.append(ran.stdout)
    assert len(set(said[:4])) == 1
    assert len(set(said[4:])) == 1
    assert said[0] != said[4]
    assert all(each.startswith("wrong correct ") for each in said)


def test_trainers_on_other_nodes_get_it_by_the_file_that_only_the_user_can_read(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "train", {}) as run:
        stage = run.path / "stage1"
        command = stage_command(stage_recipe(1, "64xh100", []), stage, tmp_path / "m")
        plain, _ = worker_environment(os.environ)
        with secrets_file(command, os.environ):
            file = Path(command.env["RSTAR2_SECRETS_FILE"])
            handed_on = json.loads(file.read_text())
            mode = file.stat().st_mode & 0o777
    secret = secret_of(tmp_path / "run")
    assert (handed_on[GRADER_SECRET], mode) == (secret, 0o600)
    assert GRADER_SECRET not in plain
    assert secret not in json.dumps([command.argv, command.env])


_SEARCH = """
import os, pathlib
found = dict(os.environ)
for process in pathlib.Path("/proc").glob("[0-9]*"):
    try:
        found[process.name] = (process / "environ").read_bytes()
    except OSError:
        pass
try:
    found["file"] = open(FILE).read()
except OSError:
    pass
print(SECRET_NAME in str(found), SECRET_PART in str(found))
"""


def test_a_program_of_the_model_finds_it_neither_in_an_environment_nor_in_the_runs_folder(
    tmp_path: Path,
) -> None:
    with open_run(tmp_path / "run", "train", {}) as run:
        file = run.path / SECRET_FILE
        # Only half of the secret is in the program, so that it cannot find itself.
        half = secret_of(run.path)[:32]
        code = f"FILE, SECRET_NAME = {str(file)!r}, {GRADER_SECRET!r}\nSECRET_PART = {half[:16]!r} + {half[16:]!r}\n"
        with (
            running_judge(run.path / "judge", workers=1, preload=False) as judge,
            SyncJudgeClient(judge.url) as client,
        ):
            result = client.run(RunRequest(code=code + _SEARCH))
            supervisors = [
                environ
                for process in Path("/proc").glob("[0-9]*")
                if b"rstar2.judge" in _read(process / "cmdline") and (environ := _read(process / "environ"))
            ]
    assert judge.isolation != "none", "without isolation a program can read what the user can"
    assert (result.outcome, result.stdout.split()) == ("ok", ["False", "False"])
    assert supervisors
    assert not any(half.encode() in environ for environ in supervisors)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_harness_that_may_run_what_a_model_wrote_does_not_get_it(tmp_path: Path) -> None:
    with open_run(tmp_path / "run", "eval", {}):
        ran = subprocess.run(
            [sys.executable, "-c", CHILD], env=isolated({}), capture_output=True, text=True, check=False
        )
    assert (ran.returncode, GRADER_SECRET in ran.stderr) == (1, True)
