"""The type of confidence intervals, and the confidence interval of a share.

This module does not import numpy, because numpy is not installed with the extra `grade`.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

LEVEL = 0.95
"""Confidence level of every interval."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A two-sided confidence interval with the level `LEVEL`, for a share or for a difference between shares."""

    low: float
    high: float


def share(hits: int, total: int) -> Interval:
    """Returns Wilson's confidence interval for a share of independent cases.

    Raises:
        ValueError: `total` is less than 1, or `hits` is not in 0..total.
    """
    if total < 1 or not 0 <= hits <= total:
        raise ValueError(f"{hits} of {total} is not a share")
    z = NormalDist().inv_cdf(0.5 + LEVEL / 2)
    rate, spread = hits / total, z * z / total
    centre = (rate + spread / 2) / (1 + spread)
    half = z / (1 + spread) * (rate * (1 - rate) / total + spread / total / 4) ** 0.5
    low, high = (0.0 if hits == 0 else centre - half), (1.0 if hits == total else centre + half)
    return Interval(low, high)
