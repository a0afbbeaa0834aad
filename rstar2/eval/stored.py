"""Reads the measured benchmarks that a run's folder holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.errors import UserError
from rstar2.eval.results import Row, by_problem, problem_rows, summarise
from rstar2.trace import read_traces


@dataclass(frozen=True)
class Measurement:
    """One measured benchmark."""

    name: str
    """The path of its folder, as seen from the run's; the run's own name where that is the folder."""
    traces: Path
    results: dict[str, Any]
    """results.json; its numbers are computed again from the traces where the run is not complete."""


def measurements(run: Path) -> list[Measurement]:
    """Every folder with a traces.jsonl in or below a run's folder, by name; UserError where a file is damaged."""
    return [_measurement(path, run) for path in sorted(run.glob("**/traces.jsonl"))]


def _measurement(traces: Path, run: Path) -> Measurement:
    name = traces.parent.relative_to(run).as_posix()
    results = read_json(traces.parent / "results.json") or {}
    if not results.get("complete"):
        # A start that was killed has written traces that no results.json knows of.
        results = {**results, **_from_traces(traces, results)}
    return Measurement(run.resolve().name if name == "." else name, traces, results)


def _from_traces(traces: Path, held: dict[str, Any]) -> dict[str, Any]:
    golds: dict[str, str] = {}
    rows = []
    for trace in read_traces(traces):
        golds[trace.problem_id] = trace.gold or ""
        rows.append(Row.of(trace))
    groups = by_problem(rows)
    found = {"complete": False, "summary": summarise(groups), "per_problem": problem_rows(groups, golds)}
    if "missing" in held:
        found["missing"] = held["missing"] + held["summary"]["samples"] - len(rows)
    return found


def read_json(path: Path) -> Any:
    """A JSON file's value, None where there is no such file; UserError where it cannot be read."""
    if not path.exists():
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}", "Remove it and run the command again.") from error
