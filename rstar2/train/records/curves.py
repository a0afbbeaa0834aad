"""Pass rate, failed calls and length of the training rollouts, per step (the paper's figure 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rstar2.train.records.steps import numbered_metrics

WINDOW = 5
"""Steps that a smoothed point averages, itself the last."""


@dataclass(frozen=True)
class Curve:
    """Measured on all rollouts of a step, before RoC selects. Lists of equal length."""

    steps: list[int]
    """From 1, counted over all stages."""
    pass_rate: list[float]
    failed: list[float]
    """Failed calls among the calls of correct traces."""
    tokens: list[float]
    starts: list[int]
    """The first step of each stage."""

    def smoothed(self) -> Curve:
        """Means over the last WINDOW steps, of what was measured in them; NaN where nothing was."""
        return Curve(
            self.steps, _trailing(self.pass_rate), _trailing(self.failed), _trailing(self.tokens), self.starts
        )


def curve(root: Path) -> Curve:
    """Read the metrics of the stages below `root`."""
    found = list(numbered_metrics(root))
    rows = [metrics for _, _, _, metrics in found]
    firsts: dict[int, int] = {}
    for number, stage, _, _ in found:
        firsts.setdefault(stage, number)
    return Curve(
        steps=[number for number, _, _, _ in found],
        pass_rate=[row["rstar2/pass_rate"] for row in rows],
        failed=[row["rstar2/failed_call_ratio_correct"] for row in rows],
        tokens=[row["rstar2/tokens"] for row in rows],
        starts=list(firsts.values()),
    )


def _trailing(values: list[float]) -> list[float]:
    windows = (np.array(values[max(0, i + 1 - WINDOW) : i + 1]) for i in range(len(values)))
    measured = (window[~np.isnan(window)] for window in windows)
    return [float(window.mean()) if window.size else math.nan for window in measured]
