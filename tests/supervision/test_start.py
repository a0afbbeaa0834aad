"""A supervisor that hangs while it starts is noticed and ended."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.waiting import TIMEOUT_S

from rstar2.errors import Failure, RStarError, UserError
from rstar2.serve import start as serve
from rstar2.serve.settings import SupervisorSettings
from rstar2.supervision.settings import Event, SupervisionSettings
from rstar2.supervision.start import started_supervisor

STOP_S = 0.1


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose Python modules can be started as supervisors."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _settings(folder: Path) -> SupervisionSettings:
    return SupervisionSettings(folder=str(folder), max_log_bytes=1 << 20)


def _module(folder: Path, name: str, *lines: str) -> str:
    (folder / f"{name}.py").write_text("\n".join(lines))
    return name


def test_events_come_one_by_one_until_the_supervisor_ends(modules: Path) -> None:
    echo = _module(
        modules,
        "echo",
        "import json",
        "folder = json.loads(input())['folder']",
        "print(json.dumps({'kind': 'progress', 'text': folder}))",
        "print(json.dumps({'kind': 'ready', 'handle': {'pid': 7}}))",
    )
    settings = _settings(modules / "state")
    with started_supervisor(echo, settings, "the echo", STOP_S) as (process, events):
        first, second, third = (events.next(TIMEOUT_S) for _ in range(3))
    assert first == Event(kind="progress", text=settings.folder)
    assert second is not None
    assert (second.kind, second.handle, third) == ("ready", {"pid": 7}, None)
    assert process.wait(TIMEOUT_S) == 0


@pytest.mark.parametrize(("user_error", "kind"), [("true", UserError), ("false", Failure)])
def test_a_service_that_failed_raises_what_its_supervisor_says(
    user_error: str, kind: type[RStarError], modules: Path
) -> None:
    event = f'{{"kind": "failed", "text": "no port", "hint": "take another", "user_error": {user_error}}}'
    failing = _module(modules, "failing", "import time", f"print({event!r}, flush=True)", "time.sleep(3600)")
    with (
        pytest.raises(kind, match="no port") as error,
        started_supervisor(failing, _settings(modules / "state"), "it", STOP_S) as (process, events),
    ):
        events.next(TIMEOUT_S)
    assert error.value.hint == "take another"
    assert process.returncode is not None


def test_a_supervisor_that_says_nothing_is_ended(modules: Path) -> None:
    silent = _module(modules, "silent", "import time", "print('{', end='', flush=True)", "time.sleep(3600)")
    with (
        pytest.raises(Failure, match=r"the sleeper reported nothing for 0\.1 s") as error,
        started_supervisor(silent, _settings(modules / "state"), "the sleeper", STOP_S) as (process, events),
    ):
        events.next(0.1)
    assert str(modules / "state" / "logs") in error.value.hint
    assert process.returncode is not None


def test_a_server_whose_supervisor_never_reports_is_a_failure_that_names_its_logs(
    modules: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (modules / "silent.py").write_text("import time\ntime.sleep(3600)")
    monkeypatch.setattr(serve, "SUPERVISOR", "silent")
    about = {
        "model": "m",
        "name": "m",
        "engine": "e",
        "with_tools": False,
        "url": "http://127.0.0.1:1",
        "port": 1,
    }
    settings = SupervisorSettings(**about, folder=str(modules / "state"), waves=[], ready_s=1.0)
    with pytest.raises(Failure, match=r"reported nothing for 0\.1 s") as error:
        list(serve.supervised(settings, start_s=0.1))
    assert str(modules / "state" / "logs") in error.value.hint


def test_a_folder_that_cannot_be_written_to_is_the_callers_mistake(modules: Path) -> None:
    (modules / "file").touch()
    settings = _settings(modules / "file" / "state")
    supervisor = started_supervisor("absent", settings, "the service", STOP_S)
    with pytest.raises(UserError, match=r"cannot write to .*/file/state") as error, supervisor:
        pass
    assert "RSTAR2_STATE" in error.value.hint
