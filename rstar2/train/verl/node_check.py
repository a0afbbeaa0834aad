"""Examines every node of a Ray cluster: its packages, its GPUs, the run's folder, and the connection to the judge.

`python -m rstar2.train.verl.node_check` reads a request as JSON from standard input, and prints a JSON list of reports.
The first report is about this machine, and each further report is about one node. `rstar2.train.machine_checks`
compares the reports with each other.
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
"""With these variables, a Ray task that requests no GPU sees all GPUs of its node. Without these variables, Ray hides
the GPUs from a task that requests no GPU."""


def examine(
    name: str,
    marker: str | None = None,
    judge: list[str | None] | None = None,
    gpus: int = 0,
    try_gpus: str = "",
    gpus_s: float = 0.0,
) -> dict[str, Any]:
    """Examines the node on which the function runs. `examine` imports all modules itself, because the node may lack
    rstar2.

    Args:
        name: the node's name.
        marker: a file in the run's folder, which contains the file's own name. If None, the folder is not checked.
        judge: URL and token of the judge. If None, the judge is not checked.
        gpus: number of GPUs that must work.
        try_gpus: a program that prints a word for each GPU that works.
        gpus_s: maximum number of seconds that `try_gpus` may run.

    Returns:
        A report with the keys `node`, `versions` (of packages), `sources` (a digest of rstar2's code), `faults`
        (messages about permanent faults) and `away` (messages about faults that may go away).
    """
    import hashlib
    import importlib.metadata
    import importlib.util
    import os
    import pathlib
    import subprocess
    import sys

    report: dict[str, Any] = {"node": name, "versions": {}, "sources": None, "faults": [], "away": []}
    for package in PACKAGES:
        try:
            report["versions"][package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            report["versions"][package] = None
    spec = importlib.util.find_spec("rstar2")
    if spec is None or spec.origin is None:
        report["faults"].append("cannot import rstar2")
    else:
        digest = hashlib.sha256()
        root = pathlib.Path(spec.origin).parent
        for file in sorted(root.rglob("*.py")):
            digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
        report["sources"] = digest.hexdigest()
    if marker is not None:
        path = pathlib.Path(marker)
        try:
            if path.read_text(encoding="utf-8") != path.name:
                raise OSError("another file is there")
            path.with_name(f"{path.name}.{os.getpid()}.{os.urandom(4).hex()}").write_text(
                "x", encoding="utf-8"
            )
        except OSError as error:
            report["faults"].append(f"cannot read and write {path.parent}: {error.strerror or error}")
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
            report["faults"].append(
                f"has {gpus} GPUs by Ray, but PyTorch can use {usable} of them{limited}"
                + (f": {why}" if why else "")
            )
    if judge is not None and spec is not None:
        from rstar2.errors import RStarError
        from rstar2.loop.judge_check import try_judge

        try:
            try_judge(str(judge[0]), judge[1])
        except RStarError as error:
            report["faults" if error.exit_code == 2 else "away"].append(error.message)
    return report


def examine_all(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the reports of this machine and of each live node. Raises Ray's error if the cluster does not respond.

    Args:
        request: has the keys `address`, `marker`, `judge`, `try_gpus`, `gpus_s`, and `limit_s`. `limit_s` is the
            maximum number of seconds until all reports are there.
    """
    ray.init(address=request["address"], log_to_driver=False, logging_level="error")
    try:
        task = ray.remote(num_cpus=0, max_retries=0, runtime_env={"env_vars": ALL_GPUS})(examine)
        running = [
            task.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            ).remote(
                node["NodeManagerHostname"],
                request["marker"],
                request["judge"],
                int(node["Resources"].get("GPU", 0)),
                request["try_gpus"],
                request["gpus_s"],
            )
            for node in ray.nodes()
            if node["Alive"]
        ]
        return [examine("here"), *ray.get(running, timeout=request["limit_s"])]
    finally:
        ray.shutdown()


if __name__ == "__main__":
    print(json.dumps(examine_all(json.load(sys.stdin))))
