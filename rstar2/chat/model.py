"""Opens the model that the user names for a chat. A chat has no default model."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from rstar2.chat.recovery import PAUSES, WAIT_S, ContinuingEngine, Notice
from rstar2.engines.chat_api import INEXACT, open_chat_api
from rstar2.engines.models import local_model, open_folder, open_server
from rstar2.errors import UserError, as_user_error
from rstar2.loop.tools import load_tool
from rstar2.loop.turns.choose import MODELS_OWN, FormatChoice, codec_for
from rstar2.loop.turns.codec import ChatCodec
from rstar2.plugins import is_reference
from rstar2.retry import RetryPolicy
from rstar2.serve.hardware import check_float32

T = TypeVar("T")
Api = Literal["tokens", "chat"]
"""tokens: token ids are exchanged with a vLLM server. chat: texts are exchanged with any OpenAI-compatible endpoint."""
EngineName = Literal["auto", "vllm", "transformers"]
"""The engine of a model on this machine. auto: vLLM if it is installed and the model is large enough to justify its
start-up, else transformers."""
TOOLS: dict[str, str] = {"program": "python_code_with_standard_io", "notebook": "jupyter_code"}
"""Dict from the `--tool` value of a shipped tool to the name that formats use for the tool."""
_HINT = (
    "Give --run RUN; or --model with a run, a stage, a model's folder or a hub id; or --url. "
    "`rstar2 runs list` shows the runs."
)


@dataclass(frozen=True)
class ModelChoice:
    """The user's choice of a model. Raises UserError if the options name no model, or contradict each other."""

    run: Path | None = None
    model: str | None = None
    url: str | None = None
    name: str | None = None
    api: Api = "tokens"
    key: str | None = None
    format: FormatChoice = MODELS_OWN
    engine: EngineName = "auto"
    tool: str | None = None
    """One of `TOOLS`, or a user's tool as `module:object`. If `tool` is None, the chat uses the tools of the model's
    format."""
    away_s: float = WAIT_S
    """Seconds to wait for a server that stopped answering."""

    def __post_init__(self) -> None:
        self._check_tool()
        if self.run is not None and self.model is not None:
            raise UserError(
                f"--run {self.run} and --model {self.model} both name a model", "Give only one of them."
            )
        if self.run is not None and not self.run.is_dir():
            raise UserError(f"no run at {self.run}", "`rstar2 runs list` shows the runs.")
        if self.api == "chat":
            self._check_chat_api()
        elif self.named is None and self.url is None:
            raise UserError("no model named", _HINT)
        if self.name is not None and self.url is None:
            raise UserError(
                f"--model-name {self.name} is a model on a server, but no server is given",
                "Name the server with --url.",
            )
        if self.engine != "auto" and self.url is not None:
            raise UserError(
                f"--engine {self.engine} runs a model on this machine, but --url names a server",
                "Give only one of them.",
            )

    @property
    def named(self) -> str | None:
        """The folder or hub id of the model. If a server has the model, the folder or hub id of the model's
        tokenizer.
        """
        return self.model if self.run is None else str(self.run)

    def _check_tool(self) -> None:
        if self.tool is None or self.tool in TOOLS:
            return
        if not is_reference(self.tool):
            raise UserError(
                f"--tool {self.tool} is not a tool",
                f"Give {', '.join(TOOLS)}, or module:object for a tool of your own.",
            )
        load_tool(self.tool)

    def _check_chat_api(self) -> None:
        if self.url is None:
            raise UserError("--api chat needs an endpoint", "Name it with --url.")
        if self.named is not None:
            raise UserError(
                "--api chat takes no local model: the endpoint has its own tokenizer and template",
                "Leave out --run and --model; choose one of the endpoint's models with --model-name.",
            )
        if self.format.named is not None:
            raise UserError(
                "--api chat uses the endpoint's own format",
                "Leave out --format, or use a vLLM server with --api tokens.",
            )


@dataclass(frozen=True)
class OpenModel:
    """A model that is ready to answer."""

    engine: ContinuingEngine
    codec: ChatCodec
    checkpoint: str
    """The model's name and location, as shown to the user."""
    inexact: tuple[str, ...] = ()
    """Descriptions of the values in the model's traces that are not exact."""


async def open_model(choice: ModelChoice, notice: Notice) -> OpenModel:
    """Load the model, or connect to its server.

    Raises:
        UserError: there is no such model or tokenizer, torch is not installed, memory is too small, nothing answers at
            the URL, or the server does not have the model.
    """
    retries = RetryPolicy(choice.away_s, PAUSES)
    if choice.url is None:
        assert choice.named is not None
        folder = local_model(choice.named)
        check_float32(folder)
        model, codec = open_folder(folder, max_batch=1, choice=choice.format)
        codec = _with_tool(codec, choice.tool)
        return OpenModel(ContinuingEngine(model, codec.stop_ids, notice, retries), codec, str(folder))
    if choice.api == "chat":
        tool = _tool_name(choice.tool or "program")
        endpoint = await _reached(open_chat_api(choice.url, choice.name, choice.key, tool=tool))
        endpoint.engine.when_left_out(
            lambda field, reason: notice(
                f"requests no longer send `{field}`, so the server's default applies. Reason: {reason}"
            )
        )
        endpoint.engine.when_capped(
            lambda most, reason: notice(
                f"replies end after {most:,} tokens, the maximum that the server allows. Reason: {reason}"
            )
        )
        engine = ContinuingEngine(endpoint.engine, (), notice, retries)
        checkpoint = f"{endpoint.served.model} at {choice.url}, over its chat API"
        return OpenModel(engine, endpoint.codec, checkpoint, INEXACT)
    opening = open_server(choice.url, choice.name, choice.named, choice=choice.format, key=choice.key)
    server = await _reached(opening)
    codec = _with_tool(server.codec, choice.tool)
    checkpoint = f"{server.served.model} ({server.served.root}) at {choice.url}"
    return OpenModel(ContinuingEngine(server.engine, codec.stop_ids, notice, retries), codec, checkpoint)


async def _reached(opening: Coroutine[Any, Any, T]) -> T:
    """Awaits `opening`, which opens a server's model, and returns its result. A Failure is raised as UserError, because
    its likely cause is a wrong URL or a wrong model name.
    """
    with as_user_error():
        return await opening


def _tool_name(tool: str) -> str:
    """Returns the name that formats use for a tool."""
    return TOOLS.get(tool, tool)


def _with_tool(codec: ChatCodec, tool: str | None) -> ChatCodec:
    """Returns a model's codec with a tool in place of the tools of its format.

    If `tool` is None, the codec keeps the tools of its format.
    """
    if tool is None:
        return codec
    name = _tool_name(tool)
    fmt = codec.format.with_tool(name)
    if fmt.load_tools() == codec.format.load_tools():
        return codec
    return codec_for(codec.tokenizer, fmt, f"{codec.source}, with the tool {name}")
