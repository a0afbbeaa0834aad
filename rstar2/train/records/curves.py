"""Curves of pass rate, failed calls and length of training rollouts over the steps, as in the paper's figure 4."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rstar2.train.records.steps import numbered_metrics

WINDOW = 5
"""A point of a smoothed curve is the mean over this many steps: the point's own step and the steps before it."""


@dataclass(frozen=True)
class Curve:
    """Metrics of all rollouts of each step, before the selection. All lists but `starts` have one entry per step."""

    steps: list[int]
    """The numbers of the steps, counted from 1 over all stages."""
    pass_rate: list[float]
    failed: list[float]
    """The share of failed calls among the calls of correct rollouts."""
    tokens: list[float]
    starts: list[int]
    """The first step of each stage."""

    def smoothed(self) -> Curve:
        """Returns a smoothed curve: each point is the mean over its own step and the `WINDOW` - 1 steps before it. NaN
        values are left out of a mean. A mean of only NaN values is NaN."""
        return Curve(
            self.steps, _trailing(self.pass_rate), _trailing(self.failed), _trailing(self.tokens), self.starts
        )


def curve(root: Path) -> Curve:
    """Reads the metrics of all stages of the run in `root`."""
    steps = list(numbered_metrics(root))
    rows = [metrics for _, _, _, metrics in steps]
    firsts: dict[int, int] = {}
    for number, stage, _, _ in steps:
        firsts.setdefault(stage, number)
    return Curve(
        steps=[number for number, _, _, _ in steps],
        pass_rate=[row["rstar2/pass_rate"] for row in rows],
        failed=[row["rstar2/failed_call_ratio_correct"] for row in rows],
        tokens=[row["rstar2/tokens"] for row in rows],
        starts=list(firsts.values()),
    )


def _trailing(values: list[float]) -> list[float]:
    windows = (np.array(values[max(0, i + 1 - WINDOW) : i + 1]) for i in range(len(values)))
    measured = (window[~np.isnan(window)] for window in windows)
    return [float(window.mean()) if window.size else math.nan for window in measured]
