"""Opening a model folder in this process."""

from __future__ import annotations

from pathlib import Path

from rstar2.engines.base import Engine
from rstar2.errors import UserError
from rstar2.prompts import ChatCodec, load_codec


def open_folder(folder: Path, max_batch: int, threads: int | None = None) -> tuple[Engine, ChatCodec]:
    """Load a model and its tokenizer.

    Args:
        max_batch: rows stepped at once.
        threads: torch threads; None leaves torch's choice.

    Raises:
        UserError: it holds no model or tokenizer, or torch is not installed.
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
