"""Reads from a run's folder what its report shows: benchmark results, the summary of stages, charts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rstar2.eval.stored import Measurement, measurements, read_json
from rstar2.report.charts import Chart, training_charts
from rstar2.runs import load_config

_TRAINING_KINDS = ("demo", "train")
"""Kinds of runs with metrics of training steps."""


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
    summary: dict[str, Any] | None = None
    """summary.json, which a run of several stages has: `phases` with the numbers of each."""
    charts: list[Chart] = field(default_factory=list)


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
        charts=training_charts(run) if kind in _TRAINING_KINDS else [],
    )
