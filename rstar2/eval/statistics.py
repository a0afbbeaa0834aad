"""Computes averages, pass@k and maj@n of a benchmark's samples, with confidence intervals.

The average over P problems with n samples each has two intervals. The *run-to-run* interval says how far the average
would move if the same problems were sampled again. The interval *clustered by problem* says how far the average would
move on other problems of the same kind. The interval clustered by problem is far wider. Models should be compared with
the interval clustered by problem. docs/results/evaluation.md reports the coverage, width and power of the intervals,
which benchmarks/eval/intervals.py measures.

All functions of this module are pure. The correctness of samples is a table with one row per problem, and one entry per
sample in each row (bool, or 0 or 1). Rows may differ in length, and every problem has the same weight. The functions
raise ValueError if there are no problems, or if a problem has no samples.
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
"""The correctness of samples: one row per problem, with one entry per sample."""

UNSEEN = 3
"""Number of problems that may have changed although a comparison observed no change, by the rule of three.

If none of P observed problems changed, a share of up to 3/P of all problems of the same kind may still change (with 95
% confidence).
"""
DOUBT = 0.8
"""Base of the weight with which an unseen change is assumed to be a whole flip. If two runs differ on d of P problems,
the weight is DOUBT^(d²/P), which lies between 0 and 1.

In a whole flip, one run never solves a problem, and the other run always solves it. For example, if two runs differ a
little on all of ten problems, the weight is a tenth. If two runs differ on only a few problems, these differences say
less about the problems on which the runs agree. A larger DOUBT allows for more flips, and makes intervals wider.
"""
POWER = 0.8
"""Statistical power at which the minimum detectable effect is computed."""


@dataclass(frozen=True, slots=True)
class AvgAtN:
    """The share of correct samples of each problem, averaged over problems. This average equals pass@1."""

    mean: float
    run_to_run: Interval
    """Interval for the average over repeated runs on the same problems. The interval covers only the noise of
    sampling."""
    by_problem: Interval
    """Interval for the mean over all problems of the same kind. The interval covers the noise of sampling and the
    choice of the benchmark's problems."""


@dataclass(frozen=True, slots=True)
class PooledMean:
    """The mean over all entries of all problems, in which each entry has the same weight."""

    mean: float
    by_problem: Interval


@dataclass(frozen=True, slots=True)
class PairedDifference:
    """The difference between the rates of run B and run A (B minus A), averaged over problems."""

    difference: float
    by_problem: Interval
    detectable: float | None
    """The minimum detectable effect at power `POWER`, for the same numbers of problems and samples. None if even a
    difference of 1 has less power."""


def avg_at_n(correct: Samples) -> AvgAtN:
    """Returns the average accuracy with its run-to-run interval and its interval clustered by problem
    (`clustered_interval`).

    The run-to-run interval is a Student's t interval. Its variance is the sum of the unbiased variances within
    problems, plus z²/N² for N samples in all. If all samples agree, the term z²/N² gives the width of Wilson's
    interval, so that no interval has zero width. A problem with a single sample has no variance of its own, and gets
    the binomial variance of the overall mean, which is an upper bound in expectation.
    """
    rates, sizes = _rates(correct)
    mean = float(rates.mean())
    return AvgAtN(mean=mean, run_to_run=_run_to_run(rates, sizes), by_problem=clustered_interval(rates))


def clustered_interval(rates: NDArray[np.float64]) -> Interval:
    """Returns the interval, clustered by problem, of the mean of the problems' rates.

    `rates` has shape (P,), and contains the share of correct samples (0..1) of each problem. The interval is a
    Student's t interval over the rates and two pseudo-problems, one with rate 0 and one with rate 1 (after Agresti and
    Coull). Without the pseudo-problems, the coverage would be too low if a benchmark is small, or if most rates are
    near 0 or 1. The differences in `paired_mean` rarely reach -1 or 1, so `paired_mean` allows for unseen changes in
    another way.
    """
    padded = np.append(rates, (0.0, 1.0))
    centre = float(padded.mean())
    return _around(float(rates.mean()), centre, (padded - centre) / len(padded))


