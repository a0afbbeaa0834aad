"""What a run keeps of each graded sample, its whole trace or its verdict alone, and the benchmarks a folder holds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import starmap
from pathlib import Path
from typing import Any, cast

from rstar2.eval.benchmarks import with_combined
from rstar2.eval.results import Row, by_problem, problem_rows, summarise
from rstar2.eval.verdicts import VerdictWord, read_verdicts, verdict_line
from rstar2.files import read_json
from rstar2.loop.trace import Trace, read_traces

Groups = dict[str, list[Row]]
"""The rows of each problem, by its id."""


@dataclass(frozen=True)
class SampleRecord:
    """One way to keep samples, as JSON lines."""

    file: str
    """Its name in the benchmark's folder."""
    line: Callable[[Trace], str]
    row: Callable[[Trace], Row]
    """What is held in memory of a sample: the same as `read` gives for its line."""
    read: Callable[[Path], Iterator[Row]]
    """The rows of a file; a torn last line is left out. UserError where another line is damaged."""
    summary: Callable[[Groups], dict[str, Any]]
    per_problem: Callable[[Groups, dict[str, str]], list[dict[str, Any]]]
    """From the rows and the gold answers, by problem."""
    beside: SampleRecord | None = None
    """Another record that is written too, and not read again."""
    errors: bool = False
    """Whether a sample that an engine refuses is recorded with the verdict `error`. The next start samples it again.
    Otherwise it is missing, and the run ends with `rstar2.eval.run.SamplesRefused`."""
    results: bool = True
    """Whether results.json is written."""


def _rows_of_traces(path: Path) -> Iterator[Row]:
    return map(Row.of, read_traces(path))


def _verdict(trace: Trace) -> VerdictWord:
    return cast(VerdictWord, trace.verdict or "unparsed")


def _verdict_row(name: str, sample: int, verdict: VerdictWord) -> Row:
    return Row(name, sample, sys.intern(verdict), None, "answer", 0, 0, 0, 0, "", None, None)


def _agreement(groups: Groups) -> dict[str, Any]:
    rows = [row for group in groups.values() for row in group]
    correct = sum(row.correct for row in rows)
    measured = sum(map(bool, groups.values()))
    return {"problems": measured, "samples": len(rows), "correct": correct}


def _agreement_by_problem(groups: Groups, golds: dict[str, str]) -> list[dict[str, Any]]:
    return [
        {"id": name, "samples": len(rows), "correct": sum(row.correct for row in rows)}
        for name, rows in groups.items()
        if rows
    ]


TRACES = SampleRecord("traces.jsonl", Trace.model_dump_json, Row.of, _rows_of_traces, summarise, problem_rows)
VERDICTS = SampleRecord(
    "verdicts.jsonl",
    lambda trace: verdict_line(trace.problem_id, trace.sample, _verdict(trace)),
    lambda trace: _verdict_row(trace.problem_id, trace.sample, _verdict(trace)),
    lambda path: starmap(_verdict_row, read_verdicts(path)),
    _agreement,
    _agreement_by_problem,
)
"""The id of the problem, the number of the sample and the verdict; how often each problem was solved."""


@dataclass(frozen=True)
class Measurement:
    """One measured benchmark."""

    name: str
    """The path of its folder, as seen from the run's; the run's own name where that is the folder."""
    traces: Path
    results: dict[str, Any]
    """results.json; its numbers are computed again from the traces where the run is not complete."""
    problems: str | None = None
    """The digest of all problems that it is to measure (`rstar2.data.benchmarks.fingerprint`), where it kept one."""


def measurements(run: Path) -> list[Measurement]:
    """Every folder with a traces.jsonl in or below a run's folder, by name; UserError where a file is damaged."""
    return [_measurement(path, run) for path in sorted(run.glob("**/traces.jsonl"))]


def _measurement(traces: Path, run: Path) -> Measurement:
    name = traces.parent.relative_to(run).as_posix()
    protocol = read_json(traces.parent / "settings.json") or {}
    problems = protocol.pop("problems", None)
    results = {"settings": protocol, **(read_json(traces.parent / "results.json") or {})}
    if not results.get("complete"):
        # A start that was killed has written traces that no results.json knows of.
        results = {**results, **_from_traces(traces, results)}
    return Measurement(run.resolve().name if name == "." else name, traces, results, problems)


def _from_traces(traces: Path, held: dict[str, Any]) -> dict[str, Any]:
    # Of a stopped run: the problems' own golds, where a trace of GPQA has a letter.
    golds = {row["id"]: row["gold"] for row in held.get("per_problem", ())}
    rows = []
    for trace in read_traces(traces):
        golds.setdefault(trace.problem_id, trace.gold or "")
        rows.append(Row.of(trace))
    groups = by_problem(rows)
    summary = summarise(groups)
    if "scores" in summary:
        summary["scores"] = with_combined(held.get("benchmark", traces.parent.name), summary["scores"])
    found = {"complete": False, "summary": summary, "per_problem": problem_rows(groups, golds)}
    if left_out := held.get("summary", {}).get("left_out"):
        summary["left_out"] = left_out
    if "missing" in held:
        found["missing"] = held["missing"] + held["summary"]["samples"] - len(rows)
    return found
