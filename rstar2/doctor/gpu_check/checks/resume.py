"""Starts the command of the check `rl` again, and checks that the killed run continues until it is finished.

Each step subtracts a known share of every weight (`tools.training.RATE`). The weights of the finished model therefore
show how many steps were run, so that a lost or repeated step is detected.
"""

from __future__ import annotations

from pathlib import Path

from rstar2.doctor.gpu_check.check import Check, CheckFailed, Measurements, NotRun, Settings
from rstar2.doctor.gpu_check.checks import rl
from rstar2.doctor.gpu_check.tools import commands
from rstar2.doctor.gpu_check.tools.device import torch_device
from rstar2.terminal import percent

MOST_OFF = 1e-3
"""Maximum relative error that the norm of a tensor may have."""


def run(settings: Settings, measurements: Measurements) -> None:
    from rstar2.doctor.gpu_check.tools import training
    from rstar2.doctor.gpu_check.tools.model import random_model
    from rstar2.train.records.steps import step_metrics
    from rstar2.train.trainer.checkpoints import last_checkpoint

    torch_device(settings)
    stage = rl.run_folder(settings) / "stage1"
    saved = last_checkpoint(stage / "checkpoints")
    if saved is None:
        raise NotRun("the check `rl` saved no checkpoint", "Run both: --check rl --check resume.")
    before = int(saved.name.rpartition("_")[2])
    known = set(step_metrics(stage))
    commands.run(settings, CHECK.name, rl.words_of(settings))
    steps = {number: step for number, step in step_metrics(stage).items() if number not in known}
    measurements.add("last checkpoint before the kill", before)
    measurements.add("first step after it", min(steps, default=None))
    measurements.add("last step", max(steps, default=None))
    wrong = training.add_agreement(measurements, list(steps.values()))
    off = _off(random_model(settings), stage / "model", (1 - training.RATE) ** training.STEPS)
    measurements.add("largest error of a tensor's norm", off)
    if sorted(steps) != list(range(before + 1, training.STEPS + 1)):
        wrong.append(f"after the checkpoint of step {before} it ran the steps {sorted(steps)}")
    if not off <= MOST_OFF:
        wrong.append(f"the final weights are wrong: a tensor's norm is off by {percent(off)}")
    if wrong:
        raise CheckFailed("; ".join(wrong), "Keep the run (--keep), and report it with its logs.")
    measurements.summary = f"the same command continued after step {before}; the final weights are correct"


def _off(base: Path, trained: Path, factor: float) -> float:
    """Returns the largest relative error of the norms of a trained model's tensors.

    Each norm should be `factor` times the norm of the same tensor in the base model.
    """
    from safetensors import safe_open

    def norms(folder: Path) -> dict[str, float]:
        values: dict[str, float] = {}
        for path in folder.glob("*.safetensors"):
            with safe_open(path, "pt") as file:
                values |= {name: float(file.get_tensor(name).float().norm()) for name in file.keys()}  # noqa: SIM118 - not a dict
        return values

    old, new = norms(base), norms(trained)
    return max(abs(new[name] / (factor * norm) - 1) for name, norm in old.items())


CHECK = Check("resume", "Resume after the kill", run, limit_s=1500.0)
