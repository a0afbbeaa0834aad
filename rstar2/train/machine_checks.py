"""Tests the machine before training starts: the GPUs, the run's folder, W&B's key, the nodes of a Ray cluster.

A check briefly uses the GPU, folder or server that it tests, because a GPU or folder that exists may still not work. A
check raises UserError if something is missing, wrong or refused. A check raises Unavailable if something does not
answer. A GPU, folder or server that does not answer may answer later, so a script can start the same command again.
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

if TYPE_CHECKING:  # this import takes seconds
    from rstar2.train.sampling import JudgeAddress

GPUS_S = 300.0
"""Maximum number of seconds for PyTorch to compute something on each GPU. Importing PyTorch alone takes a minute if the
disk is slow."""
LOGIN_S = 90.0
NODES_S = 300.0
"""Maximum number of seconds for the check of a cluster's nodes, in addition to `hardware.worker_start_s` and
`GPUS_S`."""
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
"""Texts that the messages of W&B's client contain if the server did not answer. If the server refuses the key, the
client passes on the server's message."""
_NODE_CHECK = "rstar2.train.verl.node_check"


def check_gpus(hardware: Iterable[Hardware]) -> None:
    """Computes something on each GPU of this machine, if recipes need GPUs and no Ray cluster is used.

    The output of `nvidia-smi` would not be enough, because `nvidia-smi` also lists GPUs that PyTorch cannot use. For
    example, PyTorch may be built for CPUs or for another driver. The GPUs of a Ray cluster are tested by `check_nodes`.

    Raises:
        UserError: PyTorch can use fewer GPUs than a recipe needs.
        Unavailable: PyTorch does not finish in time.
    """
    needed = max((each.gpus_per_node for each in hardware if each.device == "cuda"), default=0)
    if not needed or os.environ.get("RAY_ADDRESS", "local") not in ("", "local"):
        return
    result = _run([sys.executable, "-c", _MULTIPLY], GPUS_S)
    if result.timed_out:
        raise Unavailable(
            f"the GPUs of this machine could not be tested: {result.why}",
            "Check the GPUs with `rstar2 doctor` and `nvidia-smi`; another program may be using them.",
        )
    usable = len(result.stdout.split())
    if usable >= needed:
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    limited = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
    raise UserError(
        f"the recipe needs {needed} GPUs on this machine, but PyTorch can use {usable} of them{limited}"
        + (f": {result.why}" if result.why else ""),
        "Install the build of PyTorch for this machine's driver (`rstar2 doctor` shows both), or set "
        "hardware.gpus_per_node to the number of GPUs that work.",
    )


def check_folder(run: Path) -> None:
    """Writes a file in a run's folder, or in the folder in which the run's folder will be made. Raises UserError if the
    file cannot be written."""
    existing = next(folder for folder in [run.absolute(), *run.absolute().parents] if folder.exists())
    if not existing.is_dir():
        return  # `open_run` reports this
    try:
        with tempfile.NamedTemporaryFile(dir=existing, prefix=".rstar2-") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise UserError(
            f"cannot write to {existing}: {error.strerror or error}",
            "Give another folder with --run, or free disk space.",
        ) from error


