"""Asks a Ray cluster for the GPUs of its nodes: `python -m rstar2.train.verl.cluster ADDRESS` prints a JSON list."""

from __future__ import annotations

import json
import sys

import ray


def gpus_by_node(address: str) -> list[float]:
    """The GPUs of each live node; raises what Ray raises where no cluster answers."""
    ray.init(address=address, log_to_driver=False, logging_level="error")
    try:
        return [node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()


if __name__ == "__main__":
    print(json.dumps(gpus_by_node(sys.argv[1])))
