"""The domain of each variable (letter) in each kind of formula, and random points in these domains."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from random import Random
from typing import Literal, TypeAlias, get_args

Kind: TypeAlias = Literal["whole", "sizes", "real", "angles", "exponents", "mixed", "steps"]
"""`whole`: letters for whole numbers. `sizes`: whole numbers in order, k ≤ n, with factorials and binomials. `real`,
`angles`: real numbers. `exponents`: whole exponents above real bases. `mixed`: letters of several of these kinds.
`steps`: whole or real numbers under floors, remainders, divisors, minima and absolute values."""
KINDS: tuple[Kind, ...] = get_args(Kind)

WHOLE = ("n", "k", "m", "j")
REAL = ("x", "y", "a", "b", "t")
ANGLES = ("theta", "alpha")
POINTS = 36


def points(kind: Kind, names: set[str], random: Random, count: int = POINTS) -> Iterator[dict[str, Fraction]]:
    """Return random points for a kind of formula: a third each of small, medium and large numbers.

    Whole numbers are positive. In formulas with factorials and powers, they are small enough to compute exact values.
    """
    for trial in range(count):
        size = trial % 3
        point = {name: _real(random, size) for name in sorted(names) if name not in WHOLE}
        point |= _whole(kind, sorted(name for name in names if name in WHOLE), random, size)
        yield point


def _whole(kind: Kind, names: list[str], random: Random, size: int) -> dict[str, Fraction]:
    if kind in {"sizes", "mixed", "exponents"}:
        most = (9, 40, 150)[size]
        values = [random.randint(1, most) for _ in names]
        if kind == "sizes" and values:
            values[names.index("n") if "n" in names else -1] = max(values) + random.randint(0, most)
    else:
        most = (12, 200, 10**9)[size]
        values = [random.randint(1, most) for _ in names]
    return {name: Fraction(number) for name, number in zip(names, values, strict=True)}


def _real(random: Random, size: int) -> Fraction:
    """Return a random fraction. A third are whole numbers, and 40 % are negative."""
    under = random.choice((1, 2, 3, 7, 101, 997))
    over = random.randint(1, (4, 50, 2000)[size] * under)
    return Fraction(over if random.random() < 0.6 else -over, under)
