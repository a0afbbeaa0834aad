"""Runs a task on every node of a Ray cluster that says what is there: packages, the run's folder, the judge.

`python -m rstar2.train.verl.node_check` reads what to check as JSON from standard input and prints a JSON list: first
this machine, then each node. `rstar2.train.machine_checks` compares them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PACKAGES = ("rstar2", "verl", "torch", "vllm", "transformers", "ray")


def examine(name: str, marker: str | None, judge: list[str | None] | None) -> dict[str, Any]:
    """What a node has, and what is wrong there: `faults` for good, `away` what may pass.

    It imports everything by itself: a node may lack rstar2.
    """
    import hashlib
    import importlib.metadata
    import importlib.util
    import os
    import pathlib

    found: dict[str, Any] = {"node": name, "versions": {}, "sources": None, "faults": [], "away": []}
    for package in PACKAGES:
        try:
            found["versions"][package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found["versions"][package] = None
    spec = importlib.util.find_spec("rstar2")
    if spec is None or spec.origin is None:
        found["faults"].append("cannot import rstar2")
    else:
        digest = hashlib.sha256()
        root = pathlib.Path(spec.origin).parent
        for file in sorted(root.rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
        found["sources"] = digest.hexdigest()
    if marker is not None:
        path = pathlib.Path(marker)
        try:
            if path.read_text(encoding="utf-8") != path.name:
                raise OSError("another file is there")
            path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}").write_text(
                "x", encoding="utf-8"
            )
        except OSError as error:
            found["faults"].append(f"cannot read and write {path.parent}: {error.strerror or error}")
    if judge is not None and spec is not None:
        from rstar2.errors import RStarError
        from rstar2.judge_check import try_judge

        try:
            try_judge(str(judge[0]), judge[1])
        except RStarError as error:
            found["faults" if error.exit_code == 2 else "away"].append(error.message)
    return found


def examine_all(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """This machine and each live node; raises what Ray raises if the cluster does not answer in time."""
    ray.init(address=asked["address"], log_to_driver=False, logging_level="error")
    try:
        task = ray.remote(num_cpus=0, max_retries=0)(examine)
        nodes = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
        running = [
            task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
                name, asked["marker"], asked["judge"]
            )
            for node, name in nodes.items()
        ]
        return [examine("here", None, None), *ray.get(running, timeout=asked["limit_s"])]
    finally:
        ray.shutdown()


if __name__ == "__main__":
    print(json.dumps(examine_all(json.load(sys.stdin))))
