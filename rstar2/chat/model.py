"""Opens the model to chat with: the one that was named, never one that was guessed."""

from __future__ import annotations

import json
from pathlib import Path

from rstar2.engines.base import Engine
from rstar2.engines.models import open_folder, open_server
from rstar2.engines.retry import RetryingEngine
from rstar2.errors import UserError
from rstar2.prompts import ChatCodec

WAIT_S = 30.0
"""How long a person waits for a server that went away between two turns."""


async def open_model(
    run: Path | None, model: Path | None, url: str | None, name: str | None
) -> tuple[Engine, ChatCodec, str]:
    """Load the model of `run` or `model`, or connect to a server's `name`; says in words which one it is.

    With a server, only the tokenizer of `model` is used.

    Raises:
        UserError: nothing is named, or two that exclude each other; no such model or tokenizer; no torch installed.
        Failure: nothing answers at the URL, or not with that model.
    """
    if run is not None and (model is not None or url is not None):
        raise UserError("--run names a model by itself", "Leave out --model and --url, or --run.")
    if url is not None:
        server = await open_server(url, name, model)
        checkpoint = f"{server.served.model} ({server.served.root}) at {url}"
        return RetryingEngine(server.engine, WAIT_S), server.codec, checkpoint
    folder = model if run is None else _model_of(run)
    if folder is None:
        raise UserError(
            "no model named", "Give --run RUN, --model DIR, or --url URL; `rstar2 runs list` shows the runs."
        )
    engine, codec = open_folder(folder, max_batch=1)
    return engine, codec, str(folder)


def _model_of(run: Path) -> Path:
    """The model folder that a run's model.json names, from the run's folder on; UserError where it names none."""
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
