"""What a run's rollouts were like, so that the next one is calculated with that instead of with assumptions."""

from __future__ import annotations

import math
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
    """What a stage's steps say of rollouts; what none of them measured is assumed as before."""

    def measured(metric: str) -> list[float]:
        found = (float(step.get(metric, math.nan)) for step in steps)
        return [value for value in found if math.isfinite(value)]

    usual, tokens = Assumptions(), measured("rstar2/tokens")
    return Assumptions(
        mean_tokens=fmean(tokens) if tokens else None,
        longest_step=max(measured("response_length/mean"), default=None),
        mean_prompt_tokens=fmean(measured("prompt_length/mean") or [usual.mean_prompt_tokens]),
        trained_groups=1.0 - min(measured("rstar2/dropped_groups"), default=0.0),
        calls_per_rollout=fmean(measured("rstar2/calls") or [usual.calls_per_rollout]),
    )
