"""Predicts the lengths of rollouts, so that an engine need not reserve room for the maximum length of every rollout."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

WINDOW = 16384
"""Number of most recently started rollouts from which lengths are predicted. A step of the paper has this many
rollouts. Older rollouts come from an older policy."""
BINS = 128
"""Number of bins in the histogram of lengths."""
HORIZONS = 17
"""Number of horizons, which are the points in the future for which a prediction is made. The horizons are evenly spaced
from now until the rollout has grown by its maximum length."""
_EVERY = 32
"""The prediction is recalculated each time this many rollouts have ended."""
_FEWEST = 256
"""No prediction is made while the sample has fewer rollouts than this."""
_UNENDED = 0.02
"""At most this share of the rollouts in the sample may still be running."""

Floats = NDArray[np.float64]


class LengthModel:
    """Predicts lengths from a sample of the last rollouts. A length is a share of the rollout's maximum length.

    The rollouts that end first are short, so they would be a biased sample. Rollouts are therefore added to the sample
    in the order in which they started. A rollout is not added if it would raise the share of running rollouts in the
    sample above `_UNENDED`. A rollout in the sample that is still running is assumed to reach its maximum length.

    Args:
        window: number of most recently started rollouts from which the sample is taken.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._first = 0
        """The number of the oldest rollout in `_ends`."""
        self._ends: deque[int | None] = deque()
        """The bin of each rollout's length, or None for a rollout that has not ended, in the order in which rollouts
        started."""
        self._counted = 0
        """Number of rollouts in the sample. The sample is the first part of `_ends`."""
        self._counts = np.zeros(BINS)
        """For each bin, the number of ended rollouts in the sample."""
        self._unended = 0
        """Number of rollouts in the sample that have not ended."""
        self._ended_since = 0
        """Number of rollouts that have ended since the prediction was last calculated."""
        self._lasting: Floats | None = None

    def started(self) -> int:
        """Adds a rollout that starts now, and returns the rollout's number."""
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
        """Records the length of a rollout that has ended. `share` is the length as a share of the maximum length (0 to
        1)."""
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
        """Adds rollouts to the sample as far as `_UNENDED` allows, and calculates the prediction again."""
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
        """Returns, for each horizon, the probability that a rollout is still running at the horizon, in an array of
        shape (HORIZONS,).

        From one horizon to the next, the rollout grows by 1 / (HORIZONS - 1) of its maximum length. Returns None if too
        few rollouts have ended.

        Args:
            share: the rollout's length so far, as a share of its maximum length.
        """
        return None if self._lasting is None else self._lasting[min(BINS - 1, int(share * BINS))]
