"""Computes the numbers of a benchmark from its graded traces.

Each trace is reduced to a short row, so that a run of any size fits in memory.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from rstar2.eval import statistics
from rstar2.eval.grader.outcomes import Missed, missed
from rstar2.loop.trace import FINISHED, Trace


@dataclass(frozen=True, slots=True)
class Row:
    """The facts about one graded trace from which the numbers of a benchmark are computed."""

    problem_id: str
    sample: int
    verdict: str
    extracted: str | None
    finish: str
    tokens: int
    calls: int
    failed_calls: int
    lost_calls: int
    read_by: str
    paper_correct: bool | None
    """Whether the answer is correct under the paper's reading rule. None if the paper's reading rule does not apply, as
    in benchmarks that a harness scores."""
    scores: dict[str, list[float]] | None
    """Dict from the name of each of the benchmark's own scores to its values in this sample."""
    ballot: str | None = None
    """The answer for which this sample votes in maj@n. If None, the sample votes for `extracted`."""
    rule: str = ""
    """The grader's rule that decided the verdict."""
    failed_turns: int = 0
    """Number of turns with a failed call."""
    repaired_turns: int = 0
    """Number of turns with a failed call that were followed by a turn in which all calls succeeded."""

    @classmethod
    def of(cls, trace: Trace) -> Row:
        return cls(
            problem_id=trace.problem_id,
            sample=trace.sample,
            verdict=trace.verdict or "unparsed",
            extracted=trace.extracted,
            finish=trace.finish,
            tokens=trace.tokens,
            calls=len(trace.calls),
            failed_calls=trace.failed_calls,
            lost_calls=trace.lost_calls,
            read_by=trace.read_by,
            paper_correct=trace.paper_correct,
            scores=trace.scores,
            ballot=trace.ballot,
            rule=sys.intern(trace.rule),
            failed_turns=len(failed := trace.failed_turns),
            repaired_turns=sum(turn.repaired for turn in failed),
        )

    @property
    def correct(self) -> bool:
        return self.verdict == "correct"

    @property
    def missed(self) -> Missed | None:
        """Why the answer is not correct. None if the answer is correct."""
        return missed(self)

    @property
    def no_answer(self) -> bool:
        return self.missed == "no_answer"

    @property
    def could_not_verify(self) -> bool:
        """Whether the trace has, or may have, an answer on which the grader could not decide."""
        return self.missed not in (None, "wrong", "no_answer")


