"""Means over tokens or calls, with intervals that are clustered by problem, because values of the same problem are
alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from rstar2.eval.intervals import LEVEL

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean or a difference of means, with an interval."""

    value: float
    """The mean, or the difference of means, or NaN if there are no values."""
    count: int
    """Number of values. For a difference of two means, the smaller number of values."""
    influence: Floats
    """Shape (G,): the contribution of each problem to the error of the value."""
    problems: int
    """Number of problems that have values. For a difference of two means, the smaller number of problems."""

    @property
    def half(self) -> float:
        """Half the width of the interval with confidence LEVEL. The half width is NaN if there are fewer than two
        problems, or if the values have no variance.

        The interval uses Student's t with the cluster-robust variance of a ratio of sums (Cochran, Sampling Techniques,
        3rd edition, section 6.3). A difference of two means has the degrees of freedom of the mean with fewer problems.
        If one mean covers only three replies, the difference stays uncertain, however many replies the other mean
        covers.
        """
        if self.problems < 2 or not self.influence.any():
            return float("nan")
        error = float(np.sqrt(self.problems / (self.problems - 1) * (self.influence**2).sum()))
        return float(special.stdtrit(self.problems - 1, 0.5 + LEVEL / 2)) * error

    @property
    def low(self) -> float:
        return self.value - self.half

    @property
    def high(self) -> float:
        return self.value + self.half

    def __sub__(self, other: Estimate) -> Estimate:
        """The difference of two estimates over the same problems in the same order."""
        return self._minus(other, self.influence - other.influence)

    def minus_independent(self, other: Estimate) -> Estimate:
        """The difference of two estimates from different runs."""
        return self._minus(other, np.concatenate([self.influence, -other.influence]))

    def _minus(self, other: Estimate, influence: Floats) -> Estimate:
        count, problems = min(self.count, other.count), min(self.problems, other.problems)
        return Estimate(self.value - other.value, count, influence, problems)


def mean(sums: Floats, counts: Floats) -> Estimate:
    """The mean of values over G problems.

    Args:
        sums: shape (G,), the sum of each problem's values.
        counts: shape (G,), the number of each problem's values.
    """
    total = float(counts.sum())
    if not total:
        return Estimate(float("nan"), 0, np.zeros(len(sums)), 0)
    value = float(sums.sum()) / total
    return Estimate(value, int(total), (sums - value * counts) / total, int(np.count_nonzero(counts)))


class Sums:
    """Named cells, each with the sum and the count of values for each problem. A cell has K columns, and each column
    has its own mean.
    """

    def __init__(self) -> None:
        self._groups: dict[str, int] = {}
        self._cells: dict[str, dict[int, Floats]] = {}

    def add(self, group: str, cell: str, values: ArrayLike, counts: ArrayLike = 1) -> None:
        """Add a trace's values, or sums of values, to a cell.

        Args:
            group: the problem of the trace.
            cell: name of the cell.
            values: shape (K,), or a single value.
            counts: number of values in each sum: an array of the same shape, or one number for all sums.
        """
        number = self._groups.setdefault(group, len(self._groups))
        rows = self._cells.setdefault(cell, {})
        if number not in rows:
            rows[number] = np.zeros((2, np.size(values)))
        rows[number][0] += values
        rows[number][1] += counts

    def cells(self) -> list[str]:
        return list(self._cells)

    def estimate(self, cell: str, part: slice = slice(None)) -> Estimate:
        """The mean of a cell over some of its columns. The mean is NaN if the cell is empty."""
        table = np.zeros((2, len(self._groups)))
        for number, added in self._cells.get(cell, {}).items():
            table[:, number] = added[:, part].sum(-1)
        return mean(table[0], table[1])

    def curve(self, cell: str) -> list[Estimate]:
        """The mean of each column of a cell. Returns an empty list if the cell is empty."""
        rows = self._cells.get(cell)
        if not rows:
            return []
        table = np.zeros((2, len(self._groups), len(next(iter(rows.values()))[0])))
        for number, added in rows.items():
            table[:, number] = added
        return [mean(table[0, :, k], table[1, :, k]) for k in range(table.shape[-1])]
