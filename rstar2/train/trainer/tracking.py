"""The trackers that VERL reports metrics to: W&B, TensorBoard and the console, their run names and their steps."""

from __future__ import annotations

import hashlib
import netrc
import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from rstar2.errors import UserError
from rstar2.install import pip_command

Tracker = Literal["console", "wandb", "tensorboard"]
PROJECT = "rstar2"
"""What trackers call all runs together."""
_WANDB = "https://api.wandb.ai"
OFFLINE = ("offline", "dryrun", "disabled")
"""Values of WANDB_MODE that need no key."""


def tracker_keys(trackers: Sequence[Tracker], folder: Path) -> dict[str, Any]:
    """VERL's keys for a phase in its folder; `file` is what `rstar2 watch` and the report read."""
    return {
        "trainer.logger": ["file", *trackers],
        "trainer.project_name": PROJECT,
        "trainer.experiment_name": run_name(folder),
    }


def run_name(folder: Path) -> str:
    """What trackers call a phase: the run's name, and the phase's where it has a folder of its own."""
    folder = folder.absolute()
    return f"{folder.parent.name}-{folder.name}" if _is_phase(folder) else folder.name


def tracker_environment(
    trackers: Sequence[Tracker], folder: Path, environ: Mapping[str, str], first_step: int = 0
) -> dict[str, str]:
    """Where trackers write, and how a phase continues there: after a kill as the same run, after a stage's last step.

    Args:
        environ: the user's; what it says of W&B's folder and group stays.
        first_step: steps of the stages before.
    """
    folder = folder.absolute()
    root = folder.parent if _is_phase(folder) else folder
    env = {"RSTAR2_FIRST_STEP": str(first_step)}
    if "wandb" in trackers:
        env["WANDB_DIR"] = environ.get("WANDB_DIR", str(root))
        env["WANDB_RUN_GROUP"] = environ.get("WANDB_RUN_GROUP", root.name)
        # The same for every start, so that W&B continues the run.
        env["WANDB_RUN_ID"] = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        env["WANDB_RESUME"] = "allow"
    if "tensorboard" in trackers:
        env["TENSORBOARD_DIR"] = str(root / "tensorboard" / run_name(folder))
    return env


def check_trackers(trackers: Sequence[Tracker], environ: Mapping[str, str] = os.environ) -> None:
    """Raise a UserError where a tracker is not installed, or W&B would ask for a key."""
    for name in trackers:
        if name != "console" and find_spec(name) is None:
            raise UserError(
                f"trackers has {name}, which is not installed", f"Run {pip_command(name)}, or leave it out."
            )
    offline = environ.get("WANDB_MODE", "online") in OFFLINE
    if "wandb" in trackers and not offline and not environ.get("WANDB_API_KEY") and not _key_on_file(environ):
        raise UserError(
            "trackers has wandb, but no API key for Weights & Biases was found",
            "Run `wandb login`, set WANDB_API_KEY, or set WANDB_MODE=offline to write into the run's folder.",
        )


def _is_phase(folder: Path) -> bool:
    """Whether a folder lies in that of its run; `rstar2 sft` trains in the run's folder, which may be called sft."""
    if folder.name == "sft":
        return (folder.parent / "config.json").is_file()
    return re.fullmatch(r"stage\d", folder.name) is not None


def _key_on_file(environ: Mapping[str, str]) -> bool:
    """Whether `wandb login` has left a key for the server that is used."""
    host = urlsplit(environ.get("WANDB_BASE_URL", _WANDB)).hostname or ""
    try:
        return netrc.netrc(environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
