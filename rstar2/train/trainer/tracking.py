"""The trackers that VERL reports metrics to, and those that get rollouts as traces: names, folders and credentials."""

from __future__ import annotations

import netrc
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from rstar2.errors import UserError
from rstar2.files import home_folder
from rstar2.install import pip_command

Tracker = Literal[
    "console",
    "wandb",
    "tensorboard",
    "mlflow",
    "trackio",
    "swanlab",
    "clearml",
    "vemlp_wandb",
    "rl_insight",
]
"""All that VERL 0.9.1 offers, but for `file`, which is always written."""
TraceTracker = Literal["mlflow", "trackio", "weave"]
PROJECT = "rstar2"
"""The project that all runs belong to in a tracker."""
FIRST_STEP = "RSTAR2_FIRST_STEP"
"""Environment variable with the number of steps of the stages before, because VERL counts each stage's from 1."""
_WANDB = "https://api.wandb.ai"
WANDB_OFFLINE = ("offline", "dryrun", "disabled")
"""Values of WANDB_MODE that need no key."""
_SWANLAB_OFFLINE = ("local", "offline", "disabled")


@dataclass(frozen=True)
class _Package:
    module: str
    distribution: str | None = None
    """The name for pip; None if PyPI does not have the package."""


_PACKAGES = {
    "wandb": _Package("wandb", "wandb"),
    "weave": _Package("weave", "weave"),
    "tensorboard": _Package("tensorboard", "tensorboard"),
    "mlflow": _Package("mlflow", "mlflow"),
    "trackio": _Package("trackio", "trackio"),
    "swanlab": _Package("swanlab", "swanlab"),
    "clearml": _Package("clearml", "clearml"),
    "vemlp_wandb": _Package("volcengine_ml_platform"),
    "rl_insight": _Package("rl_insight", "rl-insight"),
}


def tracker_keys(trackers: Sequence[Tracker], folder: Path) -> dict[str, Any]:
    """VERL's keys for a phase in its folder; `file` is what `rstar2 watch` and the report read."""
    return {
        "trainer.logger": ["file", *trackers],
        "trainer.project_name": PROJECT,
        "trainer.experiment_name": run_name(folder),
    }


def run_name(folder: Path) -> str:
    """A phase's name in trackers: the run's name, and the phase's if it has a folder of its own."""
    folder = folder.absolute()
    return f"{folder.parent.name}-{folder.name}" if _is_phase(folder) else folder.name


def tracker_environment(
    trackers: Sequence[str], folder: Path, environ: Mapping[str, str], first_step: int = 0
) -> dict[str, str]:
    """Environment variables that say where trackers write, and at which step a phase begins there.

    `rstar2.train.verl.output.trackers` makes a phase one run in a tracker, however often it is started.

    Args:
        trackers: those of metrics and those of traces.
        environ: the user's. A variable that is set there stays.
        first_step: steps of the stages before.
    """
    folder = folder.absolute()
    root = folder.parent if _is_phase(folder) else folder
    defaults: dict[str, dict[str, str]] = {
        "wandb": {"WANDB_DIR": str(root), "WANDB_RUN_GROUP": root.name, "WANDB_RESUME": "allow"},
        "mlflow": {"MLFLOW_TRACKING_URI": f"sqlite:///{root / 'mlflow.db'}"},
        "trackio": {"TRACKIO_DIR": str(root / "trackio")},
        "swanlab": {"SWANLAB_LOG_DIR": str(root / "swanlab"), "SWANLAB_RESUME": "allow"},
    }
    wanted = [default for name in trackers for default in defaults.get(name, {}).items()]
    env = {FIRST_STEP: str(first_step), **{key: environ.get(key, value) for key, value in wanted}}
    if "tensorboard" in trackers:
        env["TENSORBOARD_DIR"] = str(root / "tensorboard" / run_name(folder))
    if "rl_insight" in trackers:
        # Without it VERL's adapter reports nothing.
        env["VERL_RL_INSIGHT_ENABLE"] = "1"
    return env


def check_trackers(
    trackers: Sequence[Tracker],
    traces: Sequence[TraceTracker] = (),
    sft: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Check that trackers can be used before training starts.

    Args:
        traces: trackers that get traces.
        sft: whether SFT's trainer reports, which has no Ray.

    Raises:
        UserError: a package or the credentials of a tracker are missing, or it cannot be used in SFT.
    """
    for key, names in (("trackers", trackers), ("trace_trackers", traces)):
        for name in names:
            package = _PACKAGES.get(name)
            if package is not None and not _installed(package.module):
                install = (
                    f"Run {pip_command(package.distribution)}"
                    if package.distribution
                    else f"Install the package with the module {package.module}"
                )
                raise UserError(f"{key} has {name}, which is not installed", f"{install}, or leave it out.")
            if missing := _missing_credentials(name, environ):
                raise UserError(f"{key} has {name}, but {missing[0]}", missing[1])
    if sft and "rl_insight" in trackers:
        raise UserError(
            "trackers has rl_insight, which reports through Ray, but SFT runs without Ray",
            "Leave it out for SFT.",
        )


def _installed(module: str) -> bool:
    """Whether a package is there; a folder of its name, such as the `./wandb` that W&B writes to, is none."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def _missing_credentials(name: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """What a tracker lacks and what to do about it; None if it has all it needs."""

    def lacks(*variables: str) -> bool:
        return not all(environ.get(variable) for variable in variables)

    if name in ("wandb", "weave"):
        offline = name == "wandb" and environ.get("WANDB_MODE", "online") in WANDB_OFFLINE
        if not offline and lacks("WANDB_API_KEY") and not _key_on_file(environ):
            hint = "Run `wandb login` or set WANDB_API_KEY"
            or_offline = (
                ", or set WANDB_MODE=offline to write into the run's folder" if name == "wandb" else ""
            )
            return "no API key for Weights & Biases was found", f"{hint}{or_offline}."
    if name == "swanlab" and environ.get("SWANLAB_MODE", "cloud") not in _SWANLAB_OFFLINE:
        root = environ.get("SWANLAB_ROOT") or environ.get("SWANLAB_SAVE_DIR") or home_folder() / ".swanlab"
        login = Path(root) / ".netrc"
        if lacks("SWANLAB_API_KEY") and not login.exists():
            return (
                "no API key for SwanLab was found",
                "Run `swanlab login`, set SWANLAB_API_KEY, or set SWANLAB_MODE=local to write into the run's folder.",
            )
    if name == "clearml" and environ.get("CLEARML_OFFLINE_MODE", "0") in ("", "0"):
        config = Path(environ.get("CLEARML_CONFIG_FILE") or home_folder() / "clearml.conf")
        if lacks("CLEARML_API_ACCESS_KEY", "CLEARML_API_SECRET_KEY") and not config.exists():
            return (
                "no credentials for ClearML were found",
                "Run `clearml-init`, or set CLEARML_API_ACCESS_KEY and CLEARML_API_SECRET_KEY, or "
                "CLEARML_OFFLINE_MODE=1.",
            )
    volcengine = ("VOLC_ACCESS_KEY_ID", "VOLC_SECRET_ACCESS_KEY", "MLP_TRACKING_REGION")
    if name == "vemlp_wandb" and lacks(*volcengine):
        return "VERL reads its credentials from the environment", f"Set {', '.join(volcengine)}."
    if name == "rl_insight" and lacks("RL_INSIGHT_SERVER_URL"):
        return (
            "RL_INSIGHT_SERVER_URL names no server",
            "Start one (rl-insight server start) and set RL_INSIGHT_SERVER_URL.",
        )
    return None


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
