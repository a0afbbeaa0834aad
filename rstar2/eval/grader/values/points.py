"""Random points in general position, at which two expressions are compared.

They are drawn from a keyed hash of both expressions, so that the same pair always meets the same points and nobody
who does not know the secret of the run can choose a formula that agrees at them.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import count
from random import Random
from typing import Any, TypeAlias

from rstar2.eval.grader.parse.nodes import (
    Call,
    Node,
    Number,
    Power,
    Residue,
    Series,
    Symbol,
    walk,
)
from rstar2.eval.grader.values.corners import points_between_corners
from rstar2.eval.grader.values.evaluate import evaluate
from rstar2.eval.grader.values.functions import ANGLES
from rstar2.eval.grader.values.guarded_numbers import Constant, NoValue, Setting, mpmath_context
from rstar2.eval.grader.values.letters import functions, variables
from rstar2.eval.grader.values.rational import degree
from rstar2.eval.grader.values.secret import keyed_random

Point: TypeAlias = Mapping[str, Constant]
"""The value of each letter."""

ROUNDING = frozenset({"floor", "ceil", "sgn"})
"""Functions whose values jump."""
STEPS = ROUNDING | {"gcd", "lcm", "min", "max"}
"""Functions that may agree with simpler ones except at some numbers, or at large ones."""
LENGTHS = frozenset({"abs", "norm"})
OF_COMPLEX = LENGTHS | {"Re", "Im", "arg"}
_INVERSES = frozenset({"arcsin", "arccos", "arctan", "arccot"})
_COUNTING = frozenset({"factorial", "double_factorial", "binom", "gcd", "lcm"})
"""Functions whose letters are whole numbers, whatever they are called."""
_USUALLY_WHOLE = frozenset("jkmn")
_DIGITS = 40
_DENOMINATOR = 1009
_SIZES = (6, 20, 200, 2000, 1 << 20)
"""The largest whole numbers that letters are set to, in turn."""
_SERIES_SIZES = (6, 12, 25, 60)
"""The same if a letter is the bound of a sum or product, which is added up."""
_MIXED_SIZES = (4, 8, 16, 40)
"""The same if other letters are real, as in x^n."""
_RANGES = ((0, 1), (0, 3), (1, 12), (0, 40), (0, 1000))
"""The intervals that real letters are drawn from, in turn."""
_FAR, _JUST_BELOW = 10**6, Fraction(1, 10**15)
"""How far letters below a step go, and how near to a jump."""
_CENTRES_TO, _MAX_CENTRES = 10**60, 8
"""Larger constants of an expression, and further ones, are not tried as values of letters."""


def rational_points(random: Random, names: list[str], bits: int) -> Iterator[Point]:
    """Endless points of positive whole numbers of up to so many bits."""
    while True:
        yield {name: Fraction(random.randint(1, 1 << bits)) for name in names}


def point_source(a: Node, b: Node, purpose: str) -> Random:
    """Returns a generator of its own for a pair of expressions, in any order, and a purpose."""
    return keyed_random(purpose, *sorted((_fingerprint(a), _fingerprint(b))))


def _fingerprint(node: Node) -> str:
    """A text that tells expressions apart; repr cannot write numbers of more than 4,300 digits."""
    parts = [
        f"{value.numerator:x}/{value.denominator:x}" if isinstance(value, Fraction) else str(value)
        for part in walk(node)
        for value in (type(part).__name__, *(getattr(part, name) for name in part.__slots__))
        if isinstance(value, Fraction | str)
    ]
    return " ".join(parts)


def whole_letters(a: Node, b: Node) -> set[str]:
    """Returns the letters that stand for whole numbers: j, k, m, n, and those that something is counted by.

    Both expressions have to count by them, or the other one is rational: x is no whole number just because gcd(x, x)
    is written for |x|.
    """
    counted = [_counted(node) for node in (a, b)]
    letters = counted[0] & counted[1]
    for ours, other in zip(counted, (b, a), strict=True):
        if degree(other) is not None:
            letters |= ours
    either = variables(a) | variables(b)
    return (letters | _USUALLY_WHOLE) & either


def _counted(node: Node) -> set[str]:
    """The letters by which an expression counts: those in factorials and the like, and in the bounds of sums."""
    letters = set[str]()
    for part in walk(node):
        if isinstance(part, Call) and part.name in _COUNTING:
            letters |= {name for arg in part.args for name in _bare_letters(arg)}
        if isinstance(part, Series) and part.kind in {"sum", "prod"}:
            letters |= variables(part.low) | variables(part.high)
    return letters


def has_plain_counts(node: Node) -> bool:
    """Whether factorials and binomial coefficients are of plain sizes, such as 2n - k, rather than of (-1)^n."""
    return all(
        degree(arg) is not None
        for part in walk(node)
        if isinstance(part, Call) and part.name in _COUNTING
        for arg in part.args
    )


def _bare_letters(node: Node) -> set[str]:
    """The letters of an argument such as 2n - k, but not those under functions."""
    return set() if any(isinstance(part, Call) for part in walk(node)) else variables(node)


def only_for_whole_numbers(node: Node, letters: set[str]) -> bool:
    """Whether a formula has another meaning at broken numbers, as (-1)^n, ⌊n/2⌋ and cos nπ have."""
    return any(_has_whole_argument(part, letters) for part in walk(node))


def _has_whole_argument(part: Node, letters: set[str]) -> bool:
    match part:
        case Residue():
            return bool(variables(part) & letters)
        case Call(name=name):
            periodic = name in ANGLES and Symbol("pi") in set(walk(part))
            stepped = name in STEPS - {"min", "max"} or name == "double_factorial"
            return (periodic or stepped) and bool(variables(part) & letters)
        case Series():
            return bool((variables(part.low) | variables(part.high)) & letters)
        case Power(base=base, exponent=exponent) if variables(exponent) & letters:
            return not variables(base) and not _is_plainly_positive(base)
    return False


def _is_plainly_positive(base: Node) -> bool:
    return (isinstance(base, Number) and base.value > 0) or base in {Symbol("e"), Symbol("pi")}


def whole_points(random: Random, a: Node, b: Node, names: list[str], whole: set[str]) -> Iterator[Point]:
    """Endless points of whole numbers of all sizes, in any order; the other letters are real and positive."""
    bounded = any(
        isinstance(part, Series) and variables(part.low) | variables(part.high)
        for node in (a, b)
        for part in walk(node)
    )
    if not whole.issuperset(names):
        sizes: tuple[int, ...] = _MIXED_SIZES
    else:
        sizes = _SERIES_SIZES if bounded else _SIZES
    centres = _numbers_in(a, b) if has_steps(a, b) or has_kinks(a, b) else []
    for turn in count():
        size = sizes[turn % len(sizes)]
        point: dict[str, Constant] = {
            name: Fraction(random.randint(1, size), 1 if name in whole else random.choice((2, 3, 5, 7)))
            for name in names
        }
        if centres and turn % 2:
            name, centre = random.choice(sorted(whole)), random.choice(centres)
            multiple = centre.numerator * random.randint(1, 9)
            value = random.choice((centre.numerator, multiple)) + random.choice((0, 0, -1, 1))
            point[name] = Fraction(max(1, value))
        yield point


def real_points(
    random: Random, a: Node, b: Node, names: list[str], positive: set[str]
) -> Iterator[tuple[Point, bool]]:
    """Endless points of broken numbers of several sizes, and whether only real values count there.

    Every third point has negative letters, but for those in `positive`. If an expression has corners, points between
    them come first. If it has corners or jumps, every second point has a letter near or at a constant in it.
    """
    stepped = has_steps(a, b)
    if has_kinks(a, b):
        for _ in range(2):
            start = {name: _broken(random, 0, 3) for name in names}
            for corner in points_between_corners(random, a, b, start):
                if all(corner[name] > 0 for name in positive):
                    yield corner, True
    centres = _numbers_in(a, b) if stepped or has_kinks(a, b) else []
    widest = max((_FAR if stepped else 0), *(10 * math.ceil(centre) for centre in centres), 0)
    ranges = (*_RANGES, (0, widest)) if centres else _RANGES
    for turn in count():
        low, high = ranges[turn % len(ranges)] if turn % 4 != 2 else ranges[-1]
        point: dict[str, Constant] = {name: _broken(random, low, high) for name in names}
        negative = False
        if turn % 3 == 2:
            for name in names:
                if name not in positive and (len(names) == 1 or random.random() < 0.6):
                    value = point[name]
                    assert isinstance(value, Fraction)
                    point[name], negative = -value, True
        if centres and turn % 2:
            name = random.choice(names)
            centre = random.choice(centres) * random.choice((1, 1, -1))
            if stepped and turn % 6 != 1:
                multiple = centre * Fraction(random.randint(-6, 6), random.choice((1, 1, 2)))
                point[name] = multiple - random.choice((0, 0, _JUST_BELOW))
            else:
                point[name] = centre + _broken(random, 0, 1) * random.choice((1, -1))
            if name in positive:
                point[name] = abs(centre) + _broken(random, 0, 1)
            negative = True
        yield point, negative


def complex_points(random: Random, a: Node, b: Node, names: list[str]) -> Iterator[Point]:
    """Endless points at which the letters that may be complex are; none if there are no such letters."""
    used = functions(a) | functions(b)
    letters = _complex_letters(a) | _complex_letters(b) if used & OF_COMPLEX else set()
    while letters:
        yield {
            name: (_broken(random, -3, 3), _broken(random, -3, 3))
            if name in letters
            else _broken(random, 0, 3)
            for name in names
        }


def _complex_letters(node: Node) -> set[str]:
    """The letters that may be complex: those inside Re, Im and arg, or inside |…| if they are called z or w."""
    letters = set[str]()
    for part in walk(node):
        if isinstance(part, Call) and part.name in OF_COMPLEX:
            letters |= {name for name in variables(part) if name[0] in "zw" or part.name not in LENGTHS}
    return {name for name in letters if name[0] in "zw"} or letters


def has_steps(a: Node, b: Node) -> bool:
    """Whether an expression has jumps at whole numbers, or a value that depends on divisors."""
    return any(
        (isinstance(part, Residue) or (isinstance(part, Call) and part.name in STEPS)) and variables(part)
        for node in (a, b)
        for part in walk(node)
    )


def is_piecewise(a: Node, b: Node) -> bool:
    """Whether an expression is written with |…|, minima, floors or the like, so that other formulas agree in places."""
    return bool((functions(a) | functions(b)) & (LENGTHS | STEPS))


def has_kinks(a: Node, b: Node) -> bool:
    """Whether an expression may follow different formulas in different places, as |x|, √(x²) and max(x, 1) do."""
    return any(_is_kinked(part) for node in (a, b) for part in walk(node))


def _is_kinked(part: Node) -> bool:
    match part:
        case Call(name="root", args=(inner, Number(value=index))):
            return index % 2 != 1 and bool(variables(inner))
        case Call(name=name):
            return (name in LENGTHS | STEPS | _INVERSES or name == "root") and bool(variables(part))
        case Power(base=base, exponent=exponent):
            whole = isinstance(exponent, Number) and exponent.value.denominator == 1
            return not whole and not variables(exponent) and bool(variables(base))
    return False


def _numbers_in(a: Node, b: Node) -> list[Fraction]:
    """The constants in two expressions, the quotients of two of them, and 1."""
    values = {abs(value) for node in (a, b) for value in _constants(node)}
    sizes = sorted(value for value in values if 0 < value <= _CENTRES_TO)[:_MAX_CENTRES]
    quotients = {over / under for over in sizes for under in sizes if 1 not in {over, under}}
    return sorted({Fraction(1), *sizes, *quotients})


def _constants(node: Node) -> Iterator[Fraction]:
    """The rational values of the largest parts without letters, such as 10^6 in |x - 10^6|."""
    pending: list[Any] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, tuple):
            pending.extend(part)
        elif isinstance(part, Node) and variables(part):
            pending.extend([getattr(part, name) for name in part.__slots__])
        elif isinstance(part, Node):
            with contextlib.suppress(NoValue):
                value = evaluate(part, Setting({}, mpmath_context(_DIGITS)))
                if isinstance(value, Fraction):
                    yield value


def _broken(random: Random, low: int, high: int) -> Fraction:
    """A fraction that is no whole number, between two whole numbers."""
    return low + Fraction(random.randrange((high - low) * _DENOMINATOR) * 2 + 1, 2 * _DENOMINATOR)
