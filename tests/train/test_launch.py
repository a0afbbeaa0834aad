"""A trainer that fails, hangs or loses its parent leaves a cause and no process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.process_table import running
from support.waiting import wait_until

from rstar2.errors import Failure, UserError
from rstar2.train import launch
from rstar2.train.command import Command
from rstar2.train.launch import RAY_STARTS, SignsOfLife, run_export, run_trainer
from rstar2.train.records.final_error import FINAL_ERROR_FILE, read_final_error
from rstar2.train.records.progress import PROGRESS_FILE


def python(code: str) -> Command:
    return Command([sys.executable, "-c", code], {})


def run(tmp_path: Path, code: str, hung_after_s: float = 600.0) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    signs = SignsOfLife(tmp_path / "metrics.jsonl", tmp_path / PROGRESS_FILE, hung_after_s)
    run_trainer(python(code), tmp_path / "log", signs, seen.append)
    return seen


class Clock:
    """The time of whoever watches the trainer: it passes only between two looks, as a test says."""

    def __init__(self, passes: Callable[[], float]) -> None:
        self._now = 0.0
        self._passes = passes

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        time.sleep(0.01)
        self._now += self._passes()


def test_every_step_is_told_once_and_torn_lines_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, looked_at, looks = tmp_path / "metrics.jsonl", tmp_path / "looked at", 0
    code = (
        "import os, time\n"
        f"f = open({str(path)!r}, 'w', buffering=1)\n"
        'f.write(\'{"step": 1, "data": {}}\\n\'); f.write(\'{"step": 2,\'); f.flush()\n'
        f"while not os.path.exists({str(looked_at)!r}): time.sleep(0.01)\n"
        "f.write(' \"data\": {}}\\n'); f.flush()"
    )

    def passes() -> float:
        nonlocal looks
        looks += path.exists() and path.read_text().endswith('"step": 2,')
        if looks == 2:
            looked_at.touch()
        return 0.0

    monkeypatch.setattr(launch, "time", Clock(passes))
    assert [line["step"] for line in run(tmp_path, code)] == [1, 2]


def test_a_failed_trainer_is_reported_with_its_cause(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="exit code 1: ValueError: the reason") as caught:
        run(tmp_path, "raise ValueError('the reason')")
    assert str(tmp_path / "log") in caught.value.hint


RAY_IS_SLOW = """
with open({starts!r}, "a+b") as starts:
    starts.write(b".")
    number = starts.tell()
if number <= {failures}:
    raise Exception("The current node timed out during startup. This could happen because")
