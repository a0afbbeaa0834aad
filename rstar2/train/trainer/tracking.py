"""Trackers for metrics and for traces: their names, folders and credentials."""

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
"""The trackers of VERL 0.9.1, except `file`, which is always used."""
TraceTracker = Literal["mlflow", "trackio", "weave"]
PROJECT = "rstar2"
"""The name of the project to which all runs in a tracker belong."""
FIRST_STEP = "RSTAR2_FIRST_STEP"
"""The environment variable that contains the number of steps of all earlier stages. VERL itself counts the steps of
each stage from 1."""
_WANDB = "https://api.wandb.ai"
WANDB_OFFLINE = ("offline", "dryrun", "disabled")
"""Values of WANDB_MODE for which no API key is needed."""
_SWANLAB_OFFLINE = ("local", "offline", "disabled")


@dataclass(frozen=True)
class _Package:
    module: str
    distribution: str | None = None
    """The package's name on PyPI; None if the package is not on PyPI."""


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
    """Returns VERL's keys for the trackers of a phase. `rstar2 watch` and the report page read the tracker `file`."""
    return {
        "trainer.logger": ["file", *trackers],
        "trainer.project_name": PROJECT,
        "trainer.experiment_name": run_name(folder),
    }


def run_name(folder: Path) -> str:
    """Returns the name that a phase has in trackers: the run's name, followed by the phase's name if the phase has a
    folder of its own."""
    folder = folder.absolute()
    return f"{folder.parent.name}-{folder.name}" if _is_phase(folder) else folder.name


def tracker_environment(
    trackers: Sequence[str], folder: Path, environ: Mapping[str, str], first_step: int = 0
) -> dict[str, str]:
    """Returns environment variables that tell trackers where to write, and at which step a phase begins.

    Each phase is one run in a tracker, even if the phase is started several times (see
    `rstar2.train.verl.output.trackers`).

    Args:
        trackers: all trackers, for metrics and for traces.
        folder: the folder of the phase.
        environ: the user's environment. A variable that the user has set keeps its value.
        first_step: number of steps of all earlier stages.
    """
    folder = folder.absolute()
    root = folder.parent if _is_phase(folder) else folder
    defaults: dict[str, dict[str, str]] = {
        "wandb": {"WANDB_DIR": str(root), "WANDB_RUN_GROUP": root.name, "WANDB_RESUME": "allow"},
        "mlflow": {"MLFLOW_TRACKING_URI": f"sqlite:///{root / 'mlflow.db'}"},
        "trackio": {"TRACKIO_DIR": str(root / "trackio")},
        "swanlab": {"SWANLAB_LOG_DIR": str(root / "swanlab"), "SWANLAB_RESUME": "allow"},
    }
    variables = [default for name in trackers for default in defaults.get(name, {}).items()]
    env = {FIRST_STEP: str(first_step), **{key: environ.get(key, value) for key, value in variables}}
    if "tensorboard" in trackers:
        env["TENSORBOARD_DIR"] = str(root / "tensorboard" / run_name(folder))
    if "rl_insight" in trackers:
        # VERL's adapter reports nothing without this variable.
        env["VERL_RL_INSIGHT_ENABLE"] = "1"
    return env


def check_trackers(
    trackers: Sequence[Tracker],
    traces: Sequence[TraceTracker] = (),
    sft: bool = False,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Checks before training starts that all trackers can be used.

    Args:
        trackers: trackers for metrics.
        traces: trackers for traces.
        sft: whether the trackers are for SFT, which runs without Ray.
        environ: the user's environment.

    Raises:
        UserError: a package or the credentials of a tracker are missing, or a tracker cannot be used in SFT.
    """
    for key, names in (("trackers", trackers), ("trace_trackers", traces)):
        for name in names:
            package = _PACKAGES.get(name)
            if package is not None and not _installed(package.module):
                install = (
                    f"Run {pip_command(package.distribution)}"
                    if package.distribution
                    else f"Install the package that provides the module {package.module}"
                )
                raise UserError(
                    f"{key} has {name}, which is not installed", f"{install}, or remove it from {key}."
                )
            if missing := _missing_credentials(name, environ):
                raise UserError(f"{key} has {name}, but {missing[0]}", missing[1])
    if sft and "rl_insight" in trackers:
        raise UserError(
            "trackers has rl_insight, which reports through Ray, but SFT runs without Ray",
            "Remove rl_insight from the trackers of SFT.",
        )


def _installed(module: str) -> bool:
    """Whether a package is installed. A folder with the package's name, such as W&B's output folder `./wandb`, does not
    count as the package."""
    spec = find_spec(module)
    return spec is not None and spec.origin is not None


def _missing_credentials(name: str, environ: Mapping[str, str]) -> tuple[str, str] | None:
    """Returns a message about a tracker's missing credentials, and a hint. Returns None if nothing is missing."""

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
        return "its credentials are not in the environment", f"Set {', '.join(volcengine)}."
    if name == "rl_insight" and lacks("RL_INSIGHT_SERVER_URL"):
        return (
            "RL_INSIGHT_SERVER_URL is not set",
            "Start a server (`rl-insight server start`) and set RL_INSIGHT_SERVER_URL to its URL.",
        )
    return None


def _is_phase(folder: Path) -> bool:
    """Whether a folder is the folder of one phase inside a run's folder. `rstar2 sft` trains in the run's own folder,
    which may be named sft too."""
    if folder.name == "sft":
        return (folder.parent / "config.json").is_file()
    return re.fullmatch(r"stage\d", folder.name) is not None


def _key_on_file(environ: Mapping[str, str]) -> bool:
    """Whether `wandb login` has stored a key for the W&B server in use."""
    host = urlsplit(environ.get("WANDB_BASE_URL", _WANDB)).hostname or ""
    try:
        return netrc.netrc(environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
