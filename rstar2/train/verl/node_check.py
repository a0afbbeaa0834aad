"""Runs a task on every node of a Ray cluster that says what is there: packages, GPUs, the run's folder, the judge.

`python -m rstar2.train.verl.node_check` reads what to check as JSON from standard input and prints a JSON list: first
this machine, then each node. `rstar2.train.machine_checks` compares them.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PACKAGES = ("rstar2", "verl", "torch", "vllm", "transformers", "ray", "flash-attn")
ALL_GPUS = dict.fromkeys(
    (f"RAY_EXPERIMENTAL_NOSET_{name}_VISIBLE_DEVICES" for name in ("CUDA", "HIP", "ROCR")), "1"
)
"""With these variables Ray leaves a task that asks for no GPU those that its node has; else it hides them."""


def examine(
    name: str,
    marker: str | None = None,
    judge: list[str | None] | None = None,
    gpus: int = 0,
    try_gpus: str = "",
    gpus_s: float = 0.0,
) -> dict[str, Any]:
    """What a node has, and what is wrong there: `faults` for good, `away` what may pass.

    It imports everything by itself: a node may lack rstar2.

    `try_gpus` is a program that prints a word for each GPU that works; `gpus` of them have to, within `gpus_s` seconds.
    """
    import hashlib
    import importlib.metadata
    import importlib.util
    import os
    import pathlib
    import subprocess
    import sys

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
    if gpus:
        try:
            tried = subprocess.run(
                [sys.executable, "-c", try_gpus], capture_output=True, text=True, timeout=gpus_s, check=False
            )
            usable, lines = len(tried.stdout.split()), tried.stderr.split("\n")
            why = next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
        except subprocess.TimeoutExpired as error:
            usable, why = len((error.stdout or b"").split()), f"they did not finish within {gpus_s:.0f} s"
        if usable < gpus:
            visible = os.environ.get("CUDA_VISIBLE_DEVICES")
            limited = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
            found["faults"].append(
                f"has {gpus} GPUs by Ray, but PyTorch can use {usable} of them{limited}"
                + (f": {why}" if why else "")
            )
    if judge is not None and spec is not None:
        from rstar2.errors import RStarError
        from rstar2.loop.judge_check import try_judge

        try:
            try_judge(str(judge[0]), judge[1])
        except RStarError as error:
            found["faults" if error.exit_code == 2 else "away"].append(error.message)
    return found


def examine_all(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """This machine and each live node; raises what Ray raises if the cluster does not answer in time."""
    ray.init(address=asked["address"], log_to_driver=False, logging_level="error")
    try:
        task = ray.remote(num_cpus=0, max_retries=0, runtime_env={"env_vars": ALL_GPUS})(examine)
        running = [
            task.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(
                node["NodeManagerHostname"],
                asked["marker"],
                asked["judge"],
                int(node["Resources"].get("GPU", 0)),
                asked["try_gpus"],
                asked["gpus_s"],
            )
            for node in ray.nodes()
            if node["Alive"]
        ]
        return [examine("here"), *ray.get(running, timeout=asked["limit_s"])]
    finally:
        ray.shutdown()


if __name__ == "__main__":
    print(json.dumps(examine_all(json.load(sys.stdin))))
