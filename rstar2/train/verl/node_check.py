"""Examines every node of a Ray cluster: its packages, its GPUs, the run's folder, and the connection to the judge.

`python -m rstar2.train.verl.node_check` reads a request as JSON from standard input, and prints a JSON list of reports.
The first report is about this machine, and each further report is about one node. `rstar2.train.machine_checks`
compares the reports with each other.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

PACKAGES = ("rstar2", "verl", "torch", "vllm", "transformers", "ray", "flash-attn")
ALL_GPUS = dict.fromkeys(
    (f"RAY_EXPERIMENTAL_NOSET_{name}_VISIBLE_DEVICES" for name in ("CUDA", "HIP", "ROCR")), "1"
)
"""Environment variables that let a Ray task see all GPUs of its node, even if the task requests no GPU. By default, Ray
hides the GPUs from such a task."""


def examine(
    name: str,
    marker: str | None = None,
    judge: list[str | None] | None = None,
    gpus: int = 0,
    try_gpus: str = "",
    gpus_s: float = 0.0,
) -> dict[str, Any]:
    """Examines the node on which the function runs.

    Ray sends this function and its helpers as code, so a node may lack rstar2. The functions import rstar2 only if the
    node has it.

    Args:
        name: the node's name.
        marker: the path of a file in the run's folder, or None if the folder is not checked. The file contains its own
            name.
        judge: URL and token of the judge; None if the judge is not checked.
        gpus: number of GPUs that must work.
        try_gpus: a program that prints a word for each GPU that works.
        gpus_s: maximum number of seconds that `try_gpus` may run.

    Returns:
        A report with the keys `node`, `versions` (of packages), `sources` (a digest of rstar2's code), `faults`
        (messages about permanent faults) and `away` (messages about temporary faults).
    """
    sources = _digest_of_rstar2()
    faults = [
        "cannot import rstar2" if sources is None else "",
        "" if marker is None else _folder_fault(Path(marker)),
        _gpu_fault(gpus, try_gpus, gpus_s) if gpus else "",
    ]
    away = ""
    if judge is not None and sources is not None:
        from rstar2.errors import RStarError
        from rstar2.loop.judge_check import try_judge

        try:
            try_judge(str(judge[0]), judge[1])
        except RStarError as error:
            if error.exit_code == 2:
                faults.append(error.message)
            else:
                away = error.message
    return {
        "node": name,
        "versions": {package: _version(package) for package in PACKAGES},
        "sources": sources,
        "faults": [fault for fault in faults if fault],
        "away": [away] if away else [],
    }


def _version(package: str) -> str | None:
    """Returns the version of a package, or None if the package is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _digest_of_rstar2() -> str | None:
    """Returns the SHA-256 digest of the names and contents of rstar2's Python files, or None if rstar2 cannot be
    imported."""
    spec = importlib.util.find_spec("rstar2")
    if spec is None or spec.origin is None:
        return None
    digest = hashlib.sha256()
    root = Path(spec.origin).parent
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root)}\0".encode() + file.read_bytes())
    return digest.hexdigest()


def _folder_fault(marker: Path) -> str:
    """Returns the reason why the run's folder cannot be read or written, or "" if it can be read and written."""
    try:
        if marker.read_text(encoding="utf-8") != marker.name:
            raise OSError("another file is there")
        written = marker.with_name(f"{marker.name}.{os.getpid()}.{os.urandom(4).hex()}")
        written.write_text("x", encoding="utf-8")
    except OSError as error:
        return f"cannot read and write {marker.parent}: {error.strerror or error}"
    return ""


def _gpu_fault(gpus: int, try_gpus: str, gpus_s: float) -> str:
    """Returns the reason why fewer than `gpus` GPUs work, or "" if at least `gpus` work. For the arguments, see
    `examine`."""
    try:
        completed = subprocess.run(
            [sys.executable, "-c", try_gpus], capture_output=True, text=True, timeout=gpus_s, check=False
        )
        usable, lines = len(completed.stdout.split()), completed.stderr.split("\n")
        why = next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")
    except subprocess.TimeoutExpired as error:
        usable, why = len((error.stdout or b"").split()), f"the GPU test did not finish within {gpus_s:.0f} s"
    if usable >= gpus:
        return ""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    limited = f" (CUDA_VISIBLE_DEVICES={visible})" if visible is not None else ""
    fault = f"has {gpus} GPUs according to Ray, but PyTorch can use {usable} of them{limited}"
    return f"{fault}: {why}" if why else fault


def examine_all(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the reports of this machine and of each live node. Raises Ray's error if the cluster does not respond.

    Args:
        request: has the keys `address`, `marker`, `judge`, `try_gpus`, `gpus_s`, and `limit_s`. `limit_s` is the
            timeout in seconds for all reports together.
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