def check_login(
    trackers: Sequence[Tracker],
    traces: Sequence[TraceTracker] = (),
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Logs in to W&B if a recipe reports to W&B or sends traces to Weave.

    Raises:
        UserError: a tracker lacks a package or a setting, or the server refuses the key.
        Unavailable: the server does not answer.
    """
    check_trackers(trackers, traces, environ=environ)
    online = "wandb" in trackers and environ.get("WANDB_MODE", "online") not in WANDB_OFFLINE
    if not online and "weave" not in traces:
        return
    result = _run([sys.executable, "-c", _LOGIN], LOGIN_S, {**environ, "WANDB_MODE": "online"})
    offline = "With WANDB_MODE=offline, wandb writes into the run's folder."
    if result.timed_out or _WANDB_AWAY.search(result.why):
        raise Unavailable(
            f"the recipe reports to Weights & Biases, but its server does not answer: {result.why}",
            f"Run the same command once it answers. {offline}",
        )
    if result.why:
        raise UserError(
            f"the recipe reports to Weights & Biases, but logging in failed: {result.why}",
            f"Run `wandb login` with a valid key. {offline}",
        )


def check_nodes(hardware: Collection[Hardware], run: Path, judge: JudgeAddress | None) -> None:
    """Runs a test on each node of the Ray cluster, if training uses a Ray cluster.

    Each node must have the same packages as this machine, compute something on each of its GPUs, read and write the
    run's folder, and run a program on the judge.

    Raises:
        UserError: a node fails the test.
        Unavailable: the cluster does not answer, or a node gets no answer from the judge.
    """
    address = os.environ.get("RAY_ADDRESS", "")
    if address in ("", "local") or all(each.device == "cpu" for each in hardware):
        return
    existing = next(folder for folder in [run.absolute(), *run.absolute().parents] if folder.is_dir())
    marker = existing / f".rstar2-node-check-{secrets.token_hex(8)}"
    limit_s = NODES_S + GPUS_S + max(each.worker_start_s for each in hardware)
    task = {
        "address": address,
        "marker": str(marker),
        "judge": judge,
        "try_gpus": _MULTIPLY,
        "gpus_s": GPUS_S,
        "limit_s": limit_s,
    }
    try:
        marker.write_text(marker.name, encoding="utf-8")
        # The task contains the judge's token. It goes to standard input, because other users can see a command line.
        result = _run([sys.executable, "-m", _NODE_CHECK], limit_s + 60, stdin=json.dumps(task))
    except OSError as error:
        raise UserError(
            f"cannot write to {existing}: {error.strerror}", "Give another folder with --run."
        ) from error
    finally:
        for file in (marker, *existing.glob(f"{marker.name}.*")):
            file.unlink(missing_ok=True)
    try:
        here, *nodes = json.loads(result.stdout.splitlines()[-1])
    except (LookupError, ValueError) as error:
        raise cluster_error(result.stderr)(
            f"the nodes of the Ray cluster at {address} could not be tested: {result.why or 'no answer'}",
            "Start the cluster with the Python environment of this machine on every node (examples/cluster/).",
        ) from error
    if faults := [f"node {node['node']}: {fault}" for node in nodes for fault in node_faults(here, node)]:
        raise UserError(
            _first_four(faults),
            "Every node needs the same Python environment as this machine, GPUs that work, the run's folder at the "
            "same path, and access to the judge.",
        )
    if away := [f"node {node['node']}: {fault}" for node in nodes for fault in node["away"]]:
        raise Unavailable(
            _first_four(away),
            "Every node must reach the judge: check that it runs, and that the node can connect to it.",
        )


def _first_four(faults: list[str]) -> str:
    return "; ".join(faults[:4]) + (f"; and {len(faults) - 4} more" if len(faults) > 4 else "")


def node_faults(here: dict[str, Any], node: dict[str, Any]) -> list[str]:
    """Returns texts that say what is permanently wrong with a node.

    Args:
        here: the report of `rstar2.train.verl.node_check` for this machine.
        node: the report for the node.
    """
    faults = []
    for package, version in here["versions"].items():
        node_version = node["versions"].get(package)
        if node_version != version:
            faults.append(
                f"has {package} {node_version or '(not installed)'}, but this machine has {version or 'none'}"
            )
    if node["versions"] == here["versions"] and node["sources"] != here["sources"]:
        faults.append("has a different version of rstar2's source than this machine")
    return [*faults, *node["faults"]]


class _CommandResult(NamedTuple):
    """The result of a command that a check has run."""

    stdout: str
    why: str
    """The last line of the error output if the command failed; empty if the command succeeded."""
    stderr: str = ""
    timed_out: bool = False


def _run(
    command: list[str], limit_s: float, environ: Mapping[str, str] = os.environ, stdin: str = ""
) -> _CommandResult:
    """Runs a command for at most `limit_s` seconds."""
    try:
        completed = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
            env=dict(environ),
            input=stdin,
        )
    except subprocess.TimeoutExpired:
        return _CommandResult("", f"no result within {limit_s:.0f} s", timed_out=True)
    lines = [line.strip() for line in completed.stderr.splitlines() if line.strip()]
    why = "" if completed.returncode == 0 else (lines or [f"exit code {completed.returncode}"])[-1][:300]
    return _CommandResult(completed.stdout, why, completed.stderr)
