"""Tests that a trainer that fails, hangs or loses its parent leaves an error with its cause, and no process."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.process_table import running
from support.waiting import TIMEOUT_S, wait_until

from rstar2.errors import Failure, UserError
from rstar2.train import launch
from rstar2.train.command import Command
from rstar2.train.launch import RAY_STARTS, SignsOfLife, run_export, run_trainer
from rstar2.train.records.final_error import FINAL_ERROR_FILE, read_final_error
from rstar2.train.records.progress import ACTIVITY_FILE, PROGRESS_FILE, FaultWarner
from rstar2.train.trainer.saving import STOP_FILE


def python(code: str) -> Command:
    return Command([sys.executable, "-c", code], {})


def run(tmp_path: Path, code: str, hung_after_s: float = 600.0) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    signs = SignsOfLife(tmp_path / "metrics.jsonl", tmp_path, hung_after_s)
    run_trainer(python(code), tmp_path / "log", signs, lines.append, warn=pytest.fail)
    return lines


class Clock:
    """A simulated clock for the process that watches the trainer. `passes` returns the seconds between two checks."""

    def __init__(self, passes: Callable[[], float]) -> None:
        self._now = 0.0
        self._passes = passes

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        time.sleep(0.01)
        self._now += self._passes()


def test_every_step_is_told_once_and_torn_lines_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, marker, looks = tmp_path / "metrics.jsonl", tmp_path / "looked at", 0
    code = (
        "import os, time\n"
        f"f = open({str(path)!r}, 'w', buffering=1)\n"
        'f.write(\'{"step": 1, "data": {}}\\n\'); f.write(\'{"step": 2,\'); f.flush()\n'
        f"while not os.path.exists({str(marker)!r}): time.sleep(0.01)\n"
        "f.write(' \"data\": {}}\\n'); f.flush()"
    )

    def passes() -> float:
        nonlocal looks
        looks += path.exists() and path.read_text().endswith('"step": 2,')
        if looks == 2:
            marker.touch()
        return 0.0

    monkeypatch.setattr(launch, "time", Clock(passes))
    assert [line["step"] for line in run(tmp_path, code)] == [1, 2]


def test_a_failed_trainer_is_reported_with_its_cause(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="exit code 1: ValueError: the reason") as excinfo:
        run(tmp_path, "raise ValueError('the reason')")
    assert str(tmp_path / "log") in excinfo.value.hint


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
    with pytest.raises(Failure, match="RuntimeError: CUDA out of memory") as excinfo:
        run(tmp_path, code)
    assert "hardware.offload=all" in excinfo.value.hint


CHATTY = "import time\nwhile True: print('VERL is alive', flush=True); time.sleep(0.05)"


def test_a_trainer_that_only_prints_is_hung(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    progress = {"step": 12, "finished": 9312, "wanted": 16384}
    (tmp_path / PROGRESS_FILE).write_text(json.dumps(progress))
    code = f"print('ValueError: an engine is stuck', flush=True)\n{CHATTY}"
    # Python's start may take any time.
    clock = Clock(lambda: 0.25 if "VERL is alive" in (tmp_path / "log").read_text() else 0.0)
    monkeypatch.setattr(launch, "time", clock)
    with pytest.raises(
        Failure, match=r"for 2 s it gave no sign of life, such as a .* micro-batch; step 12, 9312 of 16384"
    ) as excinfo:
        run(tmp_path, code, hung_after_s=2.0)
    assert "ValueError: an engine is stuck" in excinfo.value.message
    assert "continues from the last checkpoint" in excinfo.value.hint


@pytest.mark.parametrize(
    "sign", [PROGRESS_FILE, ACTIVITY_FILE, "checkpoints/global_step_2/actor/model_world_size_8_rank_3.pt"]
)
def test_a_trainer_that_rolls_out_updates_or_saves_is_not_hung(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sign: str
) -> None:
    """The trainer works for twenty times the time limit for a hung trainer, but keeps giving signs of life."""
    monkeypatch.setattr(launch, "SAVING_POLL_S", 0.5)
    path, end_file, count = tmp_path / sign, tmp_path / "done", 0
    path.parent.mkdir(parents=True, exist_ok=True)

    def passes() -> float:
        nonlocal count
        count += 1
        path.write_text("x" * count)
        # Two writings may fall into one tick of the file system's clock.
        os.utime(path, ns=(count, count))
        if count == 30:
            end_file.touch()
        return 2.0 if count <= 30 else 0.0

    monkeypatch.setattr(launch, "time", Clock(passes))
    code = f"import os, time\nwhile not os.path.exists({str(end_file)!r}): time.sleep(0.01)"
    assert run(tmp_path, code, hung_after_s=3.0) == []
    assert count >= 30


TWO_STEPS = """
import json, pathlib, time
stage = pathlib.Path({stage!r})
def end_of_step(number):
    with (stage / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({{"step": number, "data": {{}}}}) + "\\n")
