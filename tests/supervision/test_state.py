"""State files, and ending the processes that they name."""

from __future__ import annotations

import pwd
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import wait_until

from rstar2.errors import UserError
from rstar2.supervision.state import Handle, StateFile, end_module, runs_module, state_folder

SLEEP = "import time; time.sleep(3600)"
DEAF = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); {SLEEP}"


def test_a_state_file_is_private_and_cleared_only_by_the_one_it_names(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "serve" / "1.json", Handle, "remove it")
    assert file.read() is None
    file.write(Handle(pid=1, folder="a"))
    assert file.path.stat().st_mode & 0o777 == 0o600
    file.clear(2)
    assert file.read() == Handle(pid=1, folder="a")
    file.clear(1)
    assert file.read() is None
    file.path.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"1\.json") as error:
        file.read()
    assert error.value.hint == "remove it"


def test_a_process_that_ends_when_asked_is_ended_and_one_that_does_not_is_told(tmp_path: Path) -> None:
    (tmp_path / "one_of_two.py").write_text(SLEEP)
    (tmp_path / "deaf.py").write_text(DEAF)
    with subprocess.Popen([sys.executable, "-m", "one_of_two"], cwd=tmp_path) as process:
        wait_until(lambda: runs_module(process.pid, "one_of_two"))
        assert end_module(process.pid, "another.module", wait_s=0.0)
        assert process.poll() is None
        assert end_module(process.pid, "another.module", "one_of_two", wait_s=600.0)
    with subprocess.Popen([sys.executable, "-m", "deaf"], cwd=tmp_path, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not end_module(process.pid, "deaf", wait_s=0.0)
        process.kill()


@pytest.mark.parametrize("words", [["a.module"], ["-e", "a.module"], ["-m", "a.module.of.another"]])
def test_a_process_that_only_names_a_module_is_not_taken_for_it(words: list[str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", f"print(flush=True); {SLEEP}", *words], stdout=subprocess.PIPE
    ) as it:
        assert it.stdout is not None
        it.stdout.readline()
        assert not runs_module(it.pid, "a.module")
        it.kill()


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_such_user(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "RSTAR2_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_such_user)
    with pytest.raises(UserError, match="has no home directory") as error:
        state_folder()
    assert "HOME" in error.value.hint
    monkeypatch.setenv("RSTAR2_STATE", str(tmp_path))
    assert state_folder() == tmp_path
