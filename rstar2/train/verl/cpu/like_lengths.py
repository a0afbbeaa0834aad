"""Groups rows of similar lengths, so that padding them to the longest row of their group adds little.

This module imports nothing, because `rstar2 plan` uses it on machines without VERL.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_PADDING = 0.25
"""The largest share of padding in a micro-batch. A lower value makes more micro-batches, and each micro-batch takes
some time by itself."""


def rows_of_like_lengths(lengths: Sequence[float], limit: int) -> list[list[int]]:
    """Divides rows into groups of similar lengths.

    With padding, a group has at most `limit` tokens, unless it is a single longer row. At most `MOST_PADDING` of a
    group is padding.

    Args:
        lengths: tokens of each row.
        limit: the largest number of tokens of a group, with padding.

    Returns:
        For each group the indices of its rows, the longest row first.
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
