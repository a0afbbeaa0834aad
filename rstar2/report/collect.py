"""Reads from a run's folder what its report shows: benchmark results, the summary of stages, charts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.eval.stored import Measurement, measurements, read_json
from rstar2.runs import load_config

_TRAINING_KINDS = ("demo", "train")
"""Kinds of runs with metrics of training steps."""
_CURVES = (
    ("failed", "Failed calls inside correct traces", "share"),
    ("pass_rate", "Pass rate in training", "share"),
    ("tokens", "Mean tokens in training", "tokens"),
)

Chart = dict[str, Any]
"""JSON-able: `title`, `x` (the x axis' label), `unit` (a "share" is shown in percent) and `series`, a list of
`name` and `points`, where a point is [x, y] or [x, y, low, high]."""


@dataclass(frozen=True)
class RunPage:
    """What the report page of a run is made from."""

    title: str
    """The name of the run's folder."""
    kind: str
    config: dict[str, Any]
    """`kind` and `config` of config.json."""
    sections: list[Measurement]
    """One per folder with a traces.jsonl, named after its path in the run's folder."""
    summary: dict[str, Any] | None
    """summary.json, which a run of several stages has: `phases` with the numbers of each."""
    charts: list[Chart]


def collect(run: Path) -> RunPage:
    """Read a run's folder.

    Raises:
        UserError: it is no run's folder, or a file in it is damaged.
    """
    kind, config = load_config(run)
    return RunPage(
        title=run.resolve().name,
        kind=kind,
        config=config,
        sections=measurements(run),
        summary=read_json(run / "summary.json"),
        charts=_training_charts(run) if kind in _TRAINING_KINDS else [],
    )


def _training_charts(run: Path) -> list[Chart]:
    """Charts of the metrics of each training step, averaged over the last few steps; none without metrics.

    As in figure 4 of the rStar2-Agent paper (arXiv 2508.20722). A run that also trained with plain GRPO has a
    second line in each chart.
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
