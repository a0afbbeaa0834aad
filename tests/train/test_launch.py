"""A trainer that fails, hangs or loses its parent leaves a cause and no process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rstar2.errors import Failure
from rstar2.train.command import Command
from rstar2.train.launch import RAY_STARTS, cause, run_trainer


def python(code: str) -> Command:
    return Command([sys.executable, "-c", code], {})


def run(tmp_path: Path, code: str, **more: Any) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    run_trainer(python(code), tmp_path / "log", tmp_path / "metrics.jsonl", seen.append, **more)
    return seen


def alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False


def test_every_step_is_told_once_and_torn_lines_wait(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    code = (
        "import time\n"
        f"f = open({str(path)!r}, 'w', buffering=1)\n"
        'f.write(\'{"step": 1, "data": {}}\\n\'); f.write(\'{"step": 2,\'); f.flush(); time.sleep(1)\n'
        "f.write(' \"data\": {}}\\n'); f.flush()"
    )
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
    tmp_path: Path, failures: int, ends: bool
) -> None:
    starts = tmp_path / "starts"
    code = RAY_IS_SLOW.format(starts=str(starts), failures=failures)
    with contextlib.nullcontext() if ends else pytest.raises(Failure, match="timed out during startup"):
        run(tmp_path, code)
    assert starts.stat().st_size == (3 if ends else RAY_STARTS)


@pytest.mark.parametrize(
    "line",
    [
        "[rank0]: FileNotFoundError: no such file",
        "\x1b[36m(TaskRunner pid=12)\x1b[0m FileNotFoundError: no such file",
        "FileNotFoundError: no such file",
    ],
)
def test_the_cause_is_found_behind_the_prefixes_of_ray_and_torch(tmp_path: Path, line: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"Error executing job with overrides: [...]\n{line}\nsome last words\n")
    assert cause(log) == "FileNotFoundError: no such file"


def test_a_silent_trainer_is_ended(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no sign of life for 1 s"):
        run(tmp_path, "import time; time.sleep(60)", stall_s=1.0)


def test_a_trainer_dies_with_its_parent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    inner = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(120)"
    outer = (
        "from pathlib import Path\n"
        "from rstar2.train.command import Command\n"
        "from rstar2.train.launch import run_trainer\n"
        "import sys\n"
        f"run_trainer(Command([sys.executable, '-c', {inner!r}], {{}}), Path({str(tmp_path / 'log')!r}), "
        f"Path({str(tmp_path / 'm')!r}), print)"
    )
    parent = subprocess.Popen([sys.executable, "-c", outer])
    deadline = time.monotonic() + 60
    while not (pid_file.exists() and pid_file.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    child = int(pid_file.read_text())
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(10)
    while alive(child):
        assert time.monotonic() < deadline, "the trainer outlived its parent"
        time.sleep(0.05)
