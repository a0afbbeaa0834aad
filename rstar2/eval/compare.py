"""Compares two measurements of the same problems. Each problem of one measurement is paired with the same problem of
the other.

Problems vary in difficulty, and pairing removes this variation from the difference between the two measurements. A
paired comparison therefore finds a difference with far fewer samples than a comparison of two averages, each with its
own interval.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from rstar2.errors import UserError
from rstar2.eval import statistics
from rstar2.eval.benchmarks import Score, with_combined
from rstar2.eval.stored import Measurement, measurements
from rstar2.runs import changed_keys, load_config

Entries = dict[str, list[float]]
"""Dict from a score's name to its values in the samples of one problem."""


@dataclass(frozen=True)
class Pair:
    """One problem in both runs."""

    id: str
    a: float
    """Share of run A's samples that are correct."""
    b: float
    """Share of run B's samples that are correct."""

    @property
    def flipped(self) -> bool:
        """Whether exactly one of the runs solves the problem in more than half of its samples."""
        return (self.a > 0.5) != (self.b > 0.5)


@dataclass(frozen=True)
class ScoreDifference:
    """One of a benchmark's own scores in two runs, computed over the problems that both runs have."""

    name: str
    a: float
    b: float
    difference: float
    """Run B's score minus run A's score."""
    interval: tuple[float, float]
    """95 % interval of the difference, clustered by problem."""
    problems: int


@dataclass(frozen=True)
class Incomplete:
    """A run that lacks samples.

    Samples are not missing at random: long samples are more likely to fail, or to be in flight when the run stops. A
    difference between the runs may therefore come from the missing samples.
    """

    run: Literal["A", "B"]
    samples: int
    """Number of samples that the run has."""
    missing: int | None
    """Number of missing samples. None if the run was killed before it had written this number."""
    failed: dict[str, int]
    """Dict from each cause of failure to the number of missing samples that failed for this cause. All other missing
    samples were never made."""


