"""Predicts the lengths of rollouts, so that an engine need not reserve the full length for each of them."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

WINDOW = 16384
"""Number of rollouts, the last that started, from which lengths are predicted. A step of the paper has this number of
rollouts. Older rollouts are from an older policy."""
BINS = 128
"""Number of bins into which the lengths are counted."""
HORIZONS = 17
"""Number of points at which a prediction is made: evenly spaced from now to one full length later."""
_EVERY = 32
"""A new calculation is made after this many rollouts have ended."""
_FEWEST = 256
"""No prediction is made from fewer rollouts than this."""
_UNENDED = 0.02
"""The largest share of rollouts that have not ended among those that count."""

Floats = NDArray[np.float64]


class LengthModel:
    """The lengths of the last rollouts, as shares of their full lengths.

    The rollouts that end first are short, so they are not a fair sample. Rollouts therefore count in the order in which
    they started, and only as long as at most a share of `_UNENDED` has not ended. Rollouts that have not ended count
    with their full length.

    Args:
        window: number of rollouts, the last that started, that count.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._first = 0
        """The number of the oldest rollout in `_ends`."""
        self._ends: deque[int | None] = deque()
        """The bin of each rollout's length, in order of their start; None if the rollout has not ended."""
        self._counted = 0
        """Number of rollouts that count: the first in `_ends`."""
        self._counts = np.zeros(BINS)
        """Number of ended rollouts in each bin, among those that count."""
        self._unended = 0
        """Number of rollouts that have not ended, among those that count."""
        self._ended_since = 0
        """Number of rollouts that have ended since the last calculation."""
        self._lasting: Floats | None = None

    def started(self) -> int:
        """Adds a rollout that starts, and returns its number."""
        self._ends.append(None)
        if len(self._ends) > self._window:
            self._uncount(self._ends.popleft())
            self._first += 1
        return self._first + len(self._ends) - 1

    def _uncount(self, oldest: int | None) -> None:
        if not self._counted:
            return
        self._counted -= 1
        if oldest is None:
            self._unended -= 1
        else:
            self._counts[oldest] -= 1

    def ended(self, number: int, share: float) -> None:
        """Records the length of a rollout that has ended, as a share of its full length (0 to 1)."""
        place = number - self._first
        if place < 0:
            return
        at = min(BINS - 1, int(share * BINS))
        self._ends[place] = at
        if place < self._counted:
            self._counts[at] += 1
            self._unended -= 1
        self._ended_since += 1
        if self._ended_since >= _EVERY:
            self._ended_since = 0
            self._extend()

    def _extend(self) -> None:
        """Adds rollouts to those that count, and calculates the prediction again."""
        while self._counted < len(self._ends):
            at = self._ends[self._counted]
            if at is None and self._unended + 1 > _UNENDED * (self._counted + 1):
                break
            self._counted += 1
            if at is None:
                self._unended += 1
            else:
                self._counts[at] += 1
        if self._counted < _FEWEST:
            return
        alive = np.append(np.cumsum(self._counts[::-1])[::-1], 0.0) + self._unended
        later = np.minimum(np.arange(BINS)[:, None] + np.arange(HORIZONS) * (BINS // (HORIZONS - 1)), BINS)
        enough = alive[:BINS, None] >= _FEWEST / 8
        self._lasting = np.where(enough, alive[later] / np.maximum(alive[:BINS, None], 1.0), 1.0)

    def lasting(self, share: float) -> Floats | None:
        """Returns the probability that a rollout still runs at each horizon, of shape (HORIZONS,).

        From one horizon to the next, the rollout grows by 1 / (HORIZONS - 1) of its full length. Returns None if too
        few rollouts have ended.

        Args:
            share: the rollout's length so far, as a share of its full length.
        """
        return None if self._lasting is None else self._lasting[min(BINS - 1, int(share * BINS))]
