"""Opens the model to chat with: the one that was named, never one that was guessed."""

from __future__ import annotations

from rstar2.engines.base import Engine
from rstar2.engines.models import local_model, open_folder, open_server
from rstar2.engines.retry import RetryingEngine
from rstar2.errors import UserError
from rstar2.prompts import ChatCodec, FormatChoice

WAIT_S = 30.0
"""How long a person waits for a server that went away between two turns."""


async def open_model(
    model: str | None, url: str | None, name: str | None, choice: FormatChoice
) -> tuple[Engine, ChatCodec, str]:
    """Load `model`, or connect to a server's `name`; says in words which one it is.

    With a server, only the tokenizer of `model` is used.

    Raises:
        UserError: nothing is named; no such model or tokenizer; no torch installed.
        Failure: nothing answers at the URL, or not with that model.
    """
    if url is not None:
        server = await open_server(url, name, model, choice=choice)
        checkpoint = f"{server.served.model} ({server.served.root}) at {url}"
        return RetryingEngine(server.engine, WAIT_S), server.codec, checkpoint
    if model is None:
        raise UserError(
            "no model named",
            "Give --model with a run, a stage, a model's folder or a hub id, or --url; "
            "`rstar2 runs list` shows the runs.",
        )
    folder = local_model(model)
    engine, codec = open_folder(folder, max_batch=1, choice=choice)
    return engine, codec, str(folder)
