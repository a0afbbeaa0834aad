"""Finds and opens a model that a user names: on this machine, on the model hub, or on a vLLM server."""

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
"""Kinds of runs that produce a model."""
_MODEL_FILES = ("*.safetensors", "*.bin", "*.json", "*.jinja", "*.model", "*.txt")


def find_model(name: str) -> Path | None:
    """Find the folder of a model. `name` is a model's folder, the folder of a run or stage, or a hub id.

    Returns None for a hub id. Raises UserError if the named folder does not exist, or if the run or stage in the folder
    has no model yet.
    """
    folder = Path(name)
    if not folder.is_dir():
        if _HUB_ID.fullmatch(name) and not folder.parent.is_dir():
            return None
        raise UserError(
            f"no model folder at {name}{did_you_mean(name, SHAPES)}",
            "Use a model's folder, the folder of a run or stage with a model, or a hub id such as Qwen/Qwen3-0.6B.",
        )
    if (folder / "model.json").is_file():
        return _recorded(folder / "model.json")
    kind = ""
    with contextlib.suppress(UserError):  # the config.json of a model is not that of a run
        kind, _ = load_config(folder)
    if kind and kind not in _MAKE_MODELS:
        raise UserError(
            f"{name} is a run of `{kind}`, which produces no model",
            "Use the folder of the model, or of the run that trained it.",
        )
    if not kind and (folder / "config.json").is_file():
        return folder
    if (folder / "model").is_dir():
        return folder / "model"
    if kind or (folder / "checkpoints").is_dir():
        stages = sorted(str(path.parent) for path in folder.glob("*/model"))
        hint = (
            f"These stages have one: {', '.join(stages)}." if stages else "`rstar2 runs list` lists all runs."
        )
        raise UserError(f"{name} has no finished model yet", hint)
    return folder


def model_name(folder: Path) -> str:
    """Returns a short name for a model's folder. For a folder in a run, the name consists of the names of run and
    stage, such as demo-stage3.
    """
    folder = folder.resolve()
    for run in folder.parents:
        with contextlib.suppress(UserError):
            load_config(run)
            return "-".join([run.name, *(part for part in folder.relative_to(run).parts if part != "model")])
    return folder.name


