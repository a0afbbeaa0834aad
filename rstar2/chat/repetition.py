"""Notices that a model writes the same few tokens over and over, so that its answer can be stopped."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rstar2.loop.turns.codec import ChatCodec


@dataclass(frozen=True)
class Often:
    """How often a pattern stands at the end of an answer that is stopped for it."""

    times: int
    tokens: int
    """At least, also of a short pattern."""

    def tokens_of(self, length: int) -> int:
        """Tokens of the repetition of a pattern of `length` tokens."""
        return max(self.tokens, self.times * length)


REPEATED = Often(times=8, tokens=48)
REPEATED_DIGITS = Often(times=16, tokens=128)
"""Of a pattern with a digit: fewer could be the zeros of a number, or of a matrix."""
LONGEST_PATTERN = 64
NEARLY = 64
"""Of so many last tokens, `REPEATED.tokens` that are the same, with others between them, repeat too."""


def repeats(token_ids: list[int], codec: ChatCodec) -> bool:
    """Whether the last tokens are one pattern of at most `LONGEST_PATTERN` tokens, over and over, or one for most."""
    for length in range(1, LONGEST_PATTERN + 1):
        if _ends_in(token_ids, length, REPEATED):
            has_digit = _has_digit(token_ids[-length:], codec)
            return not has_digit or _ends_in(token_ids, length, REPEATED_DIGITS)
    [(commonest, times)] = Counter(token_ids[-NEARLY:]).most_common(1) or [(0, 0)]
    return times >= REPEATED.tokens and not _has_digit([commonest], codec)


def _has_digit(token_ids: list[int], codec: ChatCodec) -> bool:
    return any(character.isdigit() for character in codec.decode(token_ids))


def _ends_in(token_ids: list[int], length: int, often: Often) -> bool:
    """Whether a pattern of `length` tokens stands at the end so often."""
    size = often.tokens_of(length)
    # The last tokens alone first: this is asked after every token.
    if len(token_ids) < size or token_ids[-length:] != token_ids[-2 * length : -length]:
        return False
    tail = token_ids[-size:]
    return tail[length:] == tail[:-length]
