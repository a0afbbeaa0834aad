"""Finds and opens the model that a user names: one of this machine, of the model hub, or of a vLLM server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.engines.openai_server import MODELS_S, Served
from rstar2.engines.vllm import VLLMEngine
from rstar2.errors import UserError, did_you_mean
from rstar2.install import installation_for
from rstar2.loop.engine import Engine, EngineUnavailable
from rstar2.loop.turns.choose import (
    MODELS_OWN,
    FormatChoice,
    codec_of,
    load_chat_codec,
    load_codec,
    load_tokenizer,
)
from rstar2.loop.turns.codec import ChatCodec
from rstar2.model_hub import cached_file, check_on_hub, first_line
from rstar2.model_shape import SHAPES, ModelShape, read_shape
from rstar2.retry import RetryPolicy
from rstar2.runs import load_config

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_MAKE_MODELS = ("demo", "sft", "train")
"""Kinds of runs."""
_MODEL_FILES = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.model", "*.txt")


def find_model(name: str) -> Path | None:
    """The folder of a model: `name` itself, or the model of the run or stage in that folder. None for a hub id.

    Raises UserError if there is no such folder, or its run or stage has no model yet.
    """
    folder = Path(name)
    if not folder.is_dir():
        if _HUB_ID.fullmatch(name) and not folder.parent.is_dir():
            return None
        raise UserError(
            f"no model folder at {name}{did_you_mean(name, SHAPES)}",
            "Give a model's folder, the folder of a run or stage that made one, or a hub id such as Qwen/Qwen3-0.6B.",
        )
    if (folder / "model.json").is_file():
        return _recorded(folder / "model.json")
    kind = ""
    with contextlib.suppress(UserError):  # a model's folder has a config.json too
        kind, _ = load_config(folder)
    if kind and kind not in _MAKE_MODELS:
        raise UserError(
            f"{name} is a run of `{kind}`, which makes no model",
            "Give the model itself, or the run that trained it.",
        )
    if not kind and (folder / "config.json").is_file():
        return folder
    if (folder / "model").is_dir():
        return folder / "model"
    if kind or (folder / "checkpoints").is_dir():
        stages = sorted(str(path.parent) for path in folder.glob("*/model"))
        hint = (
            f"These stages have one: {', '.join(stages)}." if stages else "`rstar2 runs list` shows the runs."
        )
        raise UserError(f"{name} has no finished model yet", hint)
    return folder


def model_name(folder: Path) -> str:
    """What tells a model's folder from others: its own name, or in a run the run's and the stage's: demo-stage3."""
    folder = folder.resolve()
    for run in folder.parents:
        with contextlib.suppress(UserError):
            load_config(run)
            return "-".join([run.name, *(part for part in folder.relative_to(run).parts if part != "model")])
    return folder.name


