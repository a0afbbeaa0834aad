"""What a run's folder holds for a reader: measured benchmarks, a summary, charts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rstar2.eval.stored import Measurement, measurements, read_json
from rstar2.report.charts import Chart, training_charts
from rstar2.runs import load_config

_TRAINED = ("demo", "train")
"""Kinds of runs that have curves."""


@dataclass(frozen=True)
class RunPage:
    """What the page of a run is made from."""

    title: str
    kind: str
    config: dict[str, Any]
    sections: list[Measurement]
    summary: dict[str, Any] | None = None
    """summary.json: `phases` of a staged run."""
    charts: list[Chart] = field(default_factory=list)


def collect(run: Path) -> RunPage:
    """Read a run's folder.

    Every folder below it with a traces.jsonl becomes a section, named after its path.

    Raises:
        UserError: it is no run, or a file in it is damaged.
    """
    kind, config = load_config(run)
    return RunPage(
        title=run.resolve().name,
        kind=kind,
        config=config,
        sections=measurements(run),
        summary=read_json(run / "summary.json"),
        charts=training_charts(run) if kind in _TRAINED else [],
    )
