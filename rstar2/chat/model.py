"""Opens the model to chat with: the one that was named, never one that was guessed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rstar2.engines.base import Engine
from rstar2.engines.models import open_folder, open_server
from rstar2.engines.retry import RetryingEngine
from rstar2.errors import UserError
from rstar2.prompts import ChatCodec

WAIT_S = 30.0
"""How long a person waits for a server that went away between two turns."""


@dataclass(frozen=True)
class ChatModel:
    """A model, ready to generate."""

    engine: Engine
    codec: ChatCodec
    checkpoint: str
    """Which one it is, in words."""


@dataclass(frozen=True)
class ModelChoice:
    """Which model to chat with, as a user names it: a run, a folder, or a server.

    Raises:
        UserError: nothing is named, or two things that exclude each other.
    """

    run: Path | None = None
    model: Path | None = None
    """A model folder; with a server, only its tokenizer is used."""
    url: str | None = None
    name: str | None = None
    """Which of the server's models."""

    def __post_init__(self) -> None:
        if self.run is None and self.model is None and self.url is None:
            raise UserError(
                "no model named",
                "Give --run RUN, --model DIR, or --url URL; `rstar2 runs list` shows the runs.",
            )
        if self.run is not None and (self.model is not None or self.url is not None):
            raise UserError("--run names a model by itself", "Leave out --model and --url, or --run.")


async def open_model(choice: ModelChoice) -> ChatModel:
    """Load the model, or connect to its server.

    Raises:
        UserError: there is no such model or tokenizer, or torch is not installed.
        Failure: nothing answers at the URL, or not with that model.
    """
    if choice.url is not None:
        server = await open_server(choice.url, choice.name, choice.model)
        checkpoint = f"{server.served.model} ({server.served.root}) at {choice.url}"
        return ChatModel(RetryingEngine(server.engine, WAIT_S), server.codec, checkpoint)
    folder = _model_of(choice.run) if choice.run is not None else choice.model
    assert folder is not None
    engine, codec = open_folder(folder, max_batch=1)
    return ChatModel(engine, codec, str(folder))


def _model_of(run: Path) -> Path:
    """The model folder that a run's model.json names; a relative path starts at the run's folder.

    Raises:
        UserError: the run names none.
    """
    record = run / "model.json"
    try:
        path = run / Path(json.loads(record.read_text(encoding="utf-8"))["path"])
    except FileNotFoundError as error:
        made = "has no model.json, so it made no model yet" if run.is_dir() else "does not exist"
        raise UserError(
            f"the run {run} {made}", "`rstar2 runs list` shows the runs; --model names a model folder."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f'{record} does not say {{"path": …}}', "Name the model folder itself with --model."
        ) from error
    if not path.is_dir():
        raise UserError(f"{record} names {path}, which does not exist", "Name the model folder with --model.")
    return path
