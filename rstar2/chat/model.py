"""The model to talk to: the one that was named, never one that was guessed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from rstar2.engines.base import Engine
from rstar2.engines.folder import open_folder
from rstar2.engines.vllm import Served, VLLMEngine
from rstar2.errors import UserError
from rstar2.prompts import ChatCodec, load_codec


@dataclass(frozen=True)
class Opened:
    """A model, ready to generate."""

    engine: Engine
    codec: ChatCodec
    what: str
    """Which checkpoint it is, in words."""


def run_model(run: Path) -> Path:
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
        raise UserError(f"{record} names {path}, which is not there", "Name the model folder with --model.")
    return path


def open_model(folder: Path) -> Opened:
    """Load a model folder into this process.

    Raises:
        UserError: it holds no model or tokenizer, or torch is not installed.
    """
    engine, codec = open_folder(folder, max_batch=1)
    return Opened(engine, codec, str(folder))


async def ask_server(url: str, name: str | None) -> Served:
    """Which model a vLLM server holds; `name` says which where it holds several.

    Raises:
        EngineError: no such server or model.
    """
    engine = VLLMEngine(url, name)
    try:
        return await engine.served()
    finally:
        await engine.aclose()


def open_server(url: str, served: Served, tokenizer: Path | None) -> Opened:
    """Talk to a vLLM server.

    Args:
        tokenizer: a folder with the model's tokenizer; None takes it from where the server loaded the model.

    Raises:
        UserError: no tokenizer is to be had there.
    """
    root = Path(served.root)
    codec = load_codec(tokenizer or (root if root.is_dir() else served.root))
    engine = VLLMEngine(url, served.model, stop_token_ids=[codec.end_id])
    return Opened(engine, codec, f"{served.model} ({served.root}) at {url}")
