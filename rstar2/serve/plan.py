"""Lists the processes of one `rstar2 serve`: engines, a router before several, the endpoint with tools."""

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
    """As in its log's name: `engine`, `engine-1`, `router`, `agent`."""
    command: list[str]
    environment: dict[str, str] = {}
    settings: str = ""
    """What it reads from its standard input."""
    url: str
    """Where it answers, without a slash at the end."""


class AgentServerSettings(BaseModel, extra="forbid"):
    """What the agent's endpoint (`rstar2.serve.openai.agent_server`) uses, and its address."""

    engine_url: str | None
    """The engine's server. None runs the model in the endpoint's own process, with transformers."""
    model: str
    """The folder or hub id with the tokenizer and the format; without `engine_url` the folder of the model."""
    name: str | None = None
    """What clients call a model that runs in this process. None means its folder; an engine's server names its own."""
    origins: list[str] = []
    """Web pages of these origins may ask; `*` means every page."""
    max_model_len: int | None = None
    """Limits the context of a model that runs in this process. None means the model's own context."""
    host: str
    port: int
    format: str | None = None
    force_format: bool = False
    judge_url: str | None = None
    """None starts a judge."""
    judge_token: str | None = None
    judge_workers: int = 2
    max_turns: int = 10
    max_tokens: int = 8192
    """Tokens of an answer, tool output included."""
    api_key: str | None = None


@dataclass(frozen=True)
class Endpoint:
    """Where clients find a server, and who may ask."""

    host: str
    port: int
    api_key: str | None = None
    origins: tuple[str, ...] = ()
    """Web pages of these origins, such as `http://localhost:3000`, may ask; `*` means every page."""

    @property
    def url(self) -> str:
        return url_of(self.host, self.port)


def inner() -> Endpoint:
    """A free port of this machine, for a process that only another of ours speaks to."""
    return Endpoint("127.0.0.1", free_port())


def agent_process(settings: AgentServerSettings) -> Process:
    """The agent's endpoint, see `rstar2.serve.openai.agent_server`."""
    command = [sys.executable, "-m", "rstar2.serve.openai.agent_server"]
    # Standard input, as of `begin_module`: a command line and an environment can be read by others.
    text = settings.model_dump_json() + "\n"
    return Process(name="agent", command=command, settings=text, url=url_of(settings.host, settings.port))


def vllm_processes(
    vllm: VLLM, settings: ServeSettings, replicas: int, api_key: str | None
) -> list[list[Process]]:
    """One vLLM at the address of the settings; or several on ports of their own, then a router at that address.

    UserError where a router is needed and not installed.
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
        own = replace(settings, host="127.0.0.1", port=free_port(), origins=())
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        gpus = visible.split(",") if visible else [str(i) for i in range(replicas * settings.tp)]
        mine = gpus[number * settings.tp : (number + 1) * settings.tp]
        engines.append(
            _engine(f"engine-{number}", vllm, own, {**key, "CUDA_VISIBLE_DEVICES": ",".join(mine)})
        )
    return [engines, [_router(router, settings, [engine.url for engine in engines])]]


def find_router(vllm: VLLM) -> str | None:
    """The `vllm-router` beside vLLM, beside this interpreter, or on the PATH."""
    beside = [Path(python).with_name("vllm-router") for python in (vllm.python, sys.executable)]
    return next((str(path) for path in beside if path.exists()), shutil.which("vllm-router"))


def _engine(name: str, vllm: VLLM, settings: ServeSettings, more: dict[str, str]) -> Process:
    command, environment = vllm_command(vllm, settings)
    return Process(name=name, command=command, environment=environment | more, url=settings.url)


def _router(router: str, settings: ServeSettings, engines: list[str]) -> Process:
    # Of two engines drawn by lot the one with fewer requests: our requests carry no session to keep together, and
    # the policies that read the prompt's text find token ids.
    command = [router, "--host", settings.host, "--port", str(settings.port), "--policy", "power_of_two"]
    command += ["--prometheus-port", str(free_port()), "--log-level", "warning"]
    if settings.origins:
        command += ["--cors-allowed-origins", *settings.origins]
    command += ["--worker-urls", *engines]
    return Process(name="router", command=command, url=settings.url)
