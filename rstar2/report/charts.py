"""The curves of a training run: the paper's figure 4, from the metrics of every step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_CURVES = (
    ("failed", "Failed calls inside correct traces", "share"),
    ("pass_rate", "Pass rate in training", "share"),
    ("tokens", "Mean tokens in training", "tokens"),
)

Chart = dict[str, Any]
"""JSON-able: `title`, `x`, `unit` (a `share` is shown in percent) and `series`, each with `name` and `points`,
which are [x, y] or [x, y, low, high]."""


def training_charts(run: Path) -> list[Chart]:
    """Means over the last steps, the run's own arm beside its plain GRPO where there is one."""
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
