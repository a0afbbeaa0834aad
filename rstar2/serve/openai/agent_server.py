"""The process of the agent's endpoint: it speaks to an engine, and starts a judge unless it is given one."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import ExitStack, aclosing, asynccontextmanager
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI, Response
from pydantic import BaseModel

from rstar2 import __version__
from rstar2.engines.models import open_server
from rstar2.errors import RStarError
from rstar2.judge.client import JudgeClient
from rstar2.judge.service.start import running_judge
from rstar2.loop.agent import Limits
from rstar2.loop.prompts import FormatChoice
from rstar2.loop.toolbox import Toolbox
from rstar2.processes import answers, begin_module
from rstar2.serve.openai.agent import Agent, agent_router
from rstar2.serve.openai.answers import model_list
from rstar2.serve.openai.context import Context
from rstar2.serve.openai.errors import add_errors, require_key

ENGINE_WAIT_S = 30.0


class AgentServerSettings(BaseModel, extra="forbid"):
    """What the agent uses, and where it is served."""

    engine_url: str
    model: str
    """Its tokenizer and format."""
    host: str
    port: int
    format: str | None = None
    force_format: bool = False
    judge_url: str | None = None
    """None starts one."""
    judge_token: str | None = None
    judge_workers: int = 2
    max_turns: int = 10
    max_tokens: int = 8192
    """Of an answer, tool output included."""
    api_key: str | None = None


def create_app(settings: AgentServerSettings, judge: tuple[str, str | None]) -> FastAPI:
    """The application; it asks the engine for its model when it starts."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        choice = FormatChoice(settings.format, settings.force_format)
        server = await open_server(settings.engine_url, None, settings.model, ENGINE_WAIT_S, choice)
        async with aclosing(server.engine), JudgeClient(*judge) as client:
            max_len = server.served.max_len
            max_tokens = min(settings.max_tokens, max_len or settings.max_tokens)
            context = None if max_len is None else Context.of(max_len, server.codec.tokenizer)
            limits = Limits(settings.max_turns, max_tokens)
            tools = Toolbox(client, server.codec.format)
            agent = Agent(server.engine, server.codec, tools, limits, server.served.model, context)
            app.include_router(agent_router(agent))

            @app.get("/v1/models")
            async def models() -> dict[str, object]:
                return model_list(agent.name, server.served.root, max_len)

            yield

    app = FastAPI(title="rstar2 serve --with-tools", version=__version__, lifespan=lifespan)
    add_errors(app)
    require_key(app, settings.api_key)

    @app.get("/health")
    async def health() -> Response:
        """It answers no request while its engine answers none."""
        there = await asyncio.to_thread(answers, settings.engine_url)
        return Response(status_code=httpx.codes.OK if there else httpx.codes.SERVICE_UNAVAILABLE)

    return app


def main() -> None:
    try:
        _serve(begin_module(AgentServerSettings))
    except RStarError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


def _serve(settings: AgentServerSettings) -> None:
    with ExitStack() as stack:
        if settings.judge_url is not None:
            judge = (settings.judge_url, settings.judge_token)
        else:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="rstar2-serve-")))
            started = stack.enter_context(running_judge(folder, workers=settings.judge_workers))
            judge = (started.url, started.token)
        server = uvicorn.Server(
            uvicorn.Config(
                create_app(settings, judge),
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
