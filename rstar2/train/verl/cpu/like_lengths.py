"""Groups rows of similar lengths, so that little padding is needed. Each row is padded to the longest row of its group.

This module imports only the standard library, because `rstar2 plan` uses it on machines without VERL.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST_PADDING = 0.25
"""Maximum share of padding in a micro-batch. A lower value leads to more micro-batches, and every additional
micro-batch takes some time."""


def rows_of_like_lengths(lengths: Sequence[float], limit: int) -> list[list[int]]:
    """Divides rows into groups of similar lengths.

    Including padding, a group has at most `limit` tokens, unless the group is a single row with more tokens. At most
    the share `MOST_PADDING` of a group's tokens is padding.

    Args:
        lengths: number of tokens of each row.
        limit: maximum number of tokens of a group, including padding.

    Returns:
        For each group, the indices of its rows. The longest row comes first.
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