(stage / "{progress}").write_text("{{}}")
end_of_step(1)
while not (stage / "stop_after_step").exists(): time.sleep(0.01)
(stage / "saved").touch()
end_of_step(2)
"""


@pytest.mark.parametrize(
    ("number", "code", "again"),
    [
        (signal.SIGINT, 130, "Ctrl-C: training saves .*Press Ctrl-C again"),
        (signal.SIGTERM, 75, "SIGTERM: training saves .*Send another signal"),
        (signal.SIGUSR1, 75, "SIGUSR1: training saves .*Send another signal"),
    ],
)
def test_a_signal_has_the_present_step_saved_before_the_end(
    tmp_path: Path, number: signal.Signals, code: int, again: str
) -> None:
    warnings: list[str] = []
    steps: list[int] = []

    def on_step(line: dict[str, Any]) -> None:
        steps.append(line["step"])
        if line["step"] == 1:
            os.kill(os.getpid(), number)

    trainer = python(TWO_STEPS.format(stage=str(tmp_path), progress=PROGRESS_FILE))
    assert exit_code_of(lambda: run_watched(tmp_path, trainer, on_step, warnings.append)) == code
    assert steps == [1, 2]
    assert (tmp_path / "saved").exists()
    assert not (tmp_path / STOP_FILE).exists(), "the next start would stop after its first step"
    [text] = warnings
    assert re.search(again, text)
    assert "the step before took" in text


DISCARDED = """
import json, pathlib, time
stage = pathlib.Path({stage!r})
def write(**more):
    (stage / "part").write_text(json.dumps({{"step": 2, "finished": 0, "wanted": 64, **more}}))
    (stage / "part").rename(stage / "{progress}")
write()
(stage / "metrics.jsonl").write_text('{{"step": 1, "data": {{}}}}\\n')
{wait}
write(discarded=True)
{then}
"""


@pytest.mark.parametrize(
    ("wait", "then"),
    [
        ("", "time.sleep(3600)"),  # the signal comes in the pause, or just before it
        ('while not (stage / "stop_after_step").exists(): time.sleep(0.01)', "time.sleep(3600)"),
        ('while not (stage / "stop_after_step").exists(): time.sleep(0.01)', "raise SystemExit(1)"),
    ],
)
def test_a_signal_while_a_step_has_nothing_to_save_ends_at_once(tmp_path: Path, wait: str, then: str) -> None:
    warnings: list[str] = []
    code = DISCARDED.format(stage=str(tmp_path), progress=PROGRESS_FILE, wait=wait, then=then)
    by_signal = lambda line: os.kill(os.getpid(), signal.SIGUSR1)  # noqa: E731
    assert exit_code_of(lambda: run_watched(tmp_path, python(code), by_signal, warnings.append)) == 75
    assert "SIGUSR1: training ends now, because the rollouts of step 2 were discarded" in warnings[-1]
    assert "continues from the last checkpoint" in warnings[-1]


def test_ray_is_not_started_again_after_a_signal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = tmp_path / "starts"
    waits = f"import time\nwhile not (__import__('os').path.exists({str(tmp_path / STOP_FILE)!r})): time.sleep(0.01)"
    code = f"open({str(tmp_path / PROGRESS_FILE)!r}, 'w').write('{{}}')\n{waits}\n"
    code += RAY_IS_SLOW.format(starts=str(starts), failures=100)
    signalled: list[int] = []

    def passes() -> float:
        if (tmp_path / PROGRESS_FILE).exists() and not signalled:
            signalled.append(1)
            os.kill(os.getpid(), signal.SIGTERM)
        return 0.0

    monkeypatch.setattr(launch, "time", Clock(passes))
    assert exit_code_of(lambda: run_watched(tmp_path, python(code), pytest.fail, lambda text: None)) == 75
    assert starts.stat().st_size == 1


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    def on_step(line: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGUSR1)

    endless = TWO_STEPS.replace('while not (stage / "stop_after_step").exists()', "while True")
    trainer = python(endless.format(stage=str(tmp_path), progress=PROGRESS_FILE))
    started: list[int] = []

    def again(text: str) -> None:
        started.append(1)
        os.kill(os.getpid(), signal.SIGTERM)

    assert exit_code_of(lambda: run_watched(tmp_path, trainer, on_step, again)) == 75
    assert started == [1]
    assert not (tmp_path / "saved").exists()


def test_a_signal_before_the_first_step_ends_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trainer that is still loading its model has no progress to lose, and its first step may take hours."""
    loading = f"open({str(tmp_path / ACTIVITY_FILE)!r}, 'w').write('{{\"phase\": \"loading the model\"}}')"

    def passes() -> float:
        if (tmp_path / ACTIVITY_FILE).exists():
            os.kill(os.getpid(), signal.SIGUSR1)
        return 0.0

    monkeypatch.setattr(launch, "time", Clock(passes))
    trainer = python(f"import time\n{loading}\ntime.sleep(3600)")
    assert exit_code_of(lambda: run_watched(tmp_path, trainer, pytest.fail, pytest.fail)) == 75