def _recorded(record: Path) -> Path:
    """The model folder that a run's model.json names, from the run's folder on."""
    try:
        path = record.parent / Path(json.loads(record.read_text(encoding="utf-8"))["path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f'{record} has no entry {{"path": …}}', "Give the model's folder itself.") from error
    if not path.is_dir():
        raise UserError(f"{record} names {path}, which does not exist", "Give the model's folder itself.")
    return path


def local_model(named: str) -> Path:
    """Returns the folder of `find_model`, or downloads a hub id. Raises UserError if the download fails."""
    if (folder := find_model(named)) is not None:
        return folder
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(named, allow_patterns=[*_MODEL_FILES]))
    # The hub's libraries raise anything from OSError to their own types when it cannot be reached.
    except Exception as error:
        raise UserError(
            f"no folder at {named}, and no such model on the hub or in its cache ({first_line(error)})"
            f"{did_you_mean(named, SHAPES)}",
            "Check the name; without a network, give a model's folder.",
        ) from error


def folder_with_config(named: str) -> Path | None:
    """`find_model`, but a folder with a config.json is taken as it is, weights or not."""
    folder = Path(named)
    if (folder / "config.json").is_file() and not (folder / "model.json").is_file():
        return folder
    return find_model(named)


def named_shape(named: str, *, download: bool) -> ModelShape:
    """The shape of a model in a folder, of a run or stage, or of the hub. No weights are read.

    For a hub id, config.json is taken from the hub's cache; else the shape that is shipped; else, with `download`,
    config.json of the hub.

    Raises:
        UserError: there is no such model, its config.json cannot be read, or it is not of a known kind.
    """
    if (folder := folder_with_config(named)) is not None:
        return read_shape(folder)
    if (cached := cached_file(named, "config.json")) is not None:
        return read_shape(cached.parent)
    if named in SHAPES:
        return SHAPES[named]
    if not download:
        raise UserError(
            f"the shape of {named} is not known: its config.json is not in the hub's cache",
            f"Give a folder with its config.json. Known without a network: {', '.join(SHAPES)}.",
        )
    check_on_hub(named, "config.json")
    from huggingface_hub import hf_hub_download

    try:
        return read_shape(Path(hf_hub_download(named, "config.json")).parent)
    except UserError:
        raise
    # The hub's libraries raise anything from OSError to their own types.
    except Exception as error:
        raise UserError(
            f"cannot read config.json of {named} from the hub: {first_line(error)}",
            f"Give a folder with its config.json. Known without a network: {', '.join(SHAPES)}.",
        ) from error


def open_folder(
    folder: Path,
    max_batch: int,
    choice: FormatChoice = MODELS_OWN,
    own_tools: bool = True,
) -> tuple[Engine, ChatCodec]:
    """Load a model and its tokenizer, for batches of `max_batch`.

    Without `own_tools` the model need not be able to show the tools of its format (`load_chat_codec`).
    Raises UserError if the folder holds no model or tokenizer, or if torch is not installed.
    """
    codec = load_codec(folder, choice) if own_tools else load_chat_codec(folder, choice)
    try:
        from rstar2.engines.hf import HFEngine
    except ImportError as error:
        raise UserError(
            f"running a model from a folder needs torch, which is not installed ({error.name})",
            f"{installation_for(error.name or 'torch')}\nOr give a vLLM server with --url.",
        ) from error
    return HFEngine(folder, codec.stop_ids, max_batch=max_batch), codec


def open_model(named: str, max_batch: int = 16) -> tuple[Engine, ChatCodec]:
    """Load a model in this process, and the codec that writes and reads its turns.

    Args:
        named: a model's folder, the folder of a run that made one, or a hub id.
        max_batch: how many rollouts are generated at the same time.

    Raises:
        UserError: there is no such model or no tokenizer for it, or torch is not installed.
    """
    return open_folder(local_model(named), max_batch)


@dataclass(frozen=True)
class ServerModel:
    """A model that a vLLM server holds, ready to generate."""

    engine: VLLMEngine
    codec: ChatCodec
    served: Served
    folder: Path | None
    """The model's folder, if it is on this machine."""


async def open_server(
    url: str,
    name: str | None = None,
    tokenizer: str | None = None,
    retries: RetryPolicy | None = None,
    choice: FormatChoice = MODELS_OWN,
    key: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> ServerModel:
    """Ask a vLLM server, at `http://host:port`, for its model and load that model's tokenizer.

    The engine holds no connection yet, so it may be used in another event loop.

    Args:
        name: the model's name; needed if the server has several.
        tokenizer: a model, as `find_model` takes it, with the tokenizer; None takes it from where the server loaded
            the model.
        retries: how long to wait for the server's answer, at most `FIRST_ANSWER_S` if nothing listens; None waits
            for `MODELS_S` seconds.
        key: the API key, if the server asks for one.
        more: further fields of each request.

    Raises:
        UserError: the URL is not one, or no tokenizer can be loaded.
        EngineError: the server does not hold that model, or several and none was named.
        ServiceGone: nothing answers there.
    """
    engine = VLLMEngine(url, name, key=key)
    try:
        served = await ask_served(engine, retries)
    finally:
        await engine.aclose()
    return _opened(url, served, tokenizer, choice, key, more)


def _opened(
    url: str,
    served: Served,
    tokenizer: str | None,
    choice: FormatChoice,
    key: str | None,
    more: Mapping[str, Any] | None,
) -> ServerModel:
    if tokenizer is not None:
        folder = find_model(tokenizer)
        codec = load_codec(folder or tokenizer, choice)
    else:
        folder = Path(served.root) if Path(served.root).is_dir() else None
        codec = codec_of(served.root, server_tokenizer(url, served), choice)
    engine = VLLMEngine(url, served.model, stop_token_ids=codec.stop_ids, key=key, more=more)
    return ServerModel(engine, codec, served, folder)


def server_tokenizer(url: str, served: Served) -> Any:
    """Returns the tokenizer of a server's model. Raises UserError if the server's own source of it is out of reach."""
    try:
        return load_tokenizer(served.root)
    except UserError as error:
        raise UserError(
            f"the server at {url} loaded its model from {served.root}, but no tokenizer can be loaded from there on "
            "this machine",
            "Give the tokenizer with --model, as a folder or a hub id. `chat` and `eval` need none with --api chat.",
        ) from error


async def ask_served(engine: VLLMEngine, retries: RetryPolicy | None = None) -> Served:
    """The model that a server holds for an engine; waits and raises as `open_server`."""
    policy = retries or RetryPolicy(MODELS_S)

    async def attempt() -> Served:
        try:
            async with asyncio.timeout(policy.wait_s or None):
                return await engine.served()
        except TimeoutError as error:
            raise EngineUnavailable(
                f"the server at {engine.url} accepts requests but does not answer",
                "See its log.",
                timed_out=True,
            ) from error

    return await policy.service("engine").call(attempt)
