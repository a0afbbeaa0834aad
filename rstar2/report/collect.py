"""What a run's folder holds for a reader: measured benchmarks, a summary, charts."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rstar2.errors import UserError
from rstar2.eval.results import Row, by_problem, problem_rows, summarise_rows
from rstar2.runs import load_config
from rstar2.trace import read_traces


@dataclass(frozen=True)
class Section:
    """One measured benchmark."""

    name: str
    traces: Path
    results: dict[str, Any]


@dataclass(frozen=True)
class RunPage:
    """What the page of a run is made from."""

    title: str
    kind: str
    config: dict[str, Any]
    sections: list[Section]
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
    found = sorted(run.glob("**/traces.jsonl"), key=lambda path: (path.stat().st_mtime, path))
    sections = [_section(path, run) for path in found]
    charts = _read_json(run / "charts.json") or []
    return RunPage(run.resolve().name, kind, config, sections, _read_json(run / "summary.json"), charts)


def _section(traces: Path, run: Path) -> Section:
    name = traces.parent.relative_to(run).as_posix()
    results = _read_json(traces.parent / "results.json")
    if results is None:
        groups = by_problem(Row.of(trace) for trace in read_traces(traces))
        results = {
            "complete": False,
            "summary": summarise_rows(groups),
            "per_problem": problem_rows(groups, {}),
        }
    return Section(run.resolve().name if name == "." else name, traces, results)


def _read_json(path: Path) -> Any:
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}", "Remove it and make the report again.") from error
