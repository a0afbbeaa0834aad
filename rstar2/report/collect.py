"""What a run's folder holds for a reader: measured benchmarks, a summary, charts."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rstar2.eval.stored import Measurement, measurements, read_json
from rstar2.runs import load_config


@dataclass(frozen=True)
class RunPage:
    """What the page of a run is made from."""

    title: str
    kind: str
    config: dict[str, Any]
    sections: list[Measurement]
    summary: dict[str, Any] | None = None
    """summary.json: `phases` of a staged run."""
    charts: list[dict[str, Any]] = field(default_factory=list)
    """charts.json: each `{"title", "x", "unit", "series": [{"name", "points": [[x, y, low, high], …]}]}`;
    low and high may be left out, and a `unit` of `share` is shown in percent."""


def collect(run: Path) -> RunPage:
    """Read a run's folder.

    Every folder below it with a traces.jsonl becomes a section, named after its path.

    Raises:
        UserError: it is no run, or a file in it is damaged.
    """
    kind, config = load_config(run)
    charts = read_json(run / "charts.json") or []
    return RunPage(
        run.resolve().name, kind, config, measurements(run), read_json(run / "summary.json"), charts
    )
