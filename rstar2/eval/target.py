"""Opens the model to measure, and records in the results exactly which model it was."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from rstar2.data.problem import Problem
from rstar2.engines.chat_api import INEXACT, open_chat_api
from rstar2.engines.models import ServerModel, find_model, local_model, model_name, open_folder, open_server
from rstar2.engines.pool import RetryingEngine
from rstar2.engines.text_tokens import ToolsIn
from rstar2.errors import UserError, as_user_error
from rstar2.eval.methods.chat import JUDGE_MODEL, EngineChat, ServerChat
from rstar2.loop.engine import Engine
from rstar2.loop.turns.choose import MODELS_OWN, FormatChoice
from rstar2.loop.turns.codec import ChatCodec
from rstar2.retry import FIRST_ANSWER_S, RetryPolicy

_WEIGHTS = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.model")
_LEFT_TO_SERVER = (
    "min_p, repetition_penalty and a top_k of 0 are not sent: the server's own defaults apply to them"
)
_PACKAGES = ("rstar2", "transformers", "torch", "vllm", "datasets", "sympy", "numpy", "scipy")


@dataclass(frozen=True)
class Target:
    """The model to measure: a model that `find_model` finds, a model on a server, or the oracle.

    Raises:
        UserError: no model is named, the model does not exist, or two options exclude each other.
    """

    model: str | None = None
    url: str | None = None
    model_name: str | None = None
    oracle: bool = False
    format: FormatChoice = MODELS_OWN
    api: Literal["tokens", "chat"] = "tokens"
    """The server's interface. tokens: a vLLM server, with which results are exact. chat: any OpenAI-compatible chat
    endpoint, with which some numbers are estimates."""
    api_key: str | None = None
    tools_in: ToolsIn = "request"
    """Where the model on a chat endpoint finds the descriptions of its tools."""
    request_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request to the server."""

    def __post_init__(self) -> None:
        if not (self.model or self.url or self.oracle):
            hint = "Give --model MODEL, the --url URL of a vLLM server, or --oracle."
            raise UserError("no model to measure", hint)
        beside = {"--model": self.model, "--url": self.url, "--format": self.format.named}
        if self.oracle and any(beside.values()):
            options = " and ".join(option for option, value in beside.items() if value)
            raise UserError(
                f"--oracle replaces the model and its format, so it excludes {options}",
                f"Leave out --oracle, or leave out {options}.",
            )
        if self.api == "chat" and (not self.url or self.model or self.format.named):
            raise UserError(
                "--api chat measures a model on a server that has its own tokenizer and format",
                "Give --url, and --model-name if the server has several models. Leave out --model and --format.",
            )
        if self.tools_in != "request" and self.api != "chat":
            raise UserError(
                "--no-tools and --tools-in-text are for --api chat, because there the server decides the format",
                "Give --format no-tools or --format listed-tools, or add --api chat.",
            )
        if self.request_body and not self.url:
            raise UserError(
                "--request-body adds fields to requests to a server, but there is no --url", "Add --url URL."
            )
        if self.model is not None:
            find_model(self.model)
        if self.model_name and not self.url:
            raise UserError("--model-name names a model on a server, but there is no --url", "Add --url URL.")


@dataclass(frozen=True)
class Opened:
    """A target whose model is ready to generate."""

    engine: Engine | None
    """The engine of the model. None for a server to which only chat messages are sent."""
    codec: ChatCodec | None
    """The chat codec of the model. None if `engine` is None."""
    identity: dict[str, Any]
    """The entry `model` of results.json. A run is not resumed if the new launch has a different entry."""
    server: ServedChat | None = None
    """The model's server. None if the model does not run on a server."""
    folder: Path | None = None
    """The model's folder. None if the model is not on this machine."""

    @property
    def left_to_server(self) -> str:
        """A sentence about sampling settings that are not sent to the server, because the server may refuse them.

        Empty if all sampling settings are sent.
        """
        return _LEFT_TO_SERVER if self.server is not None and not self.server.takes_all else ""

    @property
    def name(self) -> str:
        """The model and the place where it runs."""
        if self.engine is not None:
            return self.engine.name
        assert self.server is not None
        return f"{self.server.model} at {self.server.url}"

    def chat(self, retries: RetryPolicy, turn_timeout_s: float) -> EngineChat | ServerChat:
        """Returns an interface through which chat messages are sent to the model.

        A server applies its own chat template. For a local model, this process applies the model's own chat template.
        """
        if self.server is not None:
            return ServerChat(
                self.server.url,
                self.server.model,
                retries,
                turn_timeout_s,
                key=self.server.key,
                more=self.server.request_body,
            )
        assert self.engine is not None
        assert self.codec is not None
        return EngineChat(RetryingEngine(self.engine, retries.service("engine"), turn_timeout_s), self.codec)

    @classmethod
    def of(
        cls,
        engine: Engine,
        codec: ChatCodec,
        server: ServedChat | None = None,
        folder: Path | None = None,
        **identity: Any,
    ) -> Opened:
        """Create an opened model.

        The codec's format is added to the model's identity, because the format also decides the result.
        """
        full = {**identity, "format": codec.source, "format_sha256": codec.format.digest}
        return cls(engine, codec, full, server, folder)