"""


@pytest.mark.parametrize(("failures", "ends"), [(2, True), (100, False)])
def test_where_ray_does_not_start_in_time_it_is_started_again_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, ends: bool
) -> None:
    monkeypatch.setattr(launch, "time", Clock(lambda: 0.0))
    starts = tmp_path / "starts"
    code = RAY_IS_SLOW.format(starts=str(starts), failures=failures)
    with contextlib.nullcontext() if ends else pytest.raises(Failure, match="timed out during startup"):
        run(tmp_path, code)
    assert starts.stat().st_size == (3 if ends else RAY_STARTS)


def test_a_failed_trainer_is_told_with_what_helps_and_without_what_an_earlier_start_said(
    tmp_path: Path,
) -> None:
    (tmp_path / "log").write_text("OSError: [Errno 28] No space left on device\n")
    code = "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB')"
    with pytest.raises(Failure, match="RuntimeError: CUDA out of memory") as caught:
        run(tmp_path, code)
    assert "hardware.offload=all" in caught.value.hint


CHATTY = "import time\nwhile True: print('VERL is alive', flush=True); time.sleep(0.05)"


def test_a_trainer_that_only_prints_is_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = {"step": 12, "finished": 9312, "wanted": 16384}
    (tmp_path / PROGRESS_FILE).write_text(json.dumps(progress))
    code = f"print('ValueError: an engine is stuck', flush=True)\n{CHATTY}"
    # However long Python takes to start.
    clock = Clock(lambda: 0.25 if "VERL is alive" in (tmp_path / "log").read_text() else 0.0)
    monkeypatch.setattr(launch, "time", clock)
    with pytest.raises(
        Failure, match=r"no step and no rollout finished for 2 s; step 12, 9312 of 16384"
    ) as caught:
        run(tmp_path, code, hung_after_s=2.0)
    assert "ValueError: an engine is stuck" in caught.value.message
    assert "continues from the last checkpoint" in caught.value.hint


def test_a_trainer_whose_rollouts_finish_is_not_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works for twenty times as long as is allowed without a sign."""
    progress, done, written = tmp_path / PROGRESS_FILE, tmp_path / "done", 0

    def passes() -> float:
        nonlocal written
        written += 1
        progress.write_text(str(written))
        # Two writings may fall into one tick of the file system's clock.
        os.utime(progress, ns=(written, written))
        if written == 30:
            done.touch()
        return 2.0 if written <= 30 else 0.0

    monkeypatch.setattr(launch, "time", Clock(passes))
    code = f"import os, time\nwhile not os.path.exists({str(done)!r}): time.sleep(0.01)"
    assert run(tmp_path, code, hung_after_s=3.0) == []
    assert written >= 30


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import time; time.sleep(3600)", "longer than hardware.export_timeout_s = 1"),
        ("raise ValueError('shards differ')", "exit code 1: ValueError: shards differ"),
    ],
)
def test_an_export_that_fails_or_hangs_is_one_message(tmp_path: Path, code: str, said: str) -> None:
    with pytest.raises(Failure, match=said) as caught:
        run_export(python(code), tmp_path / "log", timeout_s=1.0 if "sleep" in code else 600.0)
    assert "repeats only the export" in caught.value.hint


def test_a_trainer_dies_with_its_parent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    inner = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    outer = (
        "from pathlib import Path\n"
        "from rstar2.train.command import Command\n"
        "from rstar2.train.launch import SignsOfLife, run_trainer\n"
        "import sys\n"
        f"run_trainer(Command([sys.executable, '-c', {inner!r}], {{}}), Path({str(tmp_path / 'log')!r}), "
        f"SignsOfLife(Path({str(tmp_path / 'm')!r}), None, 600.0), print)"
    )
    parent = subprocess.Popen([sys.executable, "-c", outer])
    wait_until(lambda: pid_file.exists() and pid_file.read_text())
    child = int(pid_file.read_text())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(300)
    wait_until(lambda: not running([child]))


LEAVES_AN_ERROR = (
    "from pathlib import Path\n"
    "from rstar2.judge.client.http import WrongToken\n"
    "from rstar2.train.records.final_error import write_final_error\n"
    "write_final_error(Path({folder!r}), WrongToken('the judge at http://judge refused the token', 'Give it.'))\n"
)


@pytest.mark.parametrize("then", ["import time; time.sleep(3600)", "raise RuntimeError('no rollouts')"])
def test_an_error_that_a_process_of_the_trainer_leaves_ends_it_at_once(tmp_path: Path, then: str) -> None:
    """Whether the trainer would go on with failing rollouts for hours, or ends because of them."""
    path = tmp_path / FINAL_ERROR_FILE
    signs = SignsOfLife(tmp_path / "metrics.jsonl", tmp_path / PROGRESS_FILE, 1e6, path)
    code = LEAVES_AN_ERROR.format(folder=str(tmp_path)) + then
    with pytest.raises(UserError, match="the judge at http://judge refused the token") as caught:
        run_trainer(python(code), tmp_path / "log", signs, print)
    assert caught.value.hint.startswith("Give it.\n")
    assert "continues from the last checkpoint" in caught.value.hint


def test_a_final_error_that_is_torn_is_none(tmp_path: Path) -> None:
    path = tmp_path / FINAL_ERROR_FILE
    assert read_final_error(path) is None
    path.write_text('{"message": "x"')
    assert read_final_error(path) is None
