"""The process of the agent's endpoint. The process starts a judge unless its settings name one.

The model runs in an engine's server. On a machine without vLLM, the model runs in this process, with transformers.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI, Response

from rstar2 import __version__
from rstar2.engines.models import open_folder, open_server
from rstar2.errors import RStarError
from rstar2.judge.client import JudgeClient
from rstar2.judge.service.start import running_judge
from rstar2.loop.agent import Limits
from rstar2.loop.engine import Engine
from rstar2.loop.toolbox import Toolbox
from rstar2.loop.turns.choose import FormatChoice
from rstar2.loop.turns.codec import ChatCodec
from rstar2.processes import answers, begin_module
from rstar2.retry import RetryPolicy
from rstar2.serve.openai.agent import Agent, Context, agent_router
from rstar2.serve.openai.answers import model_card, model_list
from rstar2.serve.openai.http import add_errors, allow_pages, no_such_model, require_key
from rstar2.serve.plan import AgentServerSettings

ENGINE_WAIT_S = 30.0
MAX_BATCH = 64
"""Maximum number of turns that a model in this process generates at the same time. Further turns wait until the model
has room for them.
"""


@dataclass(frozen=True)
class OpenedModel:
    """A model that is ready to generate."""

    engine: Engine
    codec: ChatCodec
    name: str
    """The model's name for clients."""
    root: str
    """The folder or hub id with the model's tokenizer."""
    max_len: int | None
    """Maximum number of tokens in prompt and answer together, or None if the engine does not report its context."""


def open_model(settings: AgentServerSettings) -> OpenedModel:
    """Open the model of the engine's server, or load the model into this process if there is no such server.

    Raises:
        UserError: there is no such model, or its chat template does not fit its format.
        EngineError, ServiceGone: the engine's server does not answer, or its answer is wrong.
    """
    choice = FormatChoice(settings.format, settings.force_format)
    if settings.engine_url is None:
        engine, codec = open_folder(Path(settings.model), MAX_BATCH, choice)
        # Imported after `open_folder`, which reports a missing torch.
        from rstar2.engines.hf import HFEngine

        assert isinstance(engine, HFEngine)
        engine.context = min(engine.context, settings.max_model_len or engine.context)
        name = settings.name or settings.model
        return OpenedModel(engine, codec, name, settings.model, engine.context)
    retry = RetryPolicy(ENGINE_WAIT_S)
    server = asyncio.run(open_server(settings.engine_url, None, settings.model, retry, choice))
    served = server.served
    return OpenedModel(server.engine, server.codec, served.model, served.root, served.max_len)


def create_app(settings: AgentServerSettings, model: OpenedModel, judge: tuple[str, str | None]) -> FastAPI:
    """Returns the application, which closes the model's engine when it shuts down. `judge` is the URL and the token of
    the judge.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with aclosing(model.engine), JudgeClient(*judge) as client:
            max_tokens = min(settings.max_tokens, model.max_len or settings.max_tokens)
            context = None if model.max_len is None else Context.of(model.max_len, model.codec.tokenizer)
            limits = Limits(settings.max_turns, max_tokens)
            tools = Toolbox(client, model.codec.format)
            app.include_router(
                agent_router(Agent(model.engine, model.codec, tools, limits, model.name, context))
            )
            yield

    app = FastAPI(title="rstar2 serve --with-tools", version=__version__, lifespan=lifespan)
    add_errors(app)
    require_key(app, settings.api_key)
    allow_pages(app, settings.origins)

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return model_list(model_card(model.name, model.root, model.max_len))

    # `:path`, because a model's name may be a folder with slashes.
    @app.get("/v1/models/{name:path}")
    async def one_model(name: str) -> dict[str, object]:
        if name != model.name:
            raise no_such_model(name, model.name)
        return model_card(model.name, model.root, model.max_len)

    @app.get("/health")
    async def health() -> Response:
        """Answers 200, or 503 if the engine's server does not answer."""
        url = settings.engine_url
        available = url is None or await asyncio.to_thread(answers, url)
        return Response(status_code=httpx.codes.OK if available else httpx.codes.SERVICE_UNAVAILABLE)

    return app


def main() -> None:
    # uvicorn raises the signal again after it has stopped. The default handler would then leave the judge's folder.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        _serve(begin_module(AgentServerSettings))
    except RStarError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def _serve(settings: AgentServerSettings) -> None:
    model = open_model(settings)
    with ExitStack() as stack:
        if settings.judge_url is not None:
            judge = (settings.judge_url, settings.judge_token)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rstar2-serve-")))
            started = stack.enter_context(running_judge(folder, workers=settings.judge_workers))
            judge = (started.url, started.token)
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(settings, model, judge),
                host=settings.host,
                port=settings.port,
                log_level="warning",
                timeout_keep_alive=75,
                timeout_graceful_shutdown=2,
            )
        )
        asyncio.run(server.serve())


if __name__ == "__main__":
    main()
