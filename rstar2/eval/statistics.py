"""Computes averages, pass@k and maj@n of a benchmark's samples, and how far to trust them.

A benchmark of P problems sampled n times each has two spreads. *Run-to-run*: how far the average would move
if the same problems were sampled again. *Clustered by problem*: how far it would move on other problems like
these. The second is the wider by far, and is the one to compare models with. Both are reported, by name.

All functions are pure. Correctness is one row per problem and one entry per sample (bools or 0/1); rows may
differ in length, and every problem weighs the same. Without problems, or with one that has no samples, they
raise ValueError.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np
from numpy.typing import NDArray
from scipy import special

from rstar2.eval.intervals import LEVEL, Interval

Samples = Sequence[Sequence[bool | int | float]]
"""Correctness: one row per problem, one entry per sample."""


@dataclass(frozen=True, slots=True)
class AvgAtN:
    """The average over problems of the share of correct samples, which is pass@1."""

    mean: float
    run_to_run: Interval
    """Sampling noise alone: where the mean of another run on these same problems' true rates lies."""
    by_problem: Interval
    """Sampling noise and the choice of problems: where the mean over all problems like these lies."""


@dataclass(frozen=True, slots=True)
class PooledMean:
    """The mean over all entries of all problems, each entry counted once."""

    mean: float
    by_problem: Interval


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The mean over problems of (B's rate - A's rate)."""

    difference: float
    by_problem: Interval


def avg_at_n(correct: Samples) -> AvgAtN:
    """The average accuracy with its run-to-run interval and its interval clustered by problem.

    Run-to-run: Student's t with the sum of the unbiased within-problem variances, to which z²/N² is added (N
    samples in all); that gives Wilson's width where every sample agrees, so no interval has zero width. A
    problem with a single sample has no variance of its own and is given the binomial variance of the overall
    mean, which is an upper bound on average.
    Clustered by problem: Student's t over the problems' means together with two pseudo-problems, one at 0 and
    one at 1 (Agresti and Coull's device), which keeps the coverage of small or one-sided benchmarks.
    """
    rates, sizes = _rates(correct)
    mean = float(rates.mean())
    return AvgAtN(mean=mean, run_to_run=_run_to_run(rates, sizes), by_problem=_by_problem(rates, (0.0, 1.0)))


def pooled_mean(entries: Sequence[Sequence[float]]) -> PooledMean:
    """The mean of scores in 0..1 over all entries, one row per problem, with an interval clustered by problem.

    Student's t over the rows' linearised residuals (the ratio estimator of cluster samples), together with two
    pseudo-problems of mean size at 0 and 1; so it is the interval of `avg_at_n` where rows are alike in length.
    ValueError without entries.
    """
    found = _pooled(entries, (0.0, 1.0))
    return PooledMean(found.mean, _around(found.mean, found.padded_mean, found.residuals, (0.0, 1.0)))


def pooled_difference(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> PairedDifference:
    """How much larger the mean over B's entries is than over A's, row i of both being the same problem.

    The interval is that of `pooled_mean`, over the differences of residuals, with pseudo-problems at -1 and +1.
    ValueError where the numbers of problems differ, or one of the two has no entries.
    """
    if len(a) != len(b):
        raise ValueError(f"A has {len(a)} problems and B has {len(b)}; pair them first")
    one, other = _pooled(a, (1.0, 0.0)), _pooled(b, (0.0, 1.0))
    difference, padded = other.mean - one.mean, other.padded_mean - one.padded_mean
    residuals = other.residuals - one.residuals
    return PairedDifference(difference, _around(difference, padded, residuals, (-1.0, 1.0)))


def pass_at_k(correct: Samples, k: int) -> list[float] | None:
    """The unbiased chance, for each problem, that at least one of k samples is correct: 1 - C(n-c,k)/C(n,k).

    Source: Chen et al., arXiv 2107.03374, equation 1. With fewer than k samples of some problem pass@k is not
    a number, and None is returned; ValueError for k < 1.
    """
    if k < 1:
        raise ValueError(f"pass@k needs k >= 1, not {k}")
    _, sizes = _rates(correct)
    if int(sizes.min()) < k:
        return None
    return [1.0 - comb(len(row) - sum(map(bool, row)), k) / comb(len(row), k) for row in correct]


def maj_at_n(answers: Sequence[Sequence[str | None]], correct: Samples) -> list[float]:
    """For each problem, whether its most frequent answer is correct (1.0 or 0.0).

    `answers` names each sample's equivalence class, None where there is no answer; equal answers must have
    equal names. Samples without an answer have no vote. Where classes tie, the problem scores the share of
    the tied classes that are correct, which is the expectation of breaking the tie at random. ValueError where
    the two tables differ in shape.
    """
    if [len(row) for row in answers] != [len(row) for row in correct]:
        raise ValueError("answers and correct must have the same shape")
    return [_majority(names, right) for names, right in zip(answers, correct, strict=True)]


def paired_difference(a: Samples, b: Samples) -> PairedDifference:
    """How much better B is than A on the same problems, with an interval clustered by problem.

    Row i of both is the same problem; the number of samples may differ. The interval is Student's t over the
    problems' differences together with two pseudo-problems at -1 and +1, so that it never has zero width and
    covers rare large differences, which the plain interval does in 70 % of runs only.

    Raises:
        ValueError: the numbers of problems differ, or are zero, or a problem has no samples.
    """
    if len(a) != len(b):
        raise ValueError(f"A has {len(a)} problems and B has {len(b)}; pair them first")
    differences = _rates(b)[0] - _rates(a)[0]
    return PairedDifference(float(differences.mean()), _by_problem(differences, (-1.0, 1.0)))


def _rates(correct: Samples) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Each problem's share of correct samples [P] and number of samples [P]."""
    sizes = np.array([len(row) for row in correct], dtype=np.int64)
    if not len(sizes) or not sizes.all():
        raise ValueError(f"problem {sizes.argmin()} has no samples" if len(sizes) else "no problems")
    return np.array([sum(map(bool, row)) for row in correct], dtype=np.float64) / sizes, sizes


def _run_to_run(rates: NDArray[np.float64], sizes: NDArray[np.int64]) -> Interval:
    problems, samples, mean = len(rates), int(sizes.sum()), float(rates.mean())
    spare = np.maximum(sizes - 1, 1)
    within = np.where(sizes > 1, rates * (1 - rates) * sizes / spare, mean * (1 - mean))
    z = float(special.ndtri(0.5 + LEVEL / 2))
    error = float(np.sqrt((within / sizes).sum() / problems**2 + (z / samples) ** 2))
    freedom = int((sizes - 1).sum()) or max(problems - 1, 1)
    half = float(special.stdtrit(freedom, 0.5 + LEVEL / 2)) * error
    return Interval(max(0.0, mean - half), min(1.0, mean + half))


def _by_problem(values: NDArray[np.float64], bounds: tuple[float, float]) -> Interval:
    padded = np.append(values, bounds)
    centre = float(padded.mean())
    return _around(float(values.mean()), centre, (padded - centre) / len(padded), bounds)


@dataclass(frozen=True, slots=True)
class _Pooled:
    """A pooled mean; and with two pseudo-problems, that mean and what each problem [P + 2] adds to its error."""

    mean: float
    padded_mean: float
    residuals: NDArray[np.float64]


def _pooled(entries: Sequence[Sequence[float]], pseudo: tuple[float, float]) -> _Pooled:
    count = sum(map(len, entries))
    if not count:
        raise ValueError("no entries")
    size = count / len(entries)
    sizes = np.array([*map(len, entries), size, size], dtype=np.float64)
    totals = np.array([*map(sum, entries), *(size * value for value in pseudo)], dtype=np.float64)
    padded_mean = float(totals.sum() / sizes.sum())
    residuals = (totals - padded_mean * sizes) / sizes.sum()
    return _Pooled(sum(map(sum, entries)) / count, padded_mean, residuals)


def _around(
    mean: float, padded_mean: float, residuals: NDArray[np.float64], bounds: tuple[float, float]
) -> Interval:
    """The interval of a padded mean by its residuals, widened where it leaves the mean out."""
    problems = len(residuals)
    error = float(np.sqrt((residuals**2).sum() * problems / (problems - 1)))
    half = float(special.stdtrit(problems - 1, 0.5 + LEVEL / 2)) * error
    low, high = min(padded_mean - half, mean), max(padded_mean + half, mean)
    return Interval(max(bounds[0], low), min(bounds[1], high))


def _majority(names: Sequence[str | None], right: Sequence[bool | int | float]) -> float:
    votes = Counter(name for name in names if name is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = {name for name, count in votes.items() if count == most}
    correct = {name for name, ok in zip(names, right, strict=True) if name in tied and ok}
    return len(correct) / len(tied)
