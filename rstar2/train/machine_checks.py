"""Tries what training will use, before it starts: the GPUs, the run's folder, W&B's key, the nodes of a Ray cluster.

Each is used for a moment, since being there does not mean that it works. What is missing, wrong or refused is a
UserError. What does not answer is Unavailable, because it may pass: a script that carries a run starts again then.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rstar2.errors import Unavailable, UserError
from rstar2.train.hardware import cluster_error
from rstar2.train.recipe import Hardware
from rstar2.train.trainer.tracking import WANDB_OFFLINE, TraceTracker, Tracker, check_trackers

if TYPE_CHECKING:  # what it imports takes seconds
    from rstar2.train.sampling import JudgeAddress

GPUS_S = 300.0
"""How long PyTorch may take to compute something on each GPU; importing it from a slow disk takes a minute."""
LOGIN_S = 90.0
NODES_S = 300.0
"""How long the nodes of a cluster may take, beyond `hardware.worker_start_s` and the GPUs."""
_MULTIPLY = """
import torch
for number in range(torch.cuda.device_count()):
    ones = torch.ones(64, 64, device=f"cuda:{number}", dtype=torch.bfloat16)
    assert float((ones @ ones)[0, 0]) == 64
    print(number, flush=True)
"""
_LOGIN = "import wandb\nwandb.login(verify=True)"
_WANDB_AWAY = re.compile(
    r"did not respond in time|process is not running|An error occurred while|time[d ]*out|onnect|HTTP (429|5\d\d)"
)
"""What W&B's client says if it was not answered; a refusal has the server's own words."""
_NODE_CHECK = "rstar2.train.verl.node_check"


def check_gpus(wanted: Iterable[Hardware]) -> None:
    """Compute something on the GPUs of this machine; a UserError if PyTorch can use fewer than a recipe needs.

    Unavailable if PyTorch does not end.

    `nvidia-smi` lists GPUs also if PyTorch is built for CPUs, or for another driver. With a Ray cluster the GPUs are on
    its nodes, which need not include this machine: `check_nodes` tries them.
    """
    needed = max((each.gpus_per_node for each in wanted if each.device == "cuda"), default=0)
    if not needed or os.environ.get("RAY_ADDRESS", "local") not in ("", "local"):
        return
    tried = _tried([sys.executable, "-c", _MULTIPLY], GPUS_S)
    if tried.timed_out:
        raise Unavailable(
            f"the GPUs of this machine could not be tried: {tried.why}",
            "`rstar2 doctor` and `nvidia-smi` show what the GPUs do; another program may use them.",
        )
    usable = len(tried.printed.split())
    if usable >= needed:
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    limited = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
    raise UserError(
        f"the recipe needs {needed} GPUs on this machine, but PyTorch can use {usable} of them{limited}"
        + (f": {tried.why}" if tried.why else ""),
        "Install the build of PyTorch for this machine's driver (`rstar2 doctor` shows both), or set "
        "hardware.gpus_per_node to the GPUs that work.",
    )


def check_folder(run: Path) -> None:
    """Write a file where a run's folder is, or will be made; a UserError if that cannot be done."""
    there = next(folder for folder in [run.absolute(), *run.absolute().parents] if folder.exists())
    if not there.is_dir():
        return  # `open_run` says what it is
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".rstar2-") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"cannot write to {there}: {error.strerror or error}",
            "Give another folder with --run, or make room.",
        ) from error