@dataclass(frozen=True)
class ServedChat:
    """A model on a server to which chat messages are sent."""

    url: str
    model: str
    key: str | None = None
    takes_all: bool = False
    """Whether the server is known to accept all sampling settings."""
    request_body: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of each request."""


def reach_server(
    target: Target, retries: RetryPolicy, tokenizer: bool = True
) -> ServerModel | ServedChat | None:
    """Wait for the target's server to answer. Returns None if the target does not run on a server.

    Args:
        target: the model to measure.
        retries: the retry policy, which says how long to wait.
        tokenizer: whether the model's tokenizer is needed. If False, any server with OpenAI's chat API is accepted.

    Raises:
        UserError: no server answers in time, or the server does not have the model.
    """
    if target.url is None:
        return None
    with as_user_error():
        if not tokenizer:
            return asyncio.run(_reach_chat(target.url, target, retries))
        more = target.request_body
        if target.api == "chat":
            endpoint = open_chat_api(
                target.url, target.model_name, target.api_key, retries, tools_in=target.tools_in, more=more
            )
            return asyncio.run(endpoint)
        opening = open_server(
            target.url, target.model_name, target.model, retries, target.format, target.api_key, more
        )
        return asyncio.run(opening)


def reach_judge_model(url: str, name: str | None, retries: RetryPolicy, key: str | None = None) -> str:
    """Wait for the judge model's server to answer. Returns the model's name.

    Raises:
        UserError: no server answers in time, or the server has several models and `name` is None.
    """

    async def reach() -> str:
        server = ServerChat(url, name, retries, FIRST_ANSWER_S, JUDGE_MODEL, key)
        async with contextlib.aclosing(server) as chat:
            await chat.takes_all()
            return await chat.named()

    with as_user_error():
        return asyncio.run(reach())


async def _reach_chat(url: str, target: Target, retries: RetryPolicy) -> ServedChat:
    key = target.api_key
    server = ServerChat(url, target.model_name, retries, FIRST_ANSWER_S, key=key)
    async with contextlib.aclosing(server) as chat:
        return ServedChat(chat.url, await chat.named(), key, await chat.takes_all(), target.request_body)


def open_target(
    target: Target,
    problems: Sequence[Problem],
    in_flight: int,
    server: ServerModel | ServedChat | None,
    agent: bool = True,
) -> Opened:
    """Load a local model, or use the model on a server.

    Args:
        target: the model to measure.
        problems: the problems, which only the oracle needs.
        in_flight: how many samples run at once.
        server: the result of `reach_server`.
        agent: whether the agent loop is used. If False, the model's chat template does not have to support tools.

    Raises:
        UserError: the model or its tokenizer does not exist, or a package that runs it is not installed.
    """
    if target.oracle:
        from rstar2.engines.oracle import OracleEngine, byte_codec

        plain = byte_codec()
        golds = {problem.problem: problem.answer for problem in problems}
        return Opened.of(OracleEngine(golds, plain), plain, name="oracle")
    request_body: dict[str, Any] = {"request_body": dict(target.request_body)} if target.request_body else {}
    if isinstance(server, ServedChat):
        about = {"name": server.model, "format": "the server's chat template", **request_body}
        return Opened(None, None, about, server)
    if server is not None and target.api == "chat":
        about = {
            "name": server.served.model,
            "url": target.url,
            "api": "chat",
            "inexact": list(INEXACT),
            **request_body,
        }
        served_chat = ServedChat(
            server.engine.url,
            server.served.model,
            target.api_key,
            server.served.takes_all,
            target.request_body,
        )
        return Opened.of(server.engine, server.codec, served_chat, **about)
    if server is not None:
        digest = {"sha256": model_hash(server.folder)} if server.folder is not None else {}
        served = server.served
        # vLLM names a model after its folder, unless it was started with another name.
        named_by_folder = server.folder is not None and served.model == served.root
        name = model_name(Path(served.root)) if named_by_folder else served.model
        # A server that exchanges token ids accepts every sampling value that vLLM does.
        served_chat = ServedChat(server.engine.url, served.model, target.api_key, True, target.request_body)
        about = {"name": name, "root": served.root, **digest, **request_body}
        return Opened.of(server.engine, server.codec, served_chat, server.folder, **about)
    assert target.model is not None
    folder = local_model(target.model)
    engine, codec = open_folder(folder, in_flight, choice=target.format, own_tools=agent)
    name = model_name(folder) if find_model(target.model) else target.model
    return Opened.of(engine, codec, folder=folder, name=name, sha256=model_hash(folder))


def model_hash(folder: Path) -> str:
    """Returns the SHA-256 of the names and contents of the files with a model's weights, configuration and
    tokenizer."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in _WEIGHTS for path in folder.glob(pattern)}):
        with path.open("rb") as file:
            digest.update(f"{path.name}\0{hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Returns the versions of Python and of the installed packages that can affect a measurement."""
    by_package = {"python": platform.python_version()}
    for package in _PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            by_package[package] = version(package)
    return by_package
