"""Checks that a recipe's GPUs are here before anything starts, and takes the laptop profile where that fits."""

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
"""Weights up to this size, 25 million parameters in fp32, are trained on a CPU in sensible time."""
CLUSTER_S = 60.0
"""How long a Ray cluster may take to say what it has."""
_REFUSED = re.compile(
    r"AuthenticationError|Unauthenticated|Invalid address|Version mismatch|ModuleNotFoundError|ImportError"
)
"""What Ray and Python say if asking a cluster again is in vain."""


def default_profile(model: Path) -> str | None:
    """The laptop profile for a tiny model on a machine without GPUs and without a Ray cluster; None otherwise."""
    return LAPTOP if 0 < weight_bytes(model) <= TINY_BYTES and not _cluster() and not gpu_names() else None


def check_hardware(wanted: Iterable[Hardware]) -> None:
    """Refuse to start without the GPUs and nodes that a recipe asks of this machine, or of the Ray cluster.

    Raises:
        UserError: this machine has fewer, or several nodes are asked for and no cluster is named.
        Unavailable: the cluster does not answer, or has fewer at the moment.
    """
    wanted = [each for each in wanted if each.device == "cuda"]
    if _cluster():
        if shortage := cluster_shortage(wanted):
            raise Unavailable(
                shortage,
                "Wait until all nodes have joined, add nodes to it, or set hardware.nodes, hardware.gpus_per_node and "
                "asynchronous.rollout_nodes to what the cluster has.",
            )
        return
    nodes = max((each.nodes for each in wanted), default=1)
    if nodes > 1:
        raise UserError(
            f"the recipe needs {nodes} nodes, but RAY_ADDRESS names no Ray cluster",
            "Start one on the nodes (examples/cluster/), and set RAY_ADDRESS to its address.",
        )
    needed = max((each.gpus_per_node for each in wanted), default=0)
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


def cluster_shortage(wanted: Iterable[Hardware]) -> str | None:
    """What a recipe asks for that the Ray cluster of RAY_ADDRESS lacks; None where nothing, or where there is none.

    Raises:
        Unavailable: the cluster does not answer.
        UserError: it refuses, or Ray is not installed.
    """
    wanted = [each for each in wanted if each.device == "cuda"]
    address = _cluster()
    if not address or not wanted:
        return None
    gpus = _gpus_by_node(address)
    for each in wanted:
        large = sum(count >= each.gpus_per_node for count in gpus)
        if large < each.nodes:
            has = ", ".join(f"{count:g}" for count in sorted(gpus, reverse=True))
            return (
                f"the recipe needs {each.nodes} nodes with {each.gpus_per_node} GPUs each, but the Ray cluster at "
                f"{address} has {large} such nodes: its {len(gpus)} nodes have {has} GPUs"
            )
    return None


def _gpus_by_node(address: str) -> list[float]:
    """The GPUs of each live node of a Ray cluster, asked for in a process of its own, which can be ended."""
    if find_spec("ray") is None:
        raise UserError(
            "RAY_ADDRESS names a Ray cluster, but Ray is not installed",
            f"Unset it, or install the training stack:\n{installation_for('ray')}",
        )
    command = [sys.executable, "-m", "rstar2.train.verl.cluster", address]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=CLUSTER_S, check=True)
        return [float(count) for count in json.loads(asked.stdout.splitlines()[-1])]
    except (subprocess.SubprocessError, LookupError, ValueError) as error:
        said = getattr(error, "stderr", None) or b""
        text = said if isinstance(said, str) else said.decode(errors="replace")
        lines = text.strip().splitlines()
        why = f": {lines[-1][:200]}" if lines else ""
        raise cluster_error(text)(
            f"no Ray cluster answers at RAY_ADDRESS = {address}{why}",
            "Start it (ray start --head) with the same RAY_AUTH_MODE and token as here, or unset RAY_ADDRESS.",
        ) from error


def cluster_error(said: str) -> type[RStarError]:
    """The kind of error for what Ray said of a cluster: Unavailable if it may pass, else UserError."""
    return UserError if _REFUSED.search(said) else Unavailable


def _cluster() -> str:
    """The address of the Ray cluster that training runs on, whose GPUs this machine does not see; empty where none."""
    address = os.environ.get("RAY_ADDRESS", "")
    return "" if address == "local" else address
