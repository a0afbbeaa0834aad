"""Runs the demo as a user would, with changed settings."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BOUND_S = 3600.0
EVICTED = "training/off_policy/evicted_samples"
"""Metrics that only the sampler of the asynchronous modes writes, in every step."""


def start(run: Path, changes: list[str]) -> subprocess.Popen[bytes]:
    """Start `rstar2 demo --run RUN` with these settings. Its output goes to a file beside the run."""
    argv = [sys.executable, "-m", "rstar2", "demo", "--run", str(run)]
    for change in changes:
        argv += ["--set", change]
    return subprocess.Popen(argv, stdout=output(run).open("ab"), stderr=subprocess.STDOUT)


def output(run: Path) -> Path:
    """Return the file with a demo's output."""
    return run.parent / f"{run.name}.out"


def finish(process: subprocess.Popen[bytes], run: Path) -> dict[str, Any]:
    """Wait until a demo ends, which must succeed. Returns its summary."""
    code = process.wait(BOUND_S)
    assert code == 0, output(run).read_text()[-3000:]
    summary: dict[str, Any] = json.loads((run / "summary.json").read_text())
    return summary


def adam_steps(stage: Path) -> int:
    """Return AdamW's update count in the last checkpoint of a stage."""
    import torch

    last = max(stage.glob("checkpoints/global_step_*"), key=lambda path: int(path.name.rpartition("_")[2]))
    state = torch.load(last / "actor" / "optim_world_size_1_rank_0.pt", weights_only=False)["state"]
    [steps] = {int(each["step"]) for each in state.values()}
    return steps
