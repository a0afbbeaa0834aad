"""Computes averages, pass@k and maj@n of a benchmark's samples, and how far to trust them.

A benchmark of P problems sampled n times each has two spreads. *Run-to-run*: how far the average would move
if the same problems were sampled again. *Clustered by problem*: how far it would move on other problems like
these. The second is the wider by far, and is the one to compare models with. Both are reported, by name.
docs/results/evaluation.md has the coverage, width and power of the intervals, which benchmarks/eval/intervals.py
measures.

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

UNSEEN = 3
"""How many changes of problems a comparison may have missed: the rule of three.

If none of P problems changed, a share of up to 3/P of all problems like these may still change (95 %).
"""
DOUBT = 0.8
"""How fast the problems that differ show the size of a change.

The doubt is that the next change is a whole flip, from never right to always right. If all problems differ, each leaves
this much of the doubt: at 0.8, ten small differences leave a tenth of it. If only a share of the problems differs, each
says as much less about the others, so the exponent is the number that differ times their share. A larger value covers
more flips that small differences hide, with wider intervals.
"""
POWER = 0.8
"""Share of comparisons that find a difference of the detectable size."""


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
    detectable: float | None
    """The true difference that a share `POWER` of such comparisons would find; None if they find none up to 1."""


def avg_at_n(correct: Samples) -> AvgAtN:
    """The average accuracy with its run-to-run interval and its interval clustered by problem.

    Run-to-run: Student's t with the sum of the unbiased within-problem variances, to which z²/N² is added (N
    samples in all); that gives Wilson's width where every sample agrees, so no interval has zero width. A
    problem with a single sample has no variance of its own and is given the binomial variance of the overall
    mean, which is an upper bound on average.
    Clustered by problem: `clustered_interval`.
    """
    rates, sizes = _rates(correct)
    mean = float(rates.mean())
    return AvgAtN(mean=mean, run_to_run=_run_to_run(rates, sizes), by_problem=clustered_interval(rates))


def clustered_interval(rates: NDArray[np.float64]) -> Interval:
    """The interval, clustered by problem, of the mean of the problems' rates [P], each in 0..1.

    Student's t over the rates together with two pseudo-problems, one at 0 and one at 1 (Agresti and Coull's device),
    which keeps the coverage of small or one-sided benchmarks. A difference has no such ends that its problems often
    reach, so `paired_mean` allows for unseen changes in another way.
    """
    padded = np.append(rates, (0.0, 1.0))
    centre = float(padded.mean())
    return _around(float(rates.mean()), centre, (padded - centre) / len(padded))


def pooled_mean(entries: Sequence[Sequence[float]]) -> PooledMean:
    """The mean of scores in 0..1 over all entries, one row per problem, with an interval clustered by problem.

    Student's t over the rows' linearised residuals (the ratio estimator of cluster samples), together with two
    pseudo-problems of mean size at 0 and 1; so it is the interval of `avg_at_n` where rows are alike in length.
    ValueError without entries.
    """
    found = _pooled(entries, pseudo=(0.0, 1.0))
    return PooledMean(found.mean, _around(found.mean, found.padded_mean, found.residuals))


def pooled_difference(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> PairedDifference:
    """How much larger the mean over B's entries is than over A's, row i of both being the same problem.

    The interval is that of `paired_mean`, over the linearised residuals of both (the ratio estimator of cluster
    samples); so it is the interval of `paired_difference` if all rows are alike in length.

    Raises:
        ValueError: the numbers of problems differ, or one of the two has no entries.
    """
    if len(a) != len(b):
        raise ValueError(f"A has {len(a)} problems and B has {len(b)}; pair them first")
    one, other = _pooled(a), _pooled(b)
    changes = [sum(y) / len(y) - sum(x) / len(x) for x, y in zip(a, b, strict=True) if x and y]
    return _paired(other.mean - one.mean, other.residuals - one.residuals, np.array(changes))


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
    """How much better B is than A on the same problems, with the interval of `paired_mean`.

    Row i of both is the same problem; the number of samples may differ.

    Raises:
        ValueError: the numbers of problems differ, or are zero, or a problem has no samples.
    """
    if len(a) != len(b):
        raise ValueError(f"A has {len(a)} problems and B has {len(b)}; pair them first")
    return paired_mean(_rates(b)[0] - _rates(a)[0])


def paired_mean(differences: NDArray[np.float64], doubt: float = DOUBT) -> PairedDifference:
    """The mean of the problems' differences [P], each in -1..1, with an interval clustered by problem.

    The interval leaves out zero if the paired t-test finds a difference. In small sets it is more careful: p has to be
    below 0.049 with 30 problems, 0.038 with 10 and 0.006 with 5, and fewer than 5 show nothing. The test alone covers
    rare changes badly: if a share f of problems flips, none of P does with probability (1 - f)^P, and Student's
    interval is then a point. So a mean beyond the measured one, or on the other side of zero, is taken to need changes
    that nobody saw. Each such change is as large as those seen (`_unseen_change`), and adds its square to the variance
    at that mean. The bounds are the means at which the measured one is just not rejected. If few of the problems flip,
    they are close to Tango's score interval. If none differs, they are -3/P and +3/P. `doubt` is explained at `DOUBT`.

    Sources: Tango, Statistics in Medicine 17, 891 (1998), for the variance at the mean in question; Miller, arXiv
    2411.00640, for the paired t-test and the detectable difference.
    """
    if not len(differences):
        raise ValueError("no problems")
    mean = float(differences.mean())
    return _paired(mean, (differences - mean) / len(differences), differences, doubt)


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


def _paired(
    difference: float, residuals: NDArray[np.float64], changes: NDArray[np.float64], doubt: float = DOUBT
) -> PairedDifference:
    """The interval of `paired_mean` for a difference to whose error each problem adds a residual [P].

    `changes` are the differences of the problems that both runs have.
    """
    problems = len(residuals)
    if problems < 2:
        return PairedDifference(difference, Interval(-1.0, 1.0), None)
    freedom = problems - 1
    quantile = float(special.stdtrit(freedom, 0.5 + LEVEL / 2))
    change = _unseen_change(changes, doubt)
    noise = float(np.sqrt((residuals**2).sum() * problems / freedom))
    # As many unchanged problems as may be unseen keep the error above zero if all problems changed alike.
    unchanged = UNSEEN * difference**2 / ((problems + UNSEEN) * freedom)
    error = float(np.hypot(noise, np.sqrt(unchanged)))
    half, shift, distance = quantile * error, UNSEEN * change / problems / 2, abs(difference)
    far = min(1.0, distance + shift + float(np.hypot(shift, half)))
    if half < distance:
        near = distance - half
    else:
        inner = shift - distance
        near = max(-1.0, -inner - float(np.sqrt(inner**2 + half**2 - distance**2)))
    low, high = (near, far) if difference >= 0 else (-far, -near)
    return PairedDifference(difference, Interval(low, high), _detectable(problems, noise, change))


def _unseen_change(changes: NDArray[np.float64], doubt: float) -> float:
    """The size of a change that nobody saw: 1 if no problem differs, their root mean square if most of many do."""
    seen = changes[changes != 0]
    if not len(seen):
        return 1.0
    square = float((seen**2).mean())
    # The problems that do not differ, such as those that are always solved, may change in another way.
    speaks = len(seen) ** 2 / len(changes)
    return float(np.sqrt(square + (1 - square) * doubt**speaks))


def _detectable(problems: int, noise: float, change: float) -> float | None:
    """The difference that a share `POWER` of comparisons finds, if it is alike on all problems; None if there is none.

    It has to stand out from the noise, by the noncentral t. And enough problems have to change: if no other problem
    differs, four equal changes are found and three are not (of five problems, all have to change).

    Args:
        problems: at least two.
        noise: the standard error of the difference.
        change: the size of one changed problem.
    """
    freedom = problems - 1
    quantile = float(special.stdtrit(freedom, 0.5 + LEVEL / 2))
    # The interval leaves out zero if t is larger than `least`: the unseen unchanged problems raise it above `quantile`.
    room = 1 / quantile**2 - UNSEEN / ((problems + UNSEEN) * freedom)
    if room <= 0:
        return None
    least = room**-0.5
    against_noise = float(special.nctdtrinc(freedom, 1 - POWER, least)) * noise
    too_few = int(problems * least**2 / (freedom + least**2))
    by_changes = float(special.bdtri(too_few, problems, 1 - POWER)) * change
    size = max(against_noise, by_changes)
    return size if size <= 1 else None


@dataclass(frozen=True, slots=True)
class _Pooled:
    """A pooled mean; that mean with pseudo-problems added; and what each problem [P + pseudo] adds to its error."""

    mean: float
    padded_mean: float
    residuals: NDArray[np.float64]


def _pooled(entries: Sequence[Sequence[float]], pseudo: tuple[float, ...] = ()) -> _Pooled:
    count = sum(map(len, entries))
    if not count:
        raise ValueError("no entries")
    size = count / len(entries)
    sizes = np.array([*map(len, entries), *(size for _ in pseudo)], dtype=np.float64)
    totals = np.array([*map(sum, entries), *(size * value for value in pseudo)], dtype=np.float64)
    padded_mean = float(totals.sum() / sizes.sum())
    residuals = (totals - padded_mean * sizes) / sizes.sum()
    return _Pooled(sum(map(sum, entries)) / count, padded_mean, residuals)


def _around(mean: float, padded_mean: float, residuals: NDArray[np.float64]) -> Interval:
    """The interval of a padded mean by its residuals, widened where it leaves the mean out."""
    problems = len(residuals)
    error = float(np.sqrt((residuals**2).sum() * problems / (problems - 1)))
    half = float(special.stdtrit(problems - 1, 0.5 + LEVEL / 2)) * error
    return Interval(max(0.0, min(padded_mean - half, mean)), min(1.0, max(padded_mean + half, mean)))


def _majority(names: Sequence[str | None], right: Sequence[bool | int | float]) -> float:
    votes = Counter(name for name in names if name is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = {name for name, count in votes.items() if count == most}
    correct = {name for name, ok in zip(names, right, strict=True) if name in tied and ok}
    return len(correct) / len(tied)
