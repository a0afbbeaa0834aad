"""What a run's rollouts were like, so that the next one is calculated with that instead of with assumptions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rstar2.errors import UserError
from rstar2.train.estimate.work import Assumptions
from rstar2.train.recipe import STAGES
from rstar2.train.records.steps import Metrics, step_metrics


def measured_assumptions(run: Path) -> Assumptions:
    """Of the last stage that has steps in a run's folder, or of a stage's own folder.

    A UserError where no step was trained there.
    """
    stages = [step_metrics(folder) for folder in (*(run / f"stage{number}" for number in STAGES), run)]
    found = [list(steps.values()) for steps in stages if steps]
    if not found:
        raise UserError(
            f"no step of training in {run}",
            "Give the folder of a run of rstar2 train or demo, or of one of its stages.",
        )
    return assumptions_of(found[-1])


def assumptions_of(steps: Sequence[Metrics]) -> Assumptions:
    """What a stage's steps say of rollouts."""

    def mean(key: str) -> float:
        return fmean(float(step[key]) for step in steps)

    return Assumptions(
        mean_tokens=mean("rstar2/tokens"),
        mean_prompt_tokens=mean("prompt_length/mean"),
        trained_groups=1.0 - min(float(step["rstar2/dropped_groups"]) for step in steps),
        calls_per_rollout=mean("rstar2/calls"),
    )
