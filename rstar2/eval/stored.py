"""Stores graded samples, as whole traces or as verdicts alone, and finds the measured benchmarks in a folder."""

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
"""Dict from a problem's id to the problem's rows."""


@dataclass(frozen=True)
class SampleRecord:
    """Defines how samples are stored in a file of JSON Lines."""

    file: str
    """Name of the file in the benchmark's folder."""
    line: Callable[[Trace], str]
    """Returns the line of a sample, without the line break."""
    row: Callable[[Trace], Row]
    """Returns the row that represents a sample in memory. The row equals the row that `read` returns for the sample's
    line."""
    read: Callable[[Path], Iterator[Row]]
    """Reads the rows of a file. A last line that was not completely written is ignored. Raises UserError if another
    line is damaged."""
    summary: Callable[[Groups], dict[str, Any]]
    """Computes the numbers of a benchmark."""
    per_problem: Callable[[Groups, dict[str, str]], list[dict[str, Any]]]
    """Computes the table of problems from the rows of each problem and the gold answer of each problem."""
    beside: SampleRecord | None = None
    """A second record of the samples. The run also writes the file of this record, but never reads it."""
    errors: bool = False
    """Whether a sample that the engine refuses is stored with the verdict `error`. If so, the next launch makes the
    sample again. If False, a refused sample is missing from the file, and the run ends with
    `rstar2.eval.run.SamplesRefused`."""
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
"""Stores the problem's id, the sample's number and the verdict. The table of problems in this record says how often
each problem was solved."""


@dataclass(frozen=True)
class Measurement:
    """One measured benchmark."""

    name: str
    """Path of the benchmark's folder, relative to the folder that is searched for benchmarks. If the benchmark's folder
    is this folder itself, `name` is the folder's name."""
    traces: Path
    """The file of traces."""
    results: dict[str, Any]
    """Content of results.json. If the benchmark is not complete, the numbers are computed again from the traces."""
    problems: str | None = None
    """Digest of all problems of the benchmark (`rstar2.data.benchmarks.fingerprint`). None if the digest was not
    stored."""


def measurements(run: Path) -> list[Measurement]:
    """Returns the benchmarks that were measured in a run's folder, sorted by path. A benchmark's folder has a
    traces.jsonl, and may be the run's folder itself.

    Raises:
        UserError: a file is damaged.
    """
    return [_measurement(path, run) for path in sorted(run.glob("**/traces.jsonl"))]


def _measurement(traces: Path, run: Path) -> Measurement:
    name = traces.parent.relative_to(run).as_posix()
    protocol = read_json(traces.parent / "settings.json") or {}
    problems = protocol.pop("problems", None)
    results = {"settings": protocol, **(read_json(traces.parent / "results.json") or {})}
    if not results.get("complete"):
        # A killed launch has written traces that results.json does not count.
        results = {**results, **_from_traces(traces, results)}
    return Measurement(run.resolve().name if name == "." else name, traces, results, problems)


def _from_traces(traces: Path, stored: dict[str, Any]) -> dict[str, Any]:
    """Compute the numbers of an incomplete benchmark.

    `stored` is the content of the benchmark's results.json, which may be empty.
    """
    # The gold answers in results.json are the problems' own. Those of GPQA's traces are letters.
    golds = {row["id"]: row["gold"] for row in stored.get("per_problem", ())}
    rows = []
    for trace in read_traces(traces):
        golds.setdefault(trace.problem_id, trace.gold or "")
        rows.append(Row.of(trace))
    groups = by_problem(rows)
    summary = summarise(groups)
    if "scores" in summary:
        summary["scores"] = with_combined(stored.get("benchmark", traces.parent.name), summary["scores"])
    results = {"complete": False, "summary": summary, "per_problem": problem_rows(groups, golds)}
    if left_out := stored.get("summary", {}).get("left_out"):
        summary["left_out"] = left_out
    if "missing" in stored:
        results["missing"] = stored["missing"] + stored["summary"]["samples"] - len(rows)
    return results
