"""Puts rows of like lengths together, so that little is added where they are filled up to the longest of them.

It imports nothing: `rstar2 plan` calculates with it where VERL is not installed.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_PADDING = 0.25
"""Of a micro-batch's tokens. The smaller, the more micro-batches, each of which takes time by itself."""


def rows_of_like_lengths(lengths: Sequence[float], limit: int) -> list[list[int]]:
    """Rows in groups, each of at most `limit` tokens when it is filled up to its longest row, or of one row.

    At most `MOST_PADDING` of a group is padding.
    """
    groups: list[list[int]] = []
    longest = tokens = 0.0
    for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
        filled = longest * (len(groups[-1]) + 1) if groups else 0
        if not groups or filled > limit or tokens + lengths[row] < (1 - MOST_PADDING) * filled:
            groups.append([])
            longest, tokens = lengths[row], 0
        groups[-1].append(row)
        tokens += lengths[row]
    return groups
