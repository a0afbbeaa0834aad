"""Curves over the steps of a training run, as in figure 4 of the rStar2-Agent paper (arXiv 2508.20722)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_CURVES = (
    ("failed", "Failed calls inside correct traces", "share"),
    ("pass_rate", "Pass rate in training", "share"),
    ("tokens", "Mean tokens in training", "tokens"),
)

Chart = dict[str, Any]
"""JSON-able: `title`, `x` (the x axis' label), `unit` (a "share" is shown in percent) and `series`, a list of
`name` and `points`, where a point is [x, y] or [x, y, low, high]."""


def training_charts(run: Path) -> list[Chart]:
    """Charts of the metrics of each training step, averaged over the last few steps; none without metrics.

    A run that also trained with plain GRPO, for comparison, has a second line in each chart.
    """
    from rstar2.train.curves import curve

    arms = {"GRPO-RoC": curve(run).smoothed(), "plain GRPO": curve(run / "plain").smoothed()}
    arms = {name: arm for name, arm in arms.items() if arm.steps}
    if len(arms) == 1:
        arms = {"this run": next(iter(arms.values()))}
    return [
        {
            "title": title,
            "x": "steps",
            "unit": unit,
            "series": [
                {"name": name, "points": list(zip(arm.steps, getattr(arm, field), strict=True))}
                for name, arm in arms.items()
            ],
        }
        for field, title, unit in _CURVES
        if arms
    ]
