"""Detects that a model writes the same few tokens over and over, so that its answer can be stopped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rstar2.loop.turns.codec import ChatCodec


@dataclass(frozen=True)
class RepetitionLimit:
    """An answer is stopped as soon as the repetitions of a pattern at its end reach this limit."""

    times: int
    """Minimum number of repetitions of the pattern."""
    tokens: int
    """Minimum total number of tokens in the repetitions. A short pattern therefore needs more than `times` repetitions.
    """

    def tokens_of(self, length: int) -> int:
        """Returns the minimum total number of tokens in the repetitions of a pattern of `length` tokens."""
        return max(self.tokens, self.times * length)


REPEATED = RepetitionLimit(times=8, tokens=48)
REPEATED_DIGITS = RepetitionLimit(times=16, tokens=128)
"""The limit for the repetitions of a pattern that contains a digit. This limit is higher than REPEATED, because numbers
and matrices have many equal digits.
"""
LONGEST_PATTERN = 64
WINDOW = 64
"""An answer also counts as repetitive if one token occurs `REPEATED.tokens` times in the last `WINDOW` tokens."""


def repeats(token_ids: list[int], codec: ChatCodec) -> bool:
    """Whether an answer ends in repetitions.

    An answer ends in repetitions if it ends in one repeated pattern of at most `LONGEST_PATTERN` tokens, or if its last
    tokens are mostly the same token.
    """
    for length in range(1, LONGEST_PATTERN + 1):
        if _ends_in(token_ids, length, REPEATED):
            has_digit = _has_digit(token_ids[-length:], codec)
            return not has_digit or _ends_in(token_ids, length, REPEATED_DIGITS)
    [(commonest, times)] = Counter(token_ids[-WINDOW:]).most_common(1) or [(0, 0)]
    return times >= REPEATED.tokens and not _has_digit([commonest], codec)


def _has_digit(token_ids: list[int], codec: ChatCodec) -> bool:
    return any(character.isdigit() for character in codec.decode(token_ids))


def _ends_in(token_ids: list[int], length: int, limit: RepetitionLimit) -> bool:
    """Whether an answer ends in a pattern of `length` tokens whose repetitions reach `limit`."""
    size = limit.tokens_of(length)
    # This runs after every token, so the last two patterns are compared first.
    if len(token_ids) < size or token_ids[-length:] != token_ids[-2 * length : -length]:
        return False
    tail = token_ids[-size:]
    return tail[length:] == tail[:-length]
