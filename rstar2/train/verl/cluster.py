"""Counts the GPUs of a Ray cluster.

`python -m rstar2.train.verl.cluster ADDRESS` prints a JSON list with the number of GPUs of each node.
"""

from __future__ import annotations

import json
import sys

import ray


def gpus_by_node(address: str) -> list[float]:
    """Returns the number of GPUs of each live node. Raises Ray's error if no cluster responds at the address."""
    ray.init(address=address, log_to_driver=False, logging_level="error")
    try:
        return [node["Resources"].get("GPU", 0.0) for node in ray.nodes() if node["Alive"]]
    finally:
        ray.shutdown()


if __name__ == "__main__":
    print(json.dumps(gpus_by_node(sys.argv[1])))
