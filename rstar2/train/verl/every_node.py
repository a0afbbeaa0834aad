"""Runs torchrun on every node of a Ray cluster, for SFT on several nodes. The program ends as soon as torchrun fails on
one node.

`python -m rstar2.train.verl.every_node NODES GPUS NAMES -m torch.distributed.run …` adds the options of the rendezvous
to torchrun's command line. NAMES are names of environment variables, separated by commas, that are copied to the nodes.
The output of torchrun on all nodes is printed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import Any

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rstar2.processes import die_with, free_port

PLACEMENT_S = 600.0
"""Maximum number of seconds to wait for free GPUs in the cluster."""
REGISTER_TIMEOUT = "RAY_worker_register_timeout_seconds"
"""Ray's environment variable for the number of seconds that a process may take to start. The variable's value comes
from `hardware.worker_start_s`. An actor of this module may take one minute longer than this number of seconds to
start."""
TORCHRUN = ["-m", "torch.distributed.run"]


class Node:
    """An actor on one node, which owns the GPUs of the node."""

    def rendezvous(self) -> tuple[str, int]:
        """Returns this node's address and a free port."""
        return ray.util.get_node_ip_address(), free_port()

    def run(self, rank: int, address: tuple[str, int], words: list[str]) -> int:
        """Runs torchrun and returns its exit code. If this actor is killed, torchrun gets SIGTERM."""
        where = [f"--node-rank={rank}", f"--master-addr={address[0]}", f"--master-port={address[1]}"]
        process = subprocess.Popen(
            [sys.executable, *TORCHRUN, *where, *words], preexec_fn=die_with(os.getpid(), signal.SIGTERM)
        )
        return process.wait()


def run(nodes: int, gpus: int, names: list[str], words: list[str]) -> int:
    """Runs torchrun on all nodes until every torchrun has ended or until one torchrun has failed.

    Returns the exit code of the first torchrun that failed, or 0. Raises Ray's error if the cluster does not have
    enough nodes with free GPUs.
    """
    ray.init(runtime_env={"env_vars": {name: os.environ[name] for name in names}})
    group = placement_group([{"CPU": 1, "GPU": gpus}] * nodes, strategy="STRICT_SPREAD")
    ray.get(group.ready(), timeout=PLACEMENT_S)
    actor: Any = ray.remote(Node)
    actors = [
        actor.options(
            num_cpus=1, num_gpus=gpus, scheduling_strategy=PlacementGroupSchedulingStrategy(group, rank)
        ).remote()
        for rank in range(nodes)
    ]
    start_s = float(os.environ.get(REGISTER_TIMEOUT, "600")) + 60
    try:
        address = ray.get(actors[0].rendezvous.remote(), timeout=start_s)
    except ray.exceptions.GetTimeoutError:
        sys.exit(
            f"no process started on the first node within {start_s:.0f} s: if the disk is slow, raise "
            "hardware.worker_start_s"
        )
    running = [each.run.remote(rank, address, words) for rank, each in enumerate(actors)]
    while running:
        (ended, *_), running = ray.wait(running)
        if code := ray.get(ended):
            return int(code)
    return 0


if __name__ == "__main__":
    torchrun = sys.argv[4:]
    assert torchrun[:2] == TORCHRUN, "only torchrun is started on every node"
    sys.exit(run(int(sys.argv[1]), int(sys.argv[2]), [*filter(None, sys.argv[3].split(","))], torchrun[2:]))
