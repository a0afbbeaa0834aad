"""The process that serves a model with transformers, for machines without vLLM; see `rstar2.serve.openai`.

The engine is the one of chat and of the demo: requests join and leave the batch between steps, each with its own
seed and sampling. (transformers' own continuous batching, tried at 5.10, has one seed for all and gives no
log-probabilities at the sampling temperature.) It runs on processors in float32.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from rstar2 import __version__
from rstar2.engines.hf import HFEngine
from rstar2.errors import RStarError
from rstar2.loop.turns.choose import FormatChoice, load_chat_codec
from rstar2.processes import begin_module
from rstar2.serve.openai.answers import model_list
from rstar2.serve.openai.completions import completions_router
from rstar2.serve.openai.errors import add_errors, require_key
from rstar2.serve.openai.turns import Model


class ModelServerSettings(BaseModel, extra="forbid"):
    """What to serve, where and to whom."""

    folder: str
    host: str
    port: int
    max_model_len: int | None = None
    """None for the model's own context."""
    max_batch: int = 64
    """Turns that are generated at once; others wait."""
    threads: int | None = None
    """Of torch; None for its own choice."""
    format: str | None = None
    force_format: bool = False
    api_key: str | None = None


def create_app(model: Model, api_key: str | None = None) -> FastAPI:
    """The application; it closes the engine when it ends."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await model.engine.aclose()

    app = FastAPI(title="rstar2 serve", version=__version__, lifespan=lifespan)
    add_errors(app)
    require_key(app, api_key)
    app.include_router(completions_router(model))

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {}

    @app.get("/v1/models")
    async def models() -> dict[str, object]:
        return model_list(model.name, model.name, model.engine.context)

    return app


def main() -> None:
    settings = begin_module(ModelServerSettings)
    folder = Path(settings.folder)
    try:
        codec = load_chat_codec(folder, FormatChoice(settings.format, settings.force_format))
        engine = HFEngine(folder, codec.stop_ids, max_batch=settings.max_batch, threads=settings.threads)
    except RStarError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
    if settings.max_model_len is not None:
        engine.context = min(engine.context, settings.max_model_len)
    app = create_app(Model(engine, codec, settings.folder), settings.api_key)
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        log_level="warning",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
    )


if __name__ == "__main__":
    main()
