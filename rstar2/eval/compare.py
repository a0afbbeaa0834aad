"""Compares two measurements of the same problems, paired problem by problem.

Pairing takes the problems' own difficulty out of the comparison, so that a difference shows with far fewer
samples than between two averages with intervals of their own.
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
"""Of one problem: the entries of each score."""


@dataclass(frozen=True)
class Pair:
    """One problem in both runs; rates are shares of correct samples."""

    id: str
    a: float
    b: float

    @property
    def flipped(self) -> bool:
        """Whether one run solves it more often than not and the other does not."""
        return (self.a > 0.5) != (self.b > 0.5)


@dataclass(frozen=True)
class ScoreDifference:
    """One of a benchmark's own scores in two runs, over the problems in both."""

    name: str
    a: float
    b: float
    difference: float
    interval: tuple[float, float]
    """95 %, clustered by problem."""
    problems: int


@dataclass(frozen=True)
class Incomplete:
    """One of the two runs, if samples of it are missing.

    They are not missing at random: a long sample fails, or is in flight when the run stops, more often than a short
    one. So a difference may come from what is missing.
    """

    run: Literal["A", "B"]
    samples: int
    """The number that it has."""
    missing: int | None
    """None if the run was killed before it knew."""
    failed: dict[str, int]
    """How many of the missing samples failed, by cause; the others were never made."""


@dataclass(frozen=True)
class Comparison:
    """One benchmark in two runs; `difference` is B's average less A's, over the problems in both."""

    name: str
    a: float
    b: float
    difference: float
    interval: tuple[float, float]
    """95 %, clustered by problem."""
    detectable: float | None
    """The true difference that 80 % of comparisons like this one would find; None if they would find none."""
    pairs: list[Pair]
    unpaired: int
    """Problems that only one of the runs has, or that have another gold there."""
    changed: list[str]
    """Settings that differ between the runs."""
    incomplete: list[Incomplete]
    scores: list[ScoreDifference]
    """Empty where the benchmark has its verdicts alone."""

    @property
    def flipped(self) -> list[Pair]:
        """The problems that flipped, the largest change first."""
        found = (pair for pair in self.pairs if pair.flipped)
        return sorted(found, key=lambda pair: (-abs(pair.b - pair.a), pair.id))

    @property
    def shown(self) -> bool:
        """Whether the interval leaves out zero."""
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
    """Every benchmark that both runs measured, or the two benchmarks whose folders are given.

    UserError where a folder is neither, or they share no benchmark.
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
            "To compare two different benchmarks, give their folders.",
        )
    return [_compare(name, first[name], second[name]) for name in common]


def _by_name(folder: Path) -> dict[str, Measurement]:
    """The benchmarks of a run, or the one that the folder itself holds."""
    if not _is_benchmark(folder):
        load_config(folder)
    return {found.name: found for found in measurements(folder)}


def _is_benchmark(folder: Path) -> bool:
    return (folder / "traces.jsonl").is_file()


def _compare(name: str, a: Measurement, b: Measurement) -> Comparison:
    same = a.problems is not None and a.problems == b.problems
    rows_a, rows_b = (_rows(each, by_id=same) for each in (a, b))
    common = [key for key in rows_a if key in rows_b]
    if not common:
        hint = "Check that both used the same file. If a run was stopped, finish it first."
        raise UserError(f"{name}: the two runs have no problem in common", hint)
    found = statistics.paired_difference(
        [_samples(rows_a[key]) for key in common], [_samples(rows_b[key]) for key in common]
    )
    pairs = [Pair(key[0], rows_a[key]["accuracy"], rows_b[key]["accuracy"]) for key in common]
    return Comparison(
        name=name,
        a=sum(pair.a for pair in pairs) / len(pairs),
        b=sum(pair.b for pair in pairs) / len(pairs),
        difference=found.difference,
        interval=(found.by_problem.low, found.by_problem.high),
        detectable=found.detectable,
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
        failed = {}  # of an earlier start; a later one was killed after it had made some of them
    return [Incomplete(run, sum(row["samples"] for row in results["per_problem"]), missing, failed)]


def _scores(benchmark: str, a: list[Entries], b: list[Entries]) -> list[ScoreDifference]:
    """The differences of the scores, and of those that the benchmark makes of them; problem i of both is the same."""
    sides: tuple[dict[str, Score], ...] = ({}, {}, {})
    for name in dict.fromkeys(name for row in a for name in row):
        pairs = [
            (one[name], other[name]) for one, other in zip(a, b, strict=True) if name in one and name in other
        ]
        if not pairs:
            continue
        first, second = [one for one, _ in pairs], [other for _, other in pairs]
        means = [statistics.pooled_mean(entries) for entries in (first, second)]
        found = statistics.pooled_difference(first, second)
        values = [(mean.mean, mean.by_problem) for mean in means] + [(found.difference, found.by_problem)]
        for side, (value, interval) in zip(sides, values, strict=True):
            side[name] = {"value": value, "interval": [interval.low, interval.high], "problems": len(pairs)}
    one, other, apart = (with_combined(benchmark, side) for side in sides)
    return [
        ScoreDifference(
            name,
            one[name]["value"],
            other[name]["value"],
            found["value"],
            tuple(found["interval"]),
            found["problems"],
        )
        for name, found in apart.items()
    ]


def _rows(measured: Measurement, by_id: bool) -> dict[tuple[str, str], dict[str, Any]]:
    """Problems by id and gold, since an id alone may be a mere line number; by id where both runs have the same.

    Of a run that was killed the gold is what a trace has, which is a letter in GPQA.
    """
    return {(row["id"], "" if by_id else str(row["gold"])): row for row in measured.results["per_problem"]}


def _samples(row: dict[str, Any]) -> list[bool]:
    return [True] * row["correct"] + [False] * (row["samples"] - row["correct"])
