"""The state file of the running judge, also if another version of rstar2 started that judge."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import wait_until

from rstar2.errors import UserError
from rstar2.judge.service.settings import JudgeHandle
from rstar2.judge.service.state import SUPERVISORS, current_judge, end_judge, read_state, state_file


@pytest.mark.parametrize(
    ("module", "added"),
    [
        ("rstar2.judge.service.supervisor", ""),
        ("rstar2.judge.supervisor", ""),
        ("rstar2.judge.service.supervisor", '"added_later": "next", '),
    ],
    ids=["this version", "the one before", "the next one"],
)
def test_a_judge_of_another_version_is_found_and_ended(
    module: str, added: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSTAR2_STATE", str(tmp_path))
    assert module in SUPERVISORS
    assert read_state() is None
    # The arguments after the program make the command line look like `python -m MODULE`.
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(3600)", "-m", module]) as process:
        # The file as version 0.1.0 wrote it, or with a field that this version does not know.
        (tmp_path / "judge.json").write_text(
            f'{{{added}"url": "http://127.0.0.1:8088", "token": null, "redis_url": "redis://", "isolation": "strict",'
            f' "pid": {process.pid}, "folder": "{tmp_path}"}}'
        )
        wait_until(read_state)
        assert state_file().read() == current_judge()
        assert isinstance(current_judge(), JudgeHandle)
        end_judge(current_judge())
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UserError, match="no judge is running"):
        current_judge()
