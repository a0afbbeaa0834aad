"""`rstar2 serve` supervises a server process: here a stand-in executable installed the way vLLM would be.

vLLM itself cannot run in this test environment; the stand-in takes vLLM's arguments and answers on its port.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from rstar2.cli import app
from rstar2.errors import Failure, UserError
from rstar2.processes import stop_group
from rstar2.serve import VLLM, ServeSettings, running_server, vllm_command

SERVER = """
import argparse, http.server, os, pathlib, signal, sys, time
parser = argparse.ArgumentParser()
for name in ("host port model tensor-parallel-size max-model-len tool-call-parser logprobs-mode").split():
    parser.add_argument("--" + name)
parser.add_argument("--enable-auto-tool-choice", action="store_true")
parser.add_argument("--die", action="store_true")
parser.add_argument("words", nargs="*")
options = parser.parse_args()
print("loading", os.getpid(), os.environ.get("VLLM_CPU_KVCACHE_SPACE"), flush=True)
if options.die:
    sys.exit("CUDA out of memory, says the stand-in")

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *words):
        pass

def end(*_):
    print("ended cleanly", flush=True)
    os._exit(0)

signal.signal(signal.SIGTERM, end)
time.sleep(0.3)
http.server.HTTPServer((options.host, int(options.port)), Handler).serve_forever()
"""


def _environment(root: Path, distribution: str) -> Path:
    """An environment that holds the stand-in under vLLM's name. Gives its interpreter."""
    site = root / "site"
    (site / f"{distribution.replace('-', '_')}-0.99.0.dist-info").mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 0.99.0\n"
    (site / f"{distribution.replace('-', '_')}-0.99.0.dist-info" / "METADATA").write_text(metadata)
    module = site / "vllm" / "entrypoints" / "openai"
    module.mkdir(parents=True)
    (module / "api_server.py").write_text(SERVER)
    bin_ = root / "bin"
    bin_.mkdir()
    _script(bin_ / "python", f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" "$@"\n')
    _script(bin_ / "vllm", f"#!{sys.executable}\n{SERVER}")
    return bin_ / "python"


def _script(path: Path, text: str) -> None:
    path.write_text(text)
    path.chmod(0o755)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    return _environment(tmp_path, "vllm")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


@contextmanager
def _started(model: Path, python: Path, log: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The verb in a process of its own, once it says that the server answers."""
    port = _free_port()
    words = ["serve", str(model), "--python", str(python), "--port", str(port), "--log", str(log)]
    process = subprocess.Popen(
        [sys.executable, "-m", "rstar2", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{port} answers" in process.stdout.readline()
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.communicate(timeout=10)


def _server_pid(log: Path) -> int:
    return int(log.read_text().split()[1])


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_server_runs_until_it_is_asked_to_end_and_ends_cleanly(
    tmp_path: Path, model: Path, vllm: Path, number: signal.Signals, code: int
) -> None:
    log = tmp_path / "serve.log"
    with _started(model, vllm, log) as (process, url):
        assert httpx.get(f"{url}/health", trust_env=False).status_code == 200
        process.send_signal(number)
        assert process.wait(timeout=20) == code
    assert _gone(_server_pid(log))
    assert log.read_text().endswith("ended cleanly\n")


@pytest.mark.slow
def test_the_server_ends_cleanly_when_the_verb_is_killed(tmp_path: Path, model: Path, vllm: Path) -> None:
    log = tmp_path / "serve.log"
    with _started(model, vllm, log) as (process, _):
        process.kill()
        deadline = time.monotonic() + 20
        while "ended cleanly" not in log.read_text():
            assert time.monotonic() < deadline, "the server outlived the verb"
            time.sleep(0.05)


def test_a_server_that_dies_later_is_a_failure_with_its_log(tmp_path: Path, model: Path, vllm: Path) -> None:
    log = tmp_path / "serve.log"
    with _started(model, vllm, log) as (process, _):
        os.kill(_server_pid(log), signal.SIGKILL)
        assert process.wait(timeout=20) == 1
        assert process.stderr is not None
        told = process.stderr.read()
    assert "vLLM ended with exit code -9" in told
    assert str(log) in told


def test_a_server_that_dies_while_loading_says_why(tmp_path: Path, model: Path, vllm: Path) -> None:
    log = tmp_path / "serve.log"
    words = [
        "serve",
        str(model),
        "--python",
        str(vllm),
        "--port",
        str(_free_port()),
        "--log",
        str(log),
        "--",
        "--die",
    ]
    ran = subprocess.run(
        [sys.executable, "-m", "rstar2", *words], capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 1
    assert "CUDA out of memory, says the stand-in" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_a_server_that_never_answers_is_given_up_and_ended(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    command = ["sh", "-c", "echo loading $$; exec sleep 600"]
    with (
        pytest.raises(Failure, match=r"did not answer at .* within 1 seconds"),
        running_server(command, {}, f"http://127.0.0.1:{_free_port()}", log, ready_s=1.0),
    ):
        pass
    assert _gone(_server_pid(log))


@pytest.mark.slow
def test_a_server_that_will_not_end_is_killed_with_all_it_started(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 300 & echo $!; wait; sleep 300"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    stop_group(process, wait_s=0.5)
    assert process.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 10
    while not _gone(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.stdout.close()
    assert _gone(child)


def _invoke(*words: str) -> tuple[int, str, Exception | None]:
    ran = CliRunner().invoke(app, ["serve", *words])
    return ran.exit_code, ran.output, ran.exception if isinstance(ran.exception, Exception) else None


def test_a_port_in_use_is_one_message_and_nothing_starts(tmp_path: Path, model: Path, vllm: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        log = tmp_path / "serve.log"
        _, _, error = _invoke(str(model), "--python", str(vllm), "--port", port, "--log", str(log))
    assert isinstance(error, UserError)
    assert error.message == f"cannot listen on 127.0.0.1:{port}: Address already in use"
    assert not log.exists()


def test_without_vllm_the_command_that_installs_it_is_told(model: Path) -> None:
    _, _, error = _invoke(str(model), "--port", str(_free_port()))
    assert isinstance(error, UserError)
    assert "vLLM is not installed" in error.message
    assert "pip install" in error.hint


def test_a_path_that_is_no_interpreter_is_one_message(model: Path, tmp_path: Path) -> None:
    _, _, error = _invoke(str(model), "--python", str(tmp_path / "absent"))
    assert isinstance(error, UserError)
    assert "absent" in error.message


def test_a_dry_run_needs_no_vllm_and_a_relative_path_becomes_absolute(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    ran = CliRunner().invoke(app, ["serve", model.name, "--dry-run"])
    assert ran.exit_code == 0, ran.output
    assert str(model) in ran.stdout.split()
    assert "vLLM is not installed" in ran.stderr


@pytest.mark.parametrize("name", ["empty", "absent", "./absent", "a/b/c"])
def test_what_cannot_be_a_model_is_refused_before_anything_starts(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    model = str(tmp_path / name) if name in ("empty", "absent") else name
    _, _, error = _invoke(model, "--dry-run")
    assert isinstance(error, UserError)
    assert model in error.message


def test_the_dry_run_prints_the_command_and_starts_nothing(vllm: Path, model: Path) -> None:
    code, shown, _ = _invoke(
        str(model), "--python", str(vllm), "--tp", "4", "--max-model-len", "32768", "--dry-run", "--", "--x"
    )
    assert code == 0
    assert shown.split() == [
        str(vllm.with_name("vllm")),
        *("serve", str(model), "--host", "127.0.0.1", "--port", "8000"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--logprobs-mode", "processed_logprobs"),
        *("--tensor-parallel-size", "4", "--max-model-len", "32768", "--x"),
    ]


def test_the_cpu_build_is_started_by_its_module_with_room_for_the_cache(tmp_path: Path, model: Path) -> None:
    python = _environment(tmp_path / "cpu", "vllm-cpu")
    code, shown, _ = _invoke(str(model), "--python", str(python), "--kv-gib", "2", "--dry-run")
    assert code == 0
    assert shown.startswith(
        f"VLLM_CPU_KVCACHE_SPACE=2 {python} -m vllm.entrypoints.openai.api_server --model"
    )
    log = tmp_path / "serve.log"
    settings = ServeSettings(str(model), port=_free_port(), kv_gib=2)
    command, environment = vllm_command(VLLM(str(python), "vllm-cpu", "0"), settings)
    with running_server(command, environment, settings.url, log, ready_s=20):
        assert httpx.get(f"{settings.url}/health", trust_env=False).status_code == 200
    assert log.read_text().split()[2] == "2"


@pytest.mark.parametrize("words", [["--port", "0"], ["--tp", "-1"], ["--max-model-len", "0"]])
def test_counts_that_make_no_sense_are_refused(model: Path, words: list[str]) -> None:
    code, shown, _ = _invoke(str(model), *words)
    assert code == 2
    assert "Usage" in shown
