"""Assumptions for an estimate, measured in an earlier run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import get_args

from rstar2.errors import UserError
from rstar2.loop.trace import CallStatus
from rstar2.train.estimate.work import Assumptions
from rstar2.train.recipe import STAGES
from rstar2.train.records.steps import Metrics, step_metrics

CALLS = "rstar2/calls"
FAILED_CALLS = [f"{CALLS}/{status}" for status in get_args(CallStatus) if status not in ("ok", "lost")]
"""Names of the metrics for failed calls. Each metric is the share of all calls that failed with one status."""


def measured_assumptions(run: Path) -> Assumptions:
    """Returns the assumptions from the last stage that has steps.

    Args:
        run: the folder of a run, or of a stage.

    Raises:
        UserError: neither the folder nor a stage in it has steps.
    """
    folders = [step_metrics(folder) for folder in (*(run / f"stage{number}" for number in STAGES), run)]
    stages = [list(steps.values()) for steps in folders if steps]
    if not stages:
        raise UserError(
            f"no training steps in {run}",
            "Name the folder of a run of rstar2 train or demo, or of one of its stages.",
        )
    return assumptions_of(stages[-1])


def assumptions_of(steps: Sequence[Metrics]) -> Assumptions:
    """Returns the assumptions from a stage's steps. An assumption keeps its default if no step has a value for it."""

    def measured(*metrics: str) -> list[tuple[float, ...]]:
        """Returns the values of the named metrics for each step that has all of them."""
        rows = (tuple(float(step.get(metric, math.nan)) for metric in metrics) for step in steps)
        return [values for values in rows if all(map(math.isfinite, values))]

    def mean(metric: str, otherwise: float) -> float:
        return fmean([value for (value,) in measured(metric)] or [otherwise])

    usual = Assumptions()
    updates = measured("response_length/mean", "rstar2/dropped_groups")
    # The step that trained on the most tokens needs the most memory.
    tokens, dropped = max(updates, key=lambda each: each[0] * (1 - each[1]), default=(None, 0.0))
    rollouts = measured("rstar2/rollouts", "rstar2/saved_rollouts")
    failed = [calls * sum(shares) for calls, *shares in measured(CALLS, *FAILED_CALLS)]
    recoveries = measured("rstar2/recover/rollouts", "rstar2/recover/failed", "rstar2/recover/tokens")
    finished = sum(each[0] - each[1] for each in recoveries)
    run_counts, saved_counts = [each[0] for each in rollouts], [each[1] for each in rollouts]
    return Assumptions(
        mean_tokens=fmean(value for (value,) in lengths) if (lengths := measured("rstar2/tokens")) else None,
        tokens_of_largest_step=tokens,
        mean_prompt_tokens=mean("prompt_length/mean", usual.mean_prompt_tokens),
        trained_groups=1.0 - dropped,
        calls_per_rollout=mean("rstar2/calls", usual.calls_per_rollout),
        failed_calls_per_rollout=fmean(failed) if failed else None,
        recovery_tokens=sum(each[2] for each in recoveries) / finished if finished else None,
        made_share=sum(run_counts) / (sum(run_counts) + sum(saved_counts))
        if sum(run_counts)
        else usual.made_share,
    )