@dataclass(frozen=True)
class Comparison:
    """The comparison of one benchmark in two runs, over the problems that both runs have."""

    name: str
    a: float
    """Run A's average share of correct samples (avg@n)."""
    b: float
    """Run B's average share of correct samples (avg@n)."""
    difference: float
    """Run B's average minus run A's average."""
    interval: tuple[float, float]
    """95 % interval of the difference, clustered by problem."""
    detectable: float | None
    """The minimum detectable effect of this comparison at 80 % power. None if even the largest possible difference has
    less than 80 % power."""
    pairs: list[Pair]
    unpaired: int
    """Number of problems that only one run has. If the runs have different gold answers to a problem, the problem
    counts twice."""
    changed: list[str]
    """Settings that differ between the runs."""
    incomplete: list[Incomplete]
    """The runs that lack samples."""
    scores: list[ScoreDifference]
    """The benchmark's own scores. Empty if the benchmark has only verdicts."""

    @property
    def flipped(self) -> list[Pair]:
        """The problems that flipped (`Pair.flipped`). The problem with the largest change comes first."""
        flipped = (pair for pair in self.pairs if pair.flipped)
        return sorted(flipped, key=lambda pair: (-abs(pair.b - pair.a), pair.id))

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval excludes zero. If so, the runs differ significantly."""
        low, high = self.interval
        return low > 0 or high < 0

    def as_json(self) -> dict[str, Any]:
        return {
            "benchmark": self.name,
            "a": self.a,
            "b": self.b,
            "difference": self.difference,
            "interval_clustered": list(self.interval),
            "detectable_difference": self.detectable,
            "problems": len(self.pairs),
            "unpaired": self.unpaired,
            "changed_settings": self.changed,
            "incomplete": [asdict(each) for each in self.incomplete],
            "scores": [asdict(score) for score in self.scores],
            "flipped": [asdict(pair) for pair in self.flipped],
        }


def compare_runs(a: Path, b: Path) -> list[Comparison]:
    """Compare every benchmark that both runs measured, or two single benchmarks.

    Args:
        a: a run's folder, or the folder of one of its benchmarks.
        b: the folder of the other run, or of one of its benchmarks.

    Raises:
        UserError: a folder is neither a run's folder nor a benchmark's, no benchmark is in both runs, or a benchmark is
            in both runs without any common problem.
    """
    first, second = _by_name(a), _by_name(b)
    common = [name for name in first if name in second]
    if not common and len(first) == len(second) == 1 and (_is_benchmark(a) or _is_benchmark(b)):
        [(name, one), (other, two)] = [*first.items(), *second.items()]
        return [_compare(f"{name} – {other}", one, two)]
    if not common:
        raise UserError(
            f"{a} and {b} have no benchmark in common",
            f"{a} has {', '.join(first) or 'none'}; {b} has {', '.join(second) or 'none'}. "
            "To compare two different benchmarks, name the folders of the benchmarks.",
        )
    return [_compare(name, first[name], second[name]) for name in common]


def _by_name(folder: Path) -> dict[str, Measurement]:
    """Returns a dict from name to benchmark for a run's folder. If `folder` is the folder of one benchmark, the dict
    has only this benchmark."""
    if not _is_benchmark(folder):
        load_config(folder)
    return {measured.name: measured for measured in measurements(folder)}


def _is_benchmark(folder: Path) -> bool:
    return (folder / "traces.jsonl").is_file()


def _compare(name: str, a: Measurement, b: Measurement) -> Comparison:
    same_problems = a.problems is not None and a.problems == b.problems
    rows_a, rows_b = (_rows(each, by_id=same_problems) for each in (a, b))
    common = [key for key in rows_a if key in rows_b]
    if not common:
        hint = "Check that both runs used the same file of problems. If a run was stopped, finish it first."
        raise UserError(f"{name}: the two runs have no problem in common", hint)
    paired = statistics.paired_difference(
        [_samples(rows_a[key]) for key in common], [_samples(rows_b[key]) for key in common]
    )
    pairs = [Pair(key[0], rows_a[key]["accuracy"], rows_b[key]["accuracy"]) for key in common]
    return Comparison(
        name=name,
        a=sum(pair.a for pair in pairs) / len(pairs),
        b=sum(pair.b for pair in pairs) / len(pairs),
        difference=paired.difference,
        interval=(paired.by_problem.low, paired.by_problem.high),
        detectable=paired.detectable,
        pairs=pairs,
        unpaired=len(rows_a) + len(rows_b) - 2 * len(common),
        changed=changed_keys(a.results["settings"], b.results["settings"]),
        incomplete=[*_incomplete("A", a.results), *_incomplete("B", b.results)],
        scores=_scores(
            a.results.get("benchmark", a.name),
            [rows_a[key].get("scores", {}) for key in common],
            [rows_b[key].get("scores", {}) for key in common],
        ),
    )


def _incomplete(run: Literal["A", "B"], results: dict[str, Any]) -> list[Incomplete]:
    missing: int | None = results.get("missing")
    if results.get("complete") or missing == 0:
        return []
    failed: dict[str, int] = results.get("failed", {})
    if missing is not None and sum(failed.values()) > missing:
        failed = {}  # counted by an earlier launch; a later launch made some of these samples and was then killed
    return [Incomplete(run, sum(row["samples"] for row in results["per_problem"]), missing, failed)]


def _scores(benchmark: str, a: list[Entries], b: list[Entries]) -> list[ScoreDifference]:
    """Returns the differences between the runs' scores, including the scores that the benchmark computes from other
    scores.

    Entry i of `a` and entry i of `b` belong to the same problem.
    """
    # The scores of A, those of B, and their differences.
    sides: tuple[dict[str, Score], ...] = ({}, {}, {})
    for name in dict.fromkeys(name for row in a for name in row):
        pairs = [
            (one[name], other[name]) for one, other in zip(a, b, strict=True) if name in one and name in other
        ]
        if not pairs:
            continue
        first, second = [one for one, _ in pairs], [other for _, other in pairs]
        means = [statistics.pooled_mean(entries) for entries in (first, second)]
        paired = statistics.pooled_difference(first, second)
        values = [(mean.mean, mean.by_problem) for mean in means] + [(paired.difference, paired.by_problem)]
        for side, (value, interval) in zip(sides, values, strict=True):
            side[name] = {"value": value, "interval": [interval.low, interval.high], "problems": len(pairs)}
    scores_a, scores_b, differences = (with_combined(benchmark, side) for side in sides)
    return [
        ScoreDifference(
            name,
            scores_a[name]["value"],
            scores_b[name]["value"],
            difference["value"],
            tuple(difference["interval"]),
            difference["problems"],
        )
        for name, difference in differences.items()
    ]


def _rows(measured: Measurement, by_id: bool) -> dict[tuple[str, str], dict[str, Any]]:
    """Returns a benchmark's rows of problems. The key of a row is (id, gold answer), or (id, "") if `by_id`.

    An id may be just a line number, so two rows are the same problem only if the gold answers are also the same. If
    `by_id`, the gold answers are ignored. The caller sets `by_id` if both runs are known to have the same problems. A
    killed run needs `by_id`: its gold answers are read from its traces, and the traces of GPQA contain the letter of
    the right choice instead of its text.
    """
    return {(row["id"], "" if by_id else str(row["gold"])): row for row in measured.results["per_problem"]}


def _samples(row: dict[str, Any]) -> list[bool]:
    return [True] * row["correct"] + [False] * (row["samples"] - row["correct"])