def _recorded(record: Path) -> Path:
    """Returns the model folder that a run's model.json names. The path is relative to the run's folder."""
    try:
        path = record.parent / Path(json.loads(record.read_text(encoding="utf-8"))["path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f'{record} has no entry {{"path": …}}', "Use the model's folder itself.") from error
    if not path.is_dir():
        raise UserError(f"{record} names {path}, which does not exist", "Use the model's folder itself.")
    return path


def local_model(named: str) -> Path:
    """Returns the folder of a model, see `find_model`. A hub id is downloaded.

    Raises UserError if the model does not exist, or if the download fails.
    """
    if (folder := find_model(named)) is not None:
        return folder
    check_on_hub(named, "config.json")
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(named, allow_patterns=[*_MODEL_FILES]))
    # If the hub cannot be reached, its libraries raise OSError or one of many types of their own.
    except Exception as error:
        raise UserError(
            f"cannot download {named} from the hub: {first_line(error)}",
            "Check the network, or give the folder of a model instead of a hub id.",
        ) from error


def folder_with_config(named: str) -> Path | None:
    """The same as `find_model`, but a folder with a config.json is returned even if it has no weights."""
    folder = Path(named)
    if (folder / "config.json").is_file() and not (folder / "model.json").is_file():
        return folder
    return find_model(named)


def named_shape(named: str, *, download: bool) -> ModelShape:
    """Returns the shape of a model, which is a folder, a run or stage, or a hub id. No weights are read.

    For a hub id, the first available source is used: config.json in the hub's cache, a shape that rstar2 ships, and,
    with `download`, config.json on the hub.

    Raises:
        UserError: the model does not exist, its config.json cannot be read, or its kind is unknown.
    """
    if (folder := folder_with_config(named)) is not None:
        return read_shape(folder)
    if (cached := cached_file(named, "config.json")) is not None:
        return read_shape(cached.parent)
    if named in SHAPES:
        return SHAPES[named]
    if not download:
        raise UserError(
            f"the shape of {named} is unknown, because its config.json is not in the hub's cache",
            f"Use a folder that has the config.json. Known without a network: {', '.join(SHAPES)}.",
        )
    check_on_hub(named, "config.json", for_plan=True)
    from huggingface_hub import hf_hub_download

    try:
        return read_shape(Path(hf_hub_download(named, "config.json")).parent)
    except UserError:
        raise
    # The hub's libraries raise OSError or one of many types of their own.
    except Exception as error:
        raise UserError(
            f"cannot read config.json of {named} from the hub: {first_line(error)}",
            f"Use a folder that has the config.json. Known without a network: {', '.join(SHAPES)}.",
        ) from error


def open_folder(
    folder: Path,
    max_batch: int,
    choice: FormatChoice = MODELS_OWN,
    own_tools: bool = True,
) -> tuple[Engine, ChatCodec]:
    """Load a model and its tokenizer from a folder.

    Args:
        folder: the folder of the model.
        max_batch: maximum number of turns that are generated concurrently.
        choice: the user's choice of a format.
        own_tools: whether the model uses the tools of its format. If `own_tools` is False, the model's format need not
            support tools (see `load_chat_codec`).

    Raises:
        UserError: the folder contains no model or no tokenizer, or torch is not installed.
    """
    codec = load_codec(folder, choice) if own_tools else load_chat_codec(folder, choice)
    try:
        from rstar2.engines.hf import HFEngine
    except ImportError as error:
        raise UserError(
            f"running a model from a folder needs torch, which is not installed ({error.name})",
            f"{installation_for(error.name or 'torch')}\nOr use a vLLM server with --url.",
        ) from error
    return HFEngine(folder, codec.stop_ids, max_batch=max_batch), codec


def open_model(named: str, max_batch: int = 16) -> tuple[Engine, ChatCodec]:
    """Load a model in this process, and its codec.

    Args:
        named: a model's folder, the folder of a run with a model, or a hub id.
        max_batch: maximum number of rollouts that are generated concurrently.

    Raises:
        UserError: the model does not exist, it has no tokenizer, or torch is not installed.
    """
    return open_folder(local_model(named), max_batch)


@dataclass(frozen=True)
class ServerModel:
    """A model on a vLLM server, ready to generate."""

    engine: VLLMEngine
    codec: ChatCodec
    served: Served
    folder: Path | None
    """The model's folder, or None if the model is not on this machine."""


async def open_server(
    url: str,
    name: str | None = None,
    tokenizer: str | None = None,
    retries: RetryPolicy | None = None,
    choice: FormatChoice = MODELS_OWN,
    key: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> ServerModel:
    """Open the model of a vLLM server, and load its tokenizer.

    The engine has no open connection yet, so it may be used in another event loop.

    Args:
        url: the address of the server, such as `http://host:port`.
        name: the model's name. The name is required if the server has several models.
        tokenizer: names the model whose tokenizer is used, as for `find_model`. If `tokenizer` is None, the tokenizer
            is loaded from the place from which the server loaded the model.
        retries: decides how long to wait for the server's answer. If nothing listens at the URL, the wait is at most
            `FIRST_ANSWER_S` seconds. If `retries` is None, the wait is at most `MODELS_S` seconds.
        choice: the user's choice of a format.
        key: the API key, if the server needs one.
        more: further fields of each request.

    Raises:
        UserError: the URL is not valid, or no tokenizer can be loaded.
        EngineError: the server does not have this model, or has several models and `name` is None.
        ServiceGone: nothing answers at the URL.
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
    """Returns the tokenizer of a server's model.

    Raises UserError if this machine cannot load the tokenizer from the place from which the server loaded the model.
    """
    try:
        return load_tokenizer(served.root)
    except UserError as error:
        raise UserError(
            f"the server at {url} loaded its model from {served.root}, but no tokenizer can be loaded from there on "
            "this machine",
            "With --model, name a folder or a hub id that has the tokenizer. With --api chat, `chat` and `eval` need "
            "no tokenizer.",
        ) from error


async def ask_served(engine: VLLMEngine, retries: RetryPolicy | None = None) -> Served:
    """Returns the server's description of an engine's model. The function waits and raises errors as `open_server`
    does.
    """
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