def pooled_mean(entries: Sequence[Sequence[float]]) -> PooledMean:
    """Returns the mean of all entries, with an interval clustered by problem.

    `entries` has one row of scores in 0..1 per problem. The interval is a Student's t interval over the rows'
    linearised residuals (the ratio estimator of cluster samples) and two pseudo-problems of average length, one with
    score 0 and one with score 1. If all rows have the same length, the interval equals the `by_problem` interval of
    `avg_at_n`.

    Raises:
        ValueError: there are no entries.
    """
    pooled = _pooled(entries, pseudo=(0.0, 1.0))
    return PooledMean(pooled.mean, _around(pooled.mean, pooled.padded_mean, pooled.residuals))


def pooled_difference(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> PairedDifference:
    """Returns the mean of B's entries minus the mean of A's entries.

    Row i of `a` and row i of `b` belong to the same problem. The interval is computed as in `paired_mean`, from the
    linearised residuals of both tables (the ratio estimator of cluster samples). If all rows have the same length, the
    interval equals the interval of `paired_difference`.

    Raises:
        ValueError: the numbers of problems differ, or one of the two tables has no entries.
    """
    if len(a) != len(b):
        raise ValueError(f"A has {len(a)} problems and B has {len(b)}; pair them first")
    one, other = _pooled(a), _pooled(b)
    changes = [sum(y) / len(y) - sum(x) / len(x) for x, y in zip(a, b, strict=True) if x and y]
    return _paired(other.mean - one.mean, other.residuals - one.residuals, np.array(changes))


def pass_at_k(correct: Samples, k: int) -> list[float] | None:
    """Returns, for each problem, the unbiased estimate of the probability that at least one of k samples is correct.

    The estimate is 1 - C(n-c,k)/C(n,k) for c correct samples of n (Chen et al., arXiv 2107.03374, equation 1). Returns
    None if a problem has fewer than k samples.

    Raises:
        ValueError: k < 1.
    """
    if k < 1:
        raise ValueError(f"pass@k needs k >= 1, not {k}")
    _, sizes = _rates(correct)
    if int(sizes.min()) < k:
        return None
    return [1.0 - comb(len(row) - sum(map(bool, row)), k) / comb(len(row), k) for row in correct]


def maj_at_n(answers: Sequence[Sequence[str | None]], correct: Samples) -> list[float]:
    """Returns, for each problem, 1.0 if its most frequent answer is correct, and 0.0 otherwise.

    If several answers are tied as the most frequent, the result is the share of them that is correct. This is the
    expected result if one of them is chosen at random.

    Args:
        answers: a label for the answer of each sample. Equal answers have the same label. None means that the sample
            has no answer and casts no vote.
        correct: whether each sample is correct, in a table of the same shape.

    Raises:
        ValueError: the two tables differ in shape.
    """
    if [len(row) for row in answers] != [len(row) for row in correct]:
        raise ValueError("answers and correct must have the same shape")
    return [_majority(names, right) for names, right in zip(answers, correct, strict=True)]


def paired_difference(a: Samples, b: Samples) -> PairedDifference:
    """Returns B's average minus A's average on the same problems, with the interval of `paired_mean`.

    Row i of `a` and row i of `b` belong to the same problem. The two rows may differ in length.

    Raises:
        ValueError: the numbers of problems differ, or are zero, or a problem has no samples.
    """
    if len(a) != len(b):
        raise ValueError(f"A has {len(a)} problems and B has {len(b)}; pair them first")
    return paired_mean(_rates(b)[0] - _rates(a)[0])


def paired_mean(differences: NDArray[np.float64], doubt: float = DOUBT) -> PairedDifference:
    """Returns the mean of the problems' differences, with an interval clustered by problem.

    The interval excludes zero only if the paired t-test finds a difference. With few problems, the test's p-value must
    be even smaller: below 0.049 with 30 problems, 0.038 with 10 and 0.006 with 5. With fewer than 5 problems, the
    interval never excludes zero.

    The interval of the t-test alone has poor coverage if changes are rare. If a share f of all problems flips, then
    with probability (1 - f)^P none of the P measured problems flips, and Student's interval has zero width. Therefore
    the interval allows for unseen changes, which are changes of problems that were not observed to change. Only unseen
    changes can move the true mean farther from zero than the measured mean, or to the other side of zero.
    `_unseen_change` returns the assumed size of each unseen change. When a supposed true mean is tested, the square of
    this size is added to the variance for each unseen change that the supposed mean requires. The interval consists of
    the supposed means that the test does not reject. If few problems flip, the interval is close to Tango's score
    interval. If the runs differ on none of the P problems, the ends of the interval are -3/P and +3/P.

    Sources: Tango, Statistics in Medicine 17, 891 (1998), for the variance at a supposed mean; Miller, arXiv
    2411.00640, for the paired t-test and the detectable difference.

    Args:
        differences: shape (P,). The difference of each problem, in -1..1.
        doubt: see `DOUBT`.

    Raises:
        ValueError: there are no problems.
    """
    if not len(differences):
        raise ValueError("no problems")
    mean = float(differences.mean())
    return _paired(mean, (differences - mean) / len(differences), differences, doubt)


def _rates(correct: Samples) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Returns two arrays of shape (P,): each problem's share of correct samples, and each problem's number of
    samples."""
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
    """Computes the result of `paired_mean`.

    Args:
        difference: the measured difference.
        residuals: shape (P,). The contribution of each problem to the error.
        changes: the differences of the problems that both runs have.
        doubt: see `DOUBT`.
    """
    problems = len(residuals)
    if problems < 2:
        return PairedDifference(difference, Interval(-1.0, 1.0), None)
    freedom = problems - 1
    quantile = float(special.stdtrit(freedom, 0.5 + LEVEL / 2))
    change = _unseen_change(changes, doubt)
    noise = float(np.sqrt((residuals**2).sum() * problems / freedom))
    # Adding UNSEEN unchanged problems keeps the error above zero if all problems changed by the same amount.
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
    """Returns the assumed size of an unseen change, which is a difference between the runs that the measured samples do
    not show.

    If the runs differ on no problem, the size is 1. Otherwise the size lies between the root mean square of the
    observed changes and 1. The more problems the runs differ on, the closer the size is to the root mean square.
    """
    nonzero = changes[changes != 0]
    if not len(nonzero):
        return 1.0
    square = float((nonzero**2).mean())
    # The problems that do not differ, such as those that are always solved, may change in another way.
    evidence = len(nonzero) ** 2 / len(changes)
    return float(np.sqrt(square + (1 - square) * doubt**evidence))


def _detectable(problems: int, noise: float, change: float) -> float | None:
    """Returns the minimum detectable effect at power `POWER`, if the true difference is the same for all problems.
    Returns None if even a difference of 1 has less power.

    The difference must be large enough compared with the noise, according to the noncentral t distribution. In
    addition, enough problems must change. If all changes have the same size, a difference is found if four problems
    change, but not if only three change. In a benchmark of five problems, the difference is found only if all five
    change.

    Args:
        problems: number of problems, at least two.
        noise: the standard error of the difference.
        change: the size of the change of one problem.
    """
    freedom = problems - 1
    quantile = float(special.stdtrit(freedom, 0.5 + LEVEL / 2))
    # The interval excludes zero if t exceeds `least`, which the UNSEEN unchanged problems raise above `quantile`.
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
    """A mean over the entries of all problems."""

    mean: float
    padded_mean: float
    """The mean over all entries and the pseudo-problems."""
    residuals: NDArray[np.float64]
    """Shape (problems + pseudo-problems,). The contribution of each problem and pseudo-problem to the error."""


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
    """Returns the interval of a mean over problems and pseudo-problems, computed from the residuals of this mean.

    The interval is widened if it would not contain `mean`, the mean without the pseudo-problems.
    """
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
