"""A supervisor that hangs while it starts is noticed and ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel
from support.waiting import TIMEOUT_S

from rstar2.errors import Failure
from rstar2.serve import start as serve
from rstar2.serve.settings import SupervisorSettings
from rstar2.supervision.start import started_supervisor

STOP_S = 0.1


class Word(BaseModel):
    word: str


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose modules can be started."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_reports_come_one_by_one_until_the_supervisor_ends(modules: Path) -> None:
    (modules / "echo.py").write_text('print(input())\nprint(\'{"word": "second"}\')')
    with started_supervisor("echo", Word(word="first"), modules / "state", Word, STOP_S) as (
        process,
        reports,
    ):
        found = [reports.next(TIMEOUT_S) for _ in range(3)]
    assert found == [Word(word="first"), Word(word="second"), None]
    assert process.wait(TIMEOUT_S) == 0


def test_one_that_never_reports_is_ended(modules: Path) -> None:
    (modules / "silent.py").write_text("import time\nprint('{', end='', flush=True)\ntime.sleep(3600)")
    with (
        pytest.raises(TimeoutError),
        started_supervisor("silent", Word(word=""), modules / "state", Word, STOP_S) as (process, reports),
    ):
        reports.next(0.1)
    assert process.returncode is not None


def test_a_server_whose_supervisor_never_reports_is_a_failure_that_names_its_logs(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (modules / "silent.py").write_text("import time\ntime.sleep(3600)")
    monkeypatch.setattr(serve, "SUPERVISOR", "silent")
    about = {"model": "m", "engine": "e", "with_tools": False, "url": "http://127.0.0.1:1", "port": 1}
    settings = SupervisorSettings(**about, folder=str(modules / "state"), waves=[], ready_s=1.0)
    with pytest.raises(Failure, match=r"said nothing for 0\.1 s") as told:
        list(serve.supervised(settings, start_s=0.1))
    assert str(modules / "state" / "logs") in told.value.hint
