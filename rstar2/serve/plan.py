"""Makes the list of processes of one `rstar2 serve`.

The processes are the engines, a router if there are several engines, and the agent's endpoint if the agent is served.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel

from rstar2.errors import UserError
from rstar2.install import pip_command
from rstar2.processes import free_port
from rstar2.serve.vllm import VLLM, ServeSettings, url_of, vllm_command


class Process(BaseModel, extra="forbid"):
    """One server process."""

    name: str
    """The name of the process and of its log: `engine`, `engine-1`, `router` or `agent`."""
    command: list[str]
    environment: dict[str, str] = {}
    """Environment variables that the process gets in addition to the variables of the process that starts it."""
    settings: str = ""
    """The text that the process reads from its standard input."""
    url: str
    """The URL at which the process answers, without a slash at the end."""


class AgentServerSettings(BaseModel, extra="forbid"):
    """The settings of the agent's endpoint (`rstar2.serve.openai.agent_server`)."""

    engine_url: str | None
    """URL of the engine's server. If `engine_url` is None, the model runs in the endpoint's own process, with
    transformers."""
    model: str
    """The folder or hub id with the tokenizer and the format. If `engine_url` is None, `model` is the model's
    folder.
    """
    name: str | None = None
    """The model's name for clients, if the model runs in the endpoint's process. If `name` is None, the name is the
    model's folder. If `engine_url` is given, the engine's server decides the name.
    """
    origins: list[str] = []
    """Web pages of these origins may send requests. The origin `*` stands for every page."""
    max_model_len: int | None = None
    """The context, in tokens, of a model that runs in the endpoint's process. If the value is None, the model's own
    context is used.
    """
    host: str
    port: int
    format: str | None = None
    force_format: bool = False
    judge_url: str | None = None
    """URL of a judge. If `judge_url` is None, the endpoint starts a judge."""
    judge_token: str | None = None
    judge_workers: int = 2
    max_turns: int = 10
    max_tokens: int = 8192
    """Maximum number of tokens in an answer, tool output included."""
    api_key: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """The address of a server, and the clients that may use it."""

    host: str
    port: int
    api_key: str | None = None
    origins: tuple[str, ...] = ()
    """Web pages of these origins, such as `http://localhost:3000`, may send requests. The origin `*` stands for every
    page."""

    @property
    def url(self) -> str:
        return url_of(self.host, self.port)


def inner() -> Endpoint:
    """Returns an endpoint on a free loopback port, for a process that only other server processes use."""
    return Endpoint("127.0.0.1", free_port())


def agent_process(settings: AgentServerSettings) -> Process:
    """Returns the process of the agent's endpoint, see `rstar2.serve.openai.agent_server`."""
    command = [sys.executable, "-m", "rstar2.serve.openai.agent_server"]
    # The settings go to standard input (see `begin_module`), because other users can read a command line.
    text = settings.model_dump_json() + "\n"
    return Process(name="agent", command=command, settings=text, url=url_of(settings.host, settings.port))


def vllm_processes(
    vllm: VLLM, settings: ServeSettings, replicas: int, api_key: str | None
) -> list[list[Process]]:
    """Returns the vLLM processes in waves. The processes of a wave are started together, after the previous wave
    answers.

    A single copy answers at the address of `settings`. Several copies get free ports, and a router answers at the
    address of `settings`. Raises UserError if a router is needed and not installed.
    """
    key = {} if api_key is None else {"VLLM_API_KEY": api_key}
    if replicas == 1:
        return [[_engine("engine", vllm, settings, key)]]
    router = find_router(vllm)
    if router is None:
        raise UserError(
            f"{replicas} copies need a router, but vllm-router is not installed",
            f"{pip_command('vllm-router')}\nOr give --replicas 1.",
        )
    engines = []
    for number in range(replicas):
        copy_settings = replace(settings, host="127.0.0.1", port=free_port(), origins=())
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = visible.split(",") if visible else [str(i) for i in range(replicas * settings.tp)]
        copy_gpus = ",".join(gpus[number * settings.tp : (number + 1) * settings.tp])
        environment = {**key, "CUDA_VISIBLE_DEVICES": copy_gpus}
        engines.append(_engine(f"engine-{number}", vllm, copy_settings, environment))
    return [engines, [_router(router, settings, [engine.url for engine in engines])]]


def find_router(vllm: VLLM) -> str | None:
    """Returns the path of `vllm-router`, or None if `vllm-router` is not installed.

    The program is looked for in vLLM's environment, then in this environment, then on the PATH.
    """
    beside = [Path(python).with_name("vllm-router") for python in (vllm.python, sys.executable)]
    return next((str(path) for path in beside if path.exists()), shutil.which("vllm-router"))


def _engine(name: str, vllm: VLLM, settings: ServeSettings, more: dict[str, str]) -> Process:
    command, environment = vllm_command(vllm, settings)
    return Process(name=name, command=command, environment=environment | more, url=settings.url)


def _router(router: str, settings: ServeSettings, engines: list[str]) -> Process:
    # power_of_two draws two engines at random and takes the one with fewer requests. Other policies need a session id
    # or the prompt's text, but our requests have no session id, and their prompts are token ids.
    command = [router, "--host", settings.host, "--port", str(settings.port), "--policy", "power_of_two"]
    command += ["--prometheus-port", str(free_port()), "--log-level", "warning"]
    if settings.origins:
        command += ["--cors-allowed-origins", *settings.origins]
    command += ["--worker-urls", *engines]
    return Process(name="router", command=command, url=settings.url)