def check_login(
    trackers: Sequence[Tracker],
    traces: Sequence[TraceTracker] = (),
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Log in to W&B if a recipe reports to it or sends traces to Weave.

    A UserError if a tracker lacks something or the key is refused; Unavailable if no server answers.
    """
    check_trackers(trackers, traces, environ=environ)
    online = "wandb" in trackers and environ.get("WANDB_MODE", "online") not in WANDB_OFFLINE
    if not online and "weave" not in traces:
        return
    tried = _tried([sys.executable, "-c", _LOGIN], LOGIN_S, {**environ, "WANDB_MODE": "online"})
    offline = "With WANDB_MODE=offline, wandb writes into the run's folder."
    if tried.timed_out or _WANDB_AWAY.search(tried.why):
        raise Unavailable(
            f"the recipe reports to Weights & Biases, but its server does not answer: {tried.why}",
            f"Run the same command once it answers. {offline}",
        )
    if tried.why:
        raise UserError(
            f"the recipe reports to Weights & Biases, but logging in failed: {tried.why}",
            f"Run `wandb login` with a valid key. {offline}",
        )


def check_nodes(hardware: Collection[Hardware], run: Path, judge: JudgeAddress | None) -> None:
    """Run a task on each node of the Ray cluster; a UserError if a node differs from this machine or lacks something.

    Each must have the same packages as this machine, compute something on each of its GPUs, read and write the run's
    folder, and run a program on the judge.
    Unavailable if the cluster does not answer, or a node gets no answer from the judge.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local") or all(each.device == "cpu" for each in hardware):
        return
    there = next(folder for folder in [run.absolute(), *run.absolute().parents] if folder.is_dir())
    marker = there / f".rstar2-node-check-{secrets.token_hex(8)}"
    limit_s = NODES_S + GPUS_S + max(each.worker_start_s for each in hardware)
    asked = {
        "address": address,
        "marker": str(marker),
        "judge": judge,
        "try_gpus": _MULTIPLY,
        "gpus_s": GPUS_S,
        "limit_s": limit_s,
    }
    try:
        marker.write_text(marker.name, encoding="utf-8")
        # On standard input, since other users see the words of a command: there is the judge's token.
        tried = _tried([sys.executable, "-m", _NODE_CHECK], limit_s + 60, given=json.dumps(asked))
    except OSError as error:
        raise UserError(
            f"cannot write to {there}: {error.strerror}", "Give another folder with --run."
        ) from error
    finally:
        for left in (marker, *there.glob(f"{marker.name}.*")):
            left.unlink(missing_ok=True)
    try:
        here, *nodes = json.loads(tried.printed.splitlines()[-1])
    except (LookupError, ValueError) as error:
        raise cluster_error(tried.said)(
            f"the nodes of the Ray cluster at {address} could not be checked: {tried.why or 'no answer'}",
            "Start the cluster with the Python environment of this machine on every node (examples/cluster/).",
        ) from error
    if faults := [f"node {node['node']}: {fault}" for node in nodes for fault in node_faults(here, node)]:
        raise UserError(
            _first_four(faults),
            "Every node needs the same Python environment as this machine, GPUs that work, the run's folder at the "
            "same path, and the judge.",
        )
    if away := [f"node {node['node']}: {fault}" for node in nodes for fault in node["away"]]:
        raise Unavailable(
            _first_four(away), "Every node needs the judge: see whether it runs and can be reached."
        )


def _first_four(faults: list[str]) -> str:
    return "; ".join(faults[:4]) + (f"; and {len(faults) - 4} more" if len(faults) > 4 else "")


def node_faults(here: dict[str, Any], node: dict[str, Any]) -> list[str]:
    """What is wrong with a node for good, as `rstar2.train.verl.node_check` reports it, compared with this machine."""
    faults = []
    for package, version in here["versions"].items():
        found = node["versions"].get(package)
        if found != version:
            faults.append(
                f"has {package} {found or '(not installed)'}, but this machine has {version or 'none'}"
            )
    if node["versions"] == here["versions"] and node["sources"] != here["sources"]:
        faults.append("has another copy of rstar2's source than this machine")
    return [*faults, *node["faults"]]


class _Tried(NamedTuple):
    """What came of a command."""

    printed: str
    why: str
    """The last line of why it failed; empty if it did not."""
    said: str = ""
    """All that it wrote to standard error."""
    timed_out: bool = False


def _tried(
    command: list[str], limit_s: float, environ: Mapping[str, str] = os.environ, given: str = ""
) -> _Tried:
    try:
        ran = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env=dict(environ),
            input=given,
        )
    except subprocess.TimeoutExpired:
        return _Tried("", f"nothing came of it within {limit_s:.0f} s", timed_out=True)
    lines = [line.strip() for line in ran.stderr.splitlines() if line.strip()]
    why = "" if ran.returncode == 0 else (lines or [f"exit code {ran.returncode}"])[-1][:300]
    return _Tried(ran.stdout, why, ran.stderr)
