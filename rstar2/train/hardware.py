"""Checks that the GPUs of a recipe exist before training starts, and chooses the laptop profile for tiny models."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from rstar2.errors import RStarError, Unavailable, UserError
from rstar2.install import installation_for
from rstar2.machine import gpu_names
from rstar2.model_shape import weight_bytes
from rstar2.train.recipe import Hardware

LAPTOP = "laptop"
TINY_BYTES = 100 * 2**20
"""A CPU can train a model in reasonable time if the model's weights have at most this many bytes. The limit is the size
of 25 million parameters in fp32."""
CLUSTER_S = 60.0
"""Maximum number of seconds to wait for a Ray cluster's answer about its nodes."""
_REFUSED = re.compile(
    r"AuthenticationError|Unauthenticated|Invalid address|Version mismatch|ModuleNotFoundError|ImportError"
)
"""Texts in Ray's and Python's messages about permanent errors."""


def default_profile(model: Path) -> str | None:
    """Returns the laptop profile for a tiny model on a machine without GPUs and without a Ray cluster, and None
    otherwise."""
    return LAPTOP if 0 < weight_bytes(model) <= TINY_BYTES and not _cluster() and not gpu_names() else None


def check_hardware(required: Iterable[Hardware]) -> None:
    """Checks that this machine, or the Ray cluster, has the GPUs and nodes that recipes require.

    Raises:
        UserError: this machine has fewer GPUs than a recipe requires, or a recipe requires several nodes and
            RAY_ADDRESS is not set.
        Unavailable: the cluster does not answer, or has at the moment fewer GPUs or nodes than a recipe requires.
    """
    required = [each for each in required if each.device == "cuda"]
    if _cluster():
        if shortage := cluster_shortage(required):
            raise Unavailable(
                shortage,
                "Wait until all nodes have joined the cluster, add nodes, or set hardware.nodes, "
                "hardware.gpus_per_node and asynchronous.rollout_nodes to what the cluster has.",
            )
        return
    nodes = max((each.nodes for each in required), default=1)
    if nodes > 1:
        raise UserError(
            f"the recipe needs {nodes} nodes, but RAY_ADDRESS names no Ray cluster",
            "Start a Ray cluster on the nodes (examples/cluster/), and set RAY_ADDRESS to its address.",
        )
    needed = max((each.gpus_per_node for each in required), default=0)
    here = len(gpu_names()) if needed else 0
    if here >= needed:
        return
    has = "it has none" if not here else f"it has {here}"
    if here:
        hint = f"Use these GPUs with --set hardware.gpus_per_node={here}, or use another machine."
    else:
        hint = (
            f"Train a tiny model on the CPU with --profile {LAPTOP}, or set RAY_ADDRESS to use a Ray cluster."
        )
    raise UserError(f"the recipe needs {needed} GPUs on this machine, but {has}", hint)


def cluster_shortage(required: Iterable[Hardware]) -> str | None:
    """Finds out which nodes or GPUs the Ray cluster at RAY_ADDRESS lacks.

    Returns:
        A sentence about what is missing, or None if the cluster has everything or there is no cluster.

    Raises:
        Unavailable: the cluster does not answer.
        UserError: the cluster refuses the connection, or Ray is not installed.
    """
    required = [each for each in required if each.device == "cuda"]
    address = _cluster()
    if not address or not required:
        return None
    gpus = _gpus_by_node(address)
    for each in required:
        large = sum(count >= each.gpus_per_node for count in gpus)
        if large < each.nodes:
            has = ", ".join(f"{count:g}" for count in sorted(gpus, reverse=True))
            return (
                f"the recipe needs {each.nodes} nodes with {each.gpus_per_node} GPUs each, but the Ray cluster at "
                f"{address} has {large} such nodes: its {len(gpus)} nodes have {has} GPUs"
            )
    return None


def _gpus_by_node(address: str) -> list[float]:
    """Returns the number of GPUs of each live node of a Ray cluster. The query runs in a separate process."""
    if find_spec("ray") is None:
        raise UserError(
            "RAY_ADDRESS names a Ray cluster, but Ray is not installed",
            f"Unset RAY_ADDRESS, or install the training stack:\n{installation_for('ray')}",
        )
    command = [sys.executable, "-m", "rstar2.train.verl.cluster", address]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=CLUSTER_S, check=True)
        return [float(count) for count in json.loads(process.stdout.splitlines()[-1])]
    except (subprocess.SubprocessError, LookupError, ValueError) as error:
        stderr = getattr(error, "stderr", None) or b""
        text = stderr if isinstance(stderr, str) else stderr.decode(errors="replace")
        lines = text.strip().splitlines()
        why = f": {lines[-1][:200]}" if lines else ""
        raise cluster_error(text)(
            f"no Ray cluster answers at RAY_ADDRESS = {address}{why}",
            "Start it (ray start --head) with the same RAY_AUTH_MODE and token as here, or unset RAY_ADDRESS.",
        ) from error


def cluster_error(stderr: str) -> type[RStarError]:
    """Returns the class of error for Ray's error output: Unavailable if the problem may go away, and UserError
    otherwise."""
    return UserError if _REFUSED.search(stderr) else Unavailable


def _cluster() -> str:
    """Returns the address of the Ray cluster on which training runs, or an empty text if training runs on this
    machine."""
    address = os.environ.get("RAY_ADDRESS", "")
    return "" if address == "local" else address
