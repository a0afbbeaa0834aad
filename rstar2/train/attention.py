"""The trainer's implementations of attention: VERL's keys for each implementation, and a check that the machine and the
model support an implementation."""

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
"""The name under which `rstar2.train.verl.torch_kernels` registers its attention with transformers."""
_IMPORT_S = 300.0
"""Maximum number of seconds for an import. The import loads torch, which takes a minute from a slow disk."""
_IMPLEMENTATIONS: dict[Attention, str] = {
    "torch": PACKED_ATTENTION,
    "flash_attn": "flash_attention_2",
    "padded": "sdpa",
}


def verl_keys(attention: Attention, model: str) -> dict[str, Any]:
    """Returns VERL's keys for an implementation of attention. `model` is the prefix of the keys for VERL's model
    config."""
    return {
        f"+{model}.override_config.attn_implementation": _IMPLEMENTATIONS[attention],
        # Without this table, VERL would write attn_implementation into the config.json of every model it saves.
        f"+{model}.override_config.model_config": {},
        f"{model}.use_remove_padding": attention != "padded",
    }


def verl_modules(attention: Attention) -> tuple[str, ...]:
    """Returns the modules that every VERL process must load for an implementation of attention."""
    return ("rstar2.train.verl.torch_kernels",) if attention == "torch" else ()


def ignored_keys(verl: dict[str, Any]) -> list[str]:
    """Returns the keys in a recipe's `[verl]` table that VERL would ignore.

    The ignored keys are the keys of `override_config` outside `model_config`. VERL ignores them if the table
    `model_config` exists, and `verl_keys` always adds this table.
    """
    still_read = ("attn_implementation", "model_config")
    parts = {key: key.partition("model.override_config.")[2] for key in dotted(verl)}
    return [key for key, name in parts.items() if name and name.partition(".")[0] not in still_read]


def check_attention(attention: Attention, model: Path) -> None:
    """Checks that this machine and a model support the recipe's attention.

    Raises:
        UserError: The recipe's attention is `flash_attn`, but the package cannot be imported. Or the recipe's attention
            is `torch`, and the model has a sliding window, which limits how far back a token attends.
    """
    if attention == "flash_attn" and (why := _import_error("flash_attn")):
        raise UserError(
            f'hardware.attention = "flash_attn", but the package flash-attn cannot be imported: {why}',
            "Use another attention (--set hardware.attention=torch), or install flash-attn for this version of torch; "
            "docs/gpus.md shows how.",
        )
    window = _window(json.loads((model / "config.json").read_text(encoding="utf-8")))
    if attention == "torch" and window is not None:
        raise UserError(
            f'hardware.attention = "torch" attends to whole sequences, but {model} attends only to the last {window} '
            "tokens",
            "Use --set hardware.attention=flash_attn.",
        )


@functools.cache
def _import_error(module: str) -> str:
    """Returns text that says why a module cannot be imported, or an empty text if the module can be imported.

    The import happens in a separate process, because a package built for another version of torch may crash it.
    """
    command = [sys.executable, "-c", f"import {module}"]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"the import did not finish within {_IMPORT_S:.0f} s"
    if process.returncode == 0:
        return ""
    lines = [line.strip() for line in process.stderr.splitlines() if line.strip()]
    return (lines or [f"exit code {process.returncode}"])[-1][:300]


def _window(config: dict[str, Any]) -> int | None:
    """Returns how many tokens back a model with this config.json can attend, or None if there is no limit."""
    if not config.get("use_sliding_window", True):
        return None
    window = config.get("sliding_window")
    return window if isinstance(window, int) else None