def by_problem(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by problem. Problems are in the order in which they first appear, and the rows of a problem are in the
    order of their sample numbers."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.problem_id, []).append(row)
    return {name: sorted(group, key=lambda row: row.sample) for name, group in groups.items()}


def summarise(groups: dict[str, list[Row]]) -> dict[str, Any]:
    """Compute the summary of a benchmark from the rows of its problems.

    A number in the summary is None if it cannot be computed from the rows. For example, the share of failed calls is
    None if there are no calls. `samples` is the number of traces, and `n` is the smallest number of samples that a
    problem has.
    """
    groups = {name: group for name, group in groups.items() if group}
    rows = [row for group in groups.values() for row in group]
    if not rows:
        return {"accuracy": None, "problems": 0, "samples": 0, "n": 0}
    correct = [[row.correct for row in group] for group in groups.values()]
    average = statistics.avg_at_n(correct)
    right = [row for row in rows if row.correct]
    calls_right = sum(row.calls for row in right)
    failed_turns = sum(row.failed_turns for row in rows)
    tokens = np.array([row.tokens for row in rows], dtype=np.int64)
    return {
        "accuracy": average.mean,
        "interval_clustered": [average.by_problem.low, average.by_problem.high],
        "interval_run_to_run": [average.run_to_run.low, average.run_to_run.high],
        "problems": len(groups),
        "samples": len(rows),
        "n": min(len(group) for group in groups.values()),
        "correct": len(right),
        "paper_accuracy": _paper_accuracy(groups),
        "read_by": dict(Counter(row.read_by for row in rows if row.read_by and not row.no_answer)),
        "pass@k": _pass_at_k(correct),
        "maj@n": _maj_at_n(groups, correct),
        "failed_call_ratio_correct": _share(sum(row.failed_calls for row in right), calls_right),
        "failed_call_ratio": _share(sum(row.failed_calls for row in rows), sum(row.calls for row in rows)),
        "repaired_share": _share(sum(row.repaired_turns for row in rows), failed_turns),
        "answered_after_failure_share": _share(sum(row.failed_turns for row in right), failed_turns),
        "calls_per_trace": sum(row.calls for row in rows) / len(rows),
        "tool_use_share": sum(row.calls > 0 for row in rows) / len(rows),
        "lost_calls": sum(row.lost_calls for row in rows),
        "mean_tokens": float(tokens.mean()),
        "p95_tokens": float(np.percentile(tokens, 95)),
        "no_answer_share": sum(row.no_answer for row in rows) / len(rows),
        "truncated_share": sum(row.finish not in FINISHED for row in rows) / len(rows),
        "content_filtered": sum(row.finish == "content_filter" for row in rows),
        "refusals": sum(row.finish == "refusal" for row in rows),
        "format_ends": sum(row.finish == "format" for row in rows),
        "could_not_verify_share": sum(row.could_not_verify for row in rows) / len(rows),
        "could_not_verify": dict(Counter(str(row.missed) for row in rows if row.could_not_verify)),
        **_scores(groups),
    }


def problem_rows(groups: dict[str, list[Row]], golds: dict[str, str]) -> list[dict[str, Any]]:
    """Returns the table of problems: one object per problem, which can be written as JSON.

    `golds` contains the gold answer of each problem. In a returned object, `scores` is a dict from a score's name to
    its values.
    """
    return [
        {
            "id": name,
            "gold": golds.get(name),
            "samples": len(group),
            "correct": sum(row.correct for row in group),
            "accuracy": sum(row.correct for row in group) / len(group),
            "mean_tokens": sum(row.tokens for row in group) / len(group),
            "calls_per_trace": sum(row.calls for row in group) / len(group),
            "no_answer": sum(row.no_answer for row in group),
            "truncated": sum(row.finish not in FINISHED for row in group),
            "could_not_verify": sum(row.could_not_verify for row in group),
            **({"scores": scores} if (scores := _scores_of(group)) else {}),
        }
        for name, group in groups.items()
        if group
    ]


def _scores(groups: dict[str, list[Row]]) -> dict[str, Any]:
    """Returns a dict with the key `scores`, which contains the mean of each score with its interval clustered by
    problem.

    Returns an empty dict if the rows have no scores.
    """
    by_score: dict[str, list[list[float]]] = {}
    for group in groups.values():
        for name, values in _scores_of(group).items():
            by_score.setdefault(name, []).append(values)
    scores = {}
    for name, entries in by_score.items():
        pooled = statistics.pooled_mean(entries)
        scores[name] = {
            "value": pooled.mean,
            "interval": [pooled.by_problem.low, pooled.by_problem.high],
            "problems": len(entries),
        }
    return {"scores": scores} if scores else {}


def _scores_of(group: list[Row]) -> dict[str, list[float]]:
    """Returns the values of each score in all samples of a problem."""
    entries: dict[str, list[float]] = {}
    for row in group:
        for name, values in (row.scores or {}).items():
            entries.setdefault(name, []).extend(values)
    return entries


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _paper_accuracy(groups: dict[str, list[Row]]) -> float | None:
    known = [
        [row.paper_correct for row in group if row.paper_correct is not None] for group in groups.values()
    ]
    if any(len(right) < len(group) for right, group in zip(known, groups.values(), strict=True)):
        return None
    return statistics.avg_at_n(known).mean


def _pass_at_k(correct: list[list[bool]]) -> dict[str, float]:
    """Returns pass@k for k = 1, 2, 4, …, and for the smallest number of samples that a problem has."""
    most = min(len(row) for row in correct)
    by_k: dict[str, float] = {}
    for k in sorted({2**power for power in range(most.bit_length())} | {most}):
        rates = statistics.pass_at_k(correct, k)
        if rates is not None:
            by_k[str(k)] = sum(rates) / len(rates)
    return by_k


def _maj_at_n(groups: dict[str, list[Row]], correct: list[list[bool]]) -> float:
    """Returns maj@n. Two answers are the same vote if both are correct, or if the answers for which they vote differ
    only in spaces."""
    names = [[_ballot(row) for row in group] for group in groups.values()]
    scores = statistics.maj_at_n(names, correct)
    return sum(scores) / len(scores)


def _ballot(row: Row) -> str | None:
    if row.correct:
        return "\0correct"
    voted = row.extracted if row.ballot is None else row.ballot
    return None if voted is None else re.sub(r"\s+", "", voted)
