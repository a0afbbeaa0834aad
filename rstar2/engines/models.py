"""Opens the model that a user names: a folder, run in this process, or one that a vLLM server holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from rstar2.engines.base import Engine, EngineUnavailable
from rstar2.engines.retry import FIRST_ANSWER_S, RetryPolicy
from rstar2.engines.vllm import Served, VLLMEngine
from rstar2.errors import UserError
from rstar2.prompts import ChatCodec, load_codec


def open_folder(folder: Path, max_batch: int, threads: int | None = None) -> tuple[Engine, ChatCodec]:
    """Load a model and its tokenizer, for batches of `max_batch` and `threads` torch threads (None: torch's choice).

    A UserError where the folder holds no model or tokenizer, or torch is not installed.
    """
    codec = load_codec(folder)
    try:
        from rstar2.engines.hf import HFEngine
    except ImportError as error:
        raise UserError(
            f"a model folder is run with torch, which is not installed ({error.name})",
            'Install it: pip install "rstar2[laptop]"; or name a vLLM server with --url.',
        ) from error
    return HFEngine(folder, [codec.end_id], max_batch=max_batch, threads=threads), codec


@dataclass(frozen=True)
class ServerModel:
    """A model that a vLLM server holds, ready to generate."""

    engine: VLLMEngine
    codec: ChatCodec
    served: Served
    folder: Path | None
    """Its folder on this machine, where it has one."""


async def open_server(
    url: str, name: str | None = None, tokenizer: Path | None = None, wait_s: float = FIRST_ANSWER_S
) -> ServerModel:
    """Ask a vLLM server, at `http://host:port`, for its model and load that model's tokenizer.

    The engine holds no connection yet, so it may be used in another event loop.

    Args:
        name: which model, where the server holds several.
        tokenizer: a folder with the tokenizer; None takes it from where the server loaded the model.
        wait_s: seconds to wait for the server's answer, at most `FIRST_ANSWER_S`.

    Raises:
        UserError: the URL is not one, or no tokenizer can be loaded.
        EngineError: the server does not hold that model, or several and none was named.
        ServiceGone: nothing answers there.
    """
    return _opened(url, await _ask(url, name, wait_s), tokenizer)


def _opened(url: str, served: Served, tokenizer: Path | None) -> ServerModel:
    root = Path(served.root)
    folder = tokenizer or (root if root.is_dir() else None)
    codec = load_codec(folder or served.root)
    return ServerModel(VLLMEngine(url, served.model, stop_token_ids=[codec.end_id]), codec, served, folder)


async def _ask(url: str, name: str | None, wait_s: float) -> Served:
    engine = VLLMEngine(url, name)

    async def attempt() -> Served:
        try:
            async with asyncio.timeout(min(wait_s, FIRST_ANSWER_S) or None):
                return await engine.served()
        except TimeoutError as error:
            raise EngineUnavailable(
                f"the server at {url} accepts requests and does not answer", "Look in its log."
            ) from error

    try:
        return await RetryPolicy("engine", wait_s).call(attempt)
    finally:
        await engine.aclose()
