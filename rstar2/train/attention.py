"""How the trainer computes attention: VERL's keys for each choice, and the check that a machine and a model have it."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

from rstar2.config import dotted
from rstar2.errors import UserError

Attention = Literal["torch", "flash_attn", "padded"]
PACKED_ATTENTION = "rstar2_packed"
"""The name under which transformers finds the attention of `rstar2.train.verl.torch_kernels`."""
_IMPORT_S = 300.0
"""How long an import may take; it loads torch, which takes a minute from a slow disk."""
_IMPLEMENTATIONS: dict[Attention, str] = {
    "torch": PACKED_ATTENTION,
    "flash_attn": "flash_attention_2",
    "padded": "sdpa",
}


def verl_keys(attention: Attention, model: str) -> dict[str, Any]:
    """VERL's keys below `model`, the prefix of its model config."""
    return {
        f"+{model}.override_config.attn_implementation": _IMPLEMENTATIONS[attention],
        # Without this table VERL writes attn_implementation into the config.json of every model that it saves.
        f"+{model}.override_config.model_config": {},
        f"{model}.use_remove_padding": attention != "padded",
    }


def verl_modules(attention: Attention) -> tuple[str, ...]:
    """What every VERL process loads for it."""
    return ("rstar2.train.verl.torch_kernels",) if attention == "torch" else ()


def ignored_keys(verl: dict[str, Any]) -> list[str]:
    """A recipe's keys of the model's config that VERL would not read, because `verl_keys` adds the table for them."""
    read = ("attn_implementation", "model_config")
    parts = {key: key.partition("model.override_config.")[2] for key in dotted(verl)}
    return [key for key, name in parts.items() if name and name.partition(".")[0] not in read]


def check_attention(attention: Attention, model: Path) -> None:
    """Refuse to start if a GPU machine or a model lacks what the recipe's attention needs.

    Raises:
        UserError: flash-attn is asked for and cannot be imported, or the model limits how far back a token attends.
    """
    if attention == "flash_attn" and (why := _import_error("flash_attn")):
        raise UserError(
            f'hardware.attention = "flash_attn", but the package flash-attn cannot be imported: {why}',
            "Leave it out (--set hardware.attention=torch), or install it for this version of torch, as "
            "docs/gpus.md shows.",
        )
    window = _window(json.loads((model / "config.json").read_text(encoding="utf-8")))
    if attention == "torch" and window is not None:
        raise UserError(
            f'hardware.attention = "torch" attends to whole sequences, but {model} attends to {window} tokens back',
            "Use --set hardware.attention=flash_attn.",
        )


@functools.cache
def _import_error(module: str) -> str:
    """Why a process of its own cannot import a module; empty if it can. A build for another torch may even crash."""
    command = [sys.executable, "-c", f"import {module}"]
    try:
        imported = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"the import did not finish within {_IMPORT_S:.0f} s"
    if imported.returncode == 0:
        return ""
    lines = [line.strip() for line in imported.stderr.splitlines() if line.strip()]
    return (lines or [f"exit code {imported.returncode}"])[-1][:300]


def _window(config: dict[str, Any]) -> int | None:
    """How many tokens back a model of this config.json attends; None if that is not limited."""
    if not config.get("use_sliding_window", True):
        return None
    window = config.get("sliding_window")
    return window if isinstance(window, int) else None
