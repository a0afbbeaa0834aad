"""The points at which two expressions are compared."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from fractions import Fraction
from itertools import islice, pairwise, product

from rstar2.eval.grader.parse.nodes import Call, Node, Number, Residue, Symbol, walk
from rstar2.eval.grader.values.functions import ANGLES
from rstar2.eval.grader.values.guarded_numbers import Constant, Setting
from rstar2.eval.grader.values.kinks import kinks, turnings
from rstar2.eval.grader.values.letters import functions, variables

ROUNDING = frozenset({"floor", "ceil", "sgn"})
"""Functions whose values jump."""
STEPS = ROUNDING | {"gcd", "lcm", "min", "max"}
"""Functions that may agree with simpler ones except at some numbers, or at large ones."""
LENGTHS = frozenset({"abs", "norm"})
OF_COMPLEX = LENGTHS | {"Re", "Im", "arg"}
_INTEGERS = frozenset("nkmj")
_MANY_DIVISORS = Fraction(2329089562800**6)
"""A square and a cube that all numbers up to 30 divide, and their squares."""
_JUMPS = (Fraction(64), Fraction(2520), Fraction(-2520), Fraction(1), Fraction(5, 2), _MANY_DIVISORS)
"""Whole numbers with many divisors, powers and a half: where floors and ceilings of most expressions jump."""
_COMPLEX = (Fraction(3, 4), Fraction(-5, 8))
"""Imaginary parts that letters for complex numbers get."""
_FAR = tuple(Fraction(sign * value, 101) for value in (523, 3203, 101203) for sign in (1, -1))
"""Values on either side of most kinks that are not found."""
_SMALL = 12
"""Whole numbers up to this one have all remainders of the usual periods."""
_MAX_SIZES, _MAX_SIZE = 8, 10**6
"""How many of the numbers in a text, and up to which, a letter for a whole number is set to."""
_MAX_CHOICES, _MAX_PRODUCT = 16, 4096
"""How many points there are where several letters lie on all sides of their kinks, and of how many they are taken."""


def is_for_integers(names: list[str]) -> bool:
    """Whether all letters are such as may be taken to be whole numbers where an identity holds for those only."""
    return _INTEGERS.issuperset(names)


def fixed_points(names: list[str]) -> Iterator[dict[str, Fraction]]:
    """Points with fractions that depend on the names only; the last two have negative coordinates."""
    for trial in range(5):
        point = {}
        for name in names:
            digest = hashlib.sha256(f"{trial}|{name}".encode()).digest()
            value = Fraction(200 + int.from_bytes(digest[:2], "big") % 2500, 1009)
            point[name] = -value if trial > 2 and (len(names) == 1 or digest[2] % 2 or trial == 4) else value
        yield point


def special_points(a: Node, b: Node, names: list[str]) -> Iterator[dict[str, Constant]]:
    """Where expressions may differ that agree nearly everywhere, or at real numbers."""
    used = functions(a) | functions(b)
    if used & STEPS:
        for start in range(len(_JUMPS)):
            yield {name: _JUMPS[(start + i) % len(_JUMPS)] for i, name in enumerate(names)}
    letters = _complex_letters(a) | _complex_letters(b) if used & OF_COMPLEX else set()
    if letters:
        point = next(fixed_points(names))
        for part in _COMPLEX:
            yield {name: (value, part) if name in letters else value for name, value in point.items()}


def _complex_letters(node: Node) -> set[str]:
    """The letters that may be complex: those inside Re, Im and arg, or inside |…| where they are called z or w."""
    found = set[str]()
    for part in walk(node):
        if isinstance(part, Call) and part.name in OF_COMPLEX:
            found |= {name for name in variables(part) if name[0] in "zw" or part.name not in LENGTHS}
    return {name for name in found if name[0] in "zw"} or found


def points_around_kinks(
    a: Node, b: Node, names: list[str], setting: Setting
) -> Iterator[dict[str, Fraction]]:
    """Points on all sides of the kinks of both expressions, where they have any."""
    found = turnings(a, b)
    if not found:
        return
    first, _, _, second, _ = fixed_points(names)
    for start in (first, second) if len(names) > 1 else (first,):
        sides = {name: _between(kinks(found, name, start, setting)) for name in names}
        for name in names:
            for value in (*sides[name], *(_FAR if start is first else ())):
                yield {**start, name: value}
        choices = math.prod(len(values) or 1 for values in sides.values())
        if len(names) > 1 and choices <= _MAX_PRODUCT:
            every = product(*(values or [start[name]] for name, values in sides.items()))
            for values in islice(every, 0, None, -(-choices // _MAX_CHOICES)):
                yield dict(zip(names, values, strict=True))


def _between(places: list[Fraction]) -> list[Fraction]:
    """A place in each gap between kinks, and before and behind all of them."""
    if not places:
        return []
    gaps = pairwise(places)
    inner = [low + (high - low) * Fraction(19, 43) for low, high in gaps]
    return [places[0] - Fraction(19, 43), *inner, places[-1] + Fraction(19, 43)]


def small_whole_points(a: Node, b: Node, names: list[str]) -> Iterator[dict[str, Fraction]]:
    """Whole numbers of all remainders and in any order, where an expression may hinge on those."""
    if not _may_be_periodic(a, b):
        return
    for start in range(1, _SMALL + 1):
        values = [Fraction(start + 5 * i) for i in range(len(names))]
        yield dict(zip(names, values, strict=True))
        if len(names) > 1:
            yield dict(zip(names, reversed(values), strict=True))
            yield dict.fromkeys(names, Fraction(start))


def whole_points_around_kinks(
    a: Node, b: Node, names: list[str], setting: Setting
) -> Iterator[dict[str, Fraction]]:
    """Positive whole numbers next to the kinks of both expressions, and next to the numbers in them."""
    if not _may_be_periodic(a, b):
        return
    found, sizes = turnings(a, b), _sizes(a, b)
    start = {name: Fraction(_SMALL + 5 * i) for i, name in enumerate(names)}
    for name in names:
        near = {math.floor(kink) for kink in kinks(found, name, start, setting)}.union(sizes)
        for value in sorted({middle + step for middle in near for step in (-1, 0, 1)}):
            if value > 0:
                yield {**start, name: Fraction(value)}


def _may_be_periodic(a: Node, b: Node) -> bool:
    """Whether expressions in whole numbers have remainders, angles or what else depends on more than their size."""
    return bool(turnings(a, b)) or any(
        isinstance(part, Residue)
        or (isinstance(part, Call) and (part.name in STEPS or part.name in ANGLES))
        or part == Symbol("i")
        for node in (a, b)
        for part in walk(node)
    )


def _sizes(a: Node, b: Node) -> list[int]:
    """The numbers and the denominators in two expressions, but for the small ones."""
    values = [part.value for node in (a, b) for part in walk(node) if isinstance(part, Number)]
    found = {abs(size) for value in values for size in (value.numerator, value.denominator)}
    return sorted(size for size in found if _SMALL < size <= _MAX_SIZE)[:_MAX_SIZES]
