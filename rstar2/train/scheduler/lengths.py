"""Learns how long rollouts become, so that an engine need not keep room for the full length of all of them."""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

WINDOW = 16384
"""Rollouts remembered, the last that started: one step of the paper's, since the policy changes."""
BINS = 128
HORIZONS = 17
"""From now to a full length later, evenly."""
_EVERY = 32
"""Rollouts that end between two calculations."""
_FEWEST = 256
"""Rollouts of which an average is made; of fewer nothing is known."""
_UNENDED = 0.02

Floats = NDArray[np.float64]


class LengthModel:
    """The lengths of the last rollouts, as shares of the most that each could have become.

    Those that end first are short. So rollouts count in the order in which they started, up to where more than a few
    have not ended; these few count as if they came to their full length.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._first = 0
        """The number of the oldest that is remembered."""
        self._ends: deque[int | None] = deque()
        """The bin of each ended rollout, in order of their start; None before it ended."""
        self._counted = 0
        """How many of them count, the oldest."""
        self._counts = np.zeros(BINS)
        self._unended = 0
        """Of those that count."""
        self._ended_since = 0
        self._lasting: Floats | None = None

    def started(self) -> int:
        """Count a rollout that starts; returns its number."""
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
        """Note the share of its full length, 0 to 1, at which a rollout ended."""
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
        """Count more rollouts, as far as they have ended, and calculate anew."""
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
        """The chance that a rollout that has come to `share` lasts to each horizon; None while nothing is known.

        Shape (HORIZONS,): one that writes 1 / (HORIZONS - 1) of its full length further at each.
        """
        return None if self._lasting is None else self._lasting[min(BINS - 1, int(share * BINS))]