def test_a_trainer_that_fails_after_a_signal_is_a_failure(tmp_path: Path) -> None:
    code = TWO_STEPS.replace('(stage / "saved").touch()', "raise ValueError('no room')")
    trainer = python(code.format(stage=str(tmp_path), progress=PROGRESS_FILE))

    def on_step(line: dict[str, Any]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Failure, match="ValueError: no room"):
        run_watched(tmp_path, trainer, on_step, lambda text: None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_schedulers_signal_outside_a_trainer_ends_at_once_with_the_same_code(
    number: signal.Signals,
) -> None:
    code = (
        "import time\n"
        "from rstar2.train.stopping import end_resumably\n"
        "end_resumably()\n"
        "print(flush=True)\n"
        "time.sleep(3600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as lines:
        lines.readline()
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 75


def run_watched(
    folder: Path, trainer: Command, on_step: Callable[[dict[str, Any]], None], warn: Callable[[str], None]
) -> None:
    run_trainer(trainer, folder / "log", SignsOfLife(folder / "metrics.jsonl", folder, 600.0), on_step, warn)


def exit_code_of(call: Callable[[], None]) -> int:
    """Returns the exit code with which a call ends this process."""
    try:
        call()
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        return int(str(error.code))
    return 0


def test_a_fault_of_rollouts_is_told_once_while_the_trainer_runs(tmp_path: Path) -> None:
    path, marker = tmp_path / PROGRESS_FILE, tmp_path / "told"
    warnings: list[str] = []

    def warn(text: str) -> None:
        warnings.append(text)
        marker.touch()

    # The trainer goes on only once the user has been told.
    code = (
        "import json, os, sys, time\n"
        "def say(**more):\n"
        f"    with open('{path}.part', 'w') as file: json.dump({{'step': 3, 'wanted': 64, **more}}, file)\n"
        f"    os.replace('{path}.part', {str(path)!r})\n"
        "say(finished=8, failed=1, fault='step 3: rollouts fail')\n"
        f"while not os.path.exists({str(marker)!r}): time.sleep(0.01)\n"
        "say(finished=9, failed=2, fault='step 3: rollouts fail')\n"
    )
    signs = SignsOfLife(tmp_path / "metrics.jsonl", tmp_path, 600.0, FaultWarner(path, warn).look)
    run_trainer(python(code), tmp_path / "log", signs, pytest.fail, pytest.fail)
    assert warnings == ["step 3: rollouts fail"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import time; time.sleep(3600)", "longer than hardware.export_timeout_s = 1"),
        ("raise ValueError('shards differ')", "exit code 1: ValueError: shards differ"),
    ],
)
def test_an_export_that_fails_or_hangs_is_one_message(tmp_path: Path, code: str, message: str) -> None:
    with pytest.raises(Failure, match=message) as excinfo:
        run_export(python(code), tmp_path / "log", timeout_s=1.0 if "sleep" in code else 600.0)
    assert "repeats only the export" in excinfo.value.hint


def test_a_trainer_dies_with_its_parent(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    inner = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(3600)"
    outer = (
        "from pathlib import Path\n"
        "from rstar2.train.command import Command\n"
        "from rstar2.train.launch import SignsOfLife, run_trainer\n"
        "import sys\n"
        f"run_trainer(Command([sys.executable, '-c', {inner!r}], {{}}), Path({str(tmp_path / 'log')!r}), "
        f"SignsOfLife(Path({str(tmp_path / 'm')!r}), Path({str(tmp_path)!r}), 600.0), print, print)"
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
    """By itself, the trainer would continue for hours with failing rollouts, or end with a different error."""
    signs = SignsOfLife(tmp_path / "metrics.jsonl", tmp_path, 1e6)
    code = LEAVES_AN_ERROR.format(folder=str(tmp_path)) + then
    with pytest.raises(UserError, match="the judge at http://judge refused the token") as excinfo:
        run_trainer(python(code), tmp_path / "log", signs, print, print)
    assert excinfo.value.hint.startswith("Give it.\n")
    assert "continues from the last checkpoint" in excinfo.value.hint


def test_a_final_error_that_is_torn_is_none(tmp_path: Path) -> None:
    path = tmp_path / FINAL_ERROR_FILE
    assert read_final_error(path) is None
    path.write_text('{"message": "x"')
    assert read_final_error(path) is None
