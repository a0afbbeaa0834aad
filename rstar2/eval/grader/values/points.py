"""Random points at which two expressions are compared.

The points come from a keyed hash of both expressions, so the same pair is always compared at the same points. Without
the secret of the run, nobody can choose a formula that agrees with another formula at just these points.
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
    Apply,
    Call,
    Node,
    Number,
    Power,
    Quotient,
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
"""Functions whose value jumps at some arguments."""
STEPS = ROUNDING | {"gcd", "lcm", "min", "max"}
"""Functions that may agree with simpler functions everywhere except at some numbers or at large numbers."""
LENGTHS = frozenset({"abs", "norm"})
"""Functions that return an absolute value."""
COMPLEX_FUNCTIONS = LENGTHS | {"Re", "Im", "arg"}
"""Functions whose arguments may be complex."""
_INVERSES = frozenset({"arcsin", "arccos", "arctan", "arccot"})
_COUNTING = frozenset({"factorial", "double_factorial", "binom", "gcd", "lcm"})
"""Functions whose arguments contain only integer letters: in gcd(x, 6), x is an integer too."""
_USUALLY_WHOLE = frozenset("jkmn")
"""Letters that are usually integers."""
_DIGITS = 40
_DENOMINATORS, _FINE_DENOMINATORS, _FINE_TURNS = (1000, 2000), (1 << 40, 1 << 41), range(0, 12, 2)
"""Two ranges from which denominators of fractions are drawn (usual and fine), and the indices of the points that use
the fine range. A fixed denominator would miss some differences: sin(2018πx) is zero at all fractions over 2018.
Denominators in the fine range usually have large prime factors, so that a factorial times a fraction is not an integer.
"""
_SIZES = (6, 20, 200, 2000, 1 << 20, 1 << 64)
"""Maximum values for letters that are integers. The points cycle through these values."""
_SERIES_SIZES = (5, 10, 20, 40)
"""Maximum values for letters that are integers, if a letter is a bound of a sum or product. The points cycle through
these values. They are small because the sum or product is computed term by term."""
_MIXED_SIZES = (4, 8, 16, 40)
"""Maximum values for letters that are integers, if the expressions also have real letters, as in x^n. The points cycle
through these values."""
_STEPPED_SIZES = (300, 3000)
"""Additional maximum values for letters that are integers, if the expressions have steps and real letters: ⌊n/100⌋
equals its square for n up to 199."""
_RANGES = ((0, 1), (0, 3), (1, 12), (0, 40), (0, 1000))
"""The intervals from which values of real letters are drawn. The points cycle through these intervals."""
_NEGATIVE_TURN = 6
"""If an expression also has integer letters, its real letters are negative at only one of this many points, because
x^(n/2) has few values at negative x."""
_FAR_DIGITS, _JUST_BELOW = 20, Fraction(1, 10**15)
"""Two numbers for expressions with steps: the maximum number of digits of a letter's value, and the distance between a
jump and a point just below it."""
_MAX_CENTRE, _MAX_CENTRES, _CENTRE_DENOMINATOR = 10**60, 8, 10**6
"""Centres are constants of an expression that are tried as values of letters. The three numbers are the maximum value
of a centre, the maximum number of centres for two expressions, and the denominator to which irrational centres are
rounded."""


def rational_points(random: Random, names: list[str], bits: int) -> Iterator[Point]:
    """Yields an endless series of points at which each letter is a positive integer up to 2^bits."""
    while True:
        yield {name: Fraction(random.randint(1, 1 << bits)) for name in names}


def point_source(a: Node, b: Node, purpose: str) -> Random:
    """Returns the random generator for two expressions and a purpose. The order of the expressions does not matter."""
    return keyed_random(purpose, *sorted((_fingerprint(a), _fingerprint(b))))


def _fingerprint(node: Node) -> str:
    """Returns a text that identifies an expression. `repr` would fail for numbers with more than 4,300 digits."""
    parts = [
        f"{value.numerator:x}/{value.denominator:x}" if isinstance(value, Fraction) else str(value)
        for part in walk(node)
        for value in (type(part).__name__, *(getattr(part, name) for name in part.__slots__))
        if isinstance(value, Fraction | str)
    ]
    return " ".join(parts)


def whole_letters(a: Node, b: Node) -> set[str]:
    """Returns the letters that are integers: j, k, m, n, and the counting letters of the expressions
    (`_counting_letters`).

    If a letter is a counting letter in one expression but not in the other, it is an integer only if the other
    expression is rational. For example, when gcd(x, x) is compared with |x|, x is not an integer.
    """
    counting = [_counting_letters(node) for node in (a, b)]
    letters = counting[0] & counting[1]
    for names, node, other in zip(counting, (a, b), (b, a), strict=True):
        if degree(other) is not None and not is_piecewise(node, other):
            letters |= names
    either = variables(a) | variables(b)
    return (letters | _USUALLY_WHOLE) & either


def _counting_letters(node: Node) -> set[str]:
    """Returns the counting letters of an expression: the letters in factorials and similar functions, and in the bounds
    of sums and products."""
    letters = set[str]()
    for part in walk(node):
        if isinstance(part, Call) and part.name in _COUNTING:
            letters |= {name for arg in part.args for name in _bare_letters(arg)}
        if isinstance(part, Series) and part.kind in {"sum", "prod"}:
            letters |= variables(part.low) | variables(part.high)
    return letters


def has_plain_counts(node: Node) -> bool:
    """Whether the arguments of factorials and similar functions are rational expressions, as 2n - k is and (-1)^n is
    not."""
    return all(
        degree(arg) is not None
        for part in walk(node)
        if isinstance(part, Call) and part.name in _COUNTING
        for arg in part.args
    )


def _bare_letters(node: Node) -> set[str]:
    """Returns the letters of an argument such as 2n - k, or no letters if the argument contains a function."""
    return set() if any(isinstance(part, Call) for part in walk(node)) else variables(node)


def only_for_whole_numbers(node: Node, letters: set[str]) -> bool:
    """Whether a formula behaves differently at fractions than at integers, as (-1)^n, ⌊n/2⌋ and cos nπ do."""
    return any(_has_whole_argument(part, letters) for part in walk(node))


def _has_whole_argument(part: Node, letters: set[str]) -> bool:
    match part:
        case Residue():
            return bool(variables(part) & letters)
        case Call(name=name):
            is_periodic = name in ANGLES and Symbol("pi") in set(walk(part))
            is_stepped = name in STEPS - {"min", "max"} or name == "double_factorial"
            return (is_periodic or is_stepped) and bool(variables(part) & letters)
        case Series():
            return bool((variables(part.low) | variables(part.high)) & letters)
        case Power(base=base, exponent=exponent) if variables(exponent) & letters:
            return not variables(base) and not _is_positive_constant(base)
    return False


def _is_positive_constant(base: Node) -> bool:
    return (isinstance(base, Number) and base.value > 0) or base in {Symbol("e"), Symbol("pi")}


def whole_points(random: Random, a: Node, b: Node, names: list[str], whole: set[str]) -> Iterator[Point]:
    """Yields an endless series of points. The letters in `whole` are integers of all sizes, and the other letters are
    fractions.

    The fractions are seldom negative. If an expression has corners or jumps, about half of the points have a letter
    whose value is equal or close to a constant of the expression.
    """
    is_bounded = any(
        isinstance(part, Series) and variables(part.low) | variables(part.high)
        for node in (a, b)
        for part in walk(node)
    )
    others = [name for name in names if name not in whole]
    has_jumps = has_steps(a, b)
    is_stepped = has_jumps and not is_bounded
    if others:
        sizes = (*_MIXED_SIZES, *_STEPPED_SIZES) if is_stepped else _MIXED_SIZES
    else:
        sizes = _SERIES_SIZES if is_bounded else _SIZES
    centres = _centres(a, b) if has_jumps or has_kinks(a, b) else []
    divided = [arg for arg in _divided(a, b) if variables(arg) & whole] if is_stepped else []
    rounded = [arg for arg in _rounded(a, b) if variables(arg) & whole] if is_stepped else []
    may_be_fine = not _has_unknown_parts(a, b)
    for turn in count():
        size = sizes[turn % len(sizes)]
        widest = random.choice((size, 1000, 10**_FAR_DIGITS)) if has_jumps else size
        fine = may_be_fine and turn in _FINE_TURNS
        # With steps, letters get different sizes: max(min(m, 12), n^2) and max(min(m, 11), n^2) differ only if n is
        # small and m is not.
        is_mixed = has_jumps and turn % 3 == 0
        point = {
            name: Fraction(random.randint(1, random.choice(sizes) if is_mixed else size))
            for name in names
            if name in whole
        }
        if is_stepped and len(point) > 1 and turn % 4 == 0:
            common = random.randint(
                2, 1000
            )  # without common divisors, gcd(m, n) would seem to be gcd(m, n, 12)
            point = {name: value * common for name, value in point.items()}
        point |= {name: _fraction(random, 0, widest, fine=fine) for name in others}
        if centres and random.random() < 0.5:
            name, centre = random.choice(names), random.choice(centres)
            if name in whole:
                multiple = centre.numerator * random.randint(1, 9)
                value = random.choice((centre.numerator, multiple)) + random.choice((0, 0, -1, 1))
                point[name] = Fraction(max(1, value))
            else:
                point[name] = centre * random.randint(1, 6) + _fraction(random, 0, 1)
        if divided and turn % 2:
            point |= _with_multiple(random, random.choice(divided), whole, random.choice(centres), point)
        if rounded and turn % 4 == 2:
            point |= _with_multiple(random, random.choice(rounded), whole, Fraction(1), point)
        if turn % _NEGATIVE_TURN == 1:
            point |= {name: -point[name] for name in others if len(others) == 1 or random.random() < 0.6}
        yield dict(point)


def _divided(a: Node, b: Node) -> Iterator[Node]:
    """Yields the parts of two expressions that are arguments of gcd, lcm or mod, such as n + 2 in gcd(n + 2, 59) and in
    (n + 2) mod 59."""
    for node in (a, b):
        for part in walk(node):
            if isinstance(part, Call) and part.name in {"gcd", "lcm"}:
                yield from part.args
            elif isinstance(part, Residue):
                yield part.value


def _rounded(a: Node, b: Node) -> Iterator[Node]:
    """Yields the parts of two expressions that cause a jump where the part is an integer, such as x/7 in ⌊x/7⌋ and in x
    mod 7."""
    for node in (a, b):
        for part in walk(node):
            if isinstance(part, Call) and part.name in {"floor", "ceil"}:
                yield part.args[0]
            elif isinstance(part, Residue):
                yield Quotient(part.value, part.modulus)


def _with_multiple(
    random: Random, arg: Node, whole: set[str], number: Fraction, point: Mapping[str, Fraction]
) -> dict[str, Fraction]:
    """Returns a letter and the value of the letter at which an argument is a multiple of a number.

    The result is empty if the argument is not linear.
    """
    name = random.choice(sorted(variables(arg) & whole))
    place = _place_of(number.numerator * random.randint(1, 99), arg, name, point)
    return {} if place is None else {name: Fraction(max(1, round(place)))}


def _place_of(target: int, arg: Node, name: str, point: Mapping[str, Constant]) -> Fraction | None:
    """Returns the value of a letter at which an argument equals `target`. The argument is taken to be linear. Returns
    None if the argument does not depend on the letter, or is not rational."""
    places = [Fraction(1), Fraction(2)]
    with contextlib.suppress(NoValue):
        first, second = (
            evaluate(arg, Setting({**point, name: place}, mpmath_context(_DIGITS))) for place in places
        )
        if isinstance(first, Fraction) and isinstance(second, Fraction) and first != second:
            return 1 + (target - first) / (second - first)
    return None


def real_points(
    random: Random, a: Node, b: Node, names: list[str], positive: set[str]
) -> Iterator[tuple[Point, bool]]:
    """Yields an endless series of points whose letters are fractions. A flag with each point says whether only real
    values count at the point.

    At every third point, letters are negative, except the letters in `positive`. If an expression has corners, points
    between the corners come first. If an expression has corners or jumps, at every second point a letter is equal or
    close to a constant of the expression, or to a jump.
    """
    has_jumps = has_steps(a, b)
    if has_kinks(a, b):
        for _ in range(2):
            start = {name: _fraction(random, 0, 3) for name in names}
            for corner in points_between_corners(random, a, b, start):
                if all(corner[name] > 0 for name in positive):
                    yield corner, True
    centres = _centres(a, b) if has_jumps or has_kinks(a, b) else []
    widest = max(0, *(10 * math.ceil(centre) for centre in centres), 0)
    rounded = [arg for arg in _rounded(a, b) if variables(arg)]
    may_be_fine = not _has_unknown_parts(a, b)
    for turn in count():
        far = max(widest, 10 ** random.randint(3, _FAR_DIGITS)) if has_jumps else widest
        ranges = (*_RANGES, (0, far)) if centres else _RANGES
        low, high = ranges[turn % len(ranges)] if turn % 4 != 2 else ranges[-1]
        fine = may_be_fine and turn in _FINE_TURNS
        point: dict[str, Constant] = {name: _fraction(random, low, high, fine=fine) for name in names}
        only_real = False
        if turn % 3 == 2:
            for name in names:
                if name not in positive and (len(names) == 1 or random.random() < 0.6):
                    value = point[name]
                    assert isinstance(value, Fraction)
                    point[name], only_real = -value, True
        if centres and turn % 2:
            name = random.choice(names)
            centre = random.choice(centres) * random.choice((1, 1, -1))
            if has_jumps and turn % 6 != 1:
                multiple = centre * Fraction(random.randint(-6, 6), random.choice((1, 1, 2)))
                point[name] = multiple - random.choice((0, 0, _JUST_BELOW))
            else:
                point[name] = centre + _fraction(random, 0, 1) * random.choice((1, -1))
            if name in positive:
                point[name] = abs(centre) + _fraction(random, 0, 1)
            only_real = True
        if rounded and turn % 4 == 3:
            arg = random.choice(rounded)
            name = random.choice(sorted(variables(arg)))
            jump = _place_of(random.randint(-9, 99), arg, name, point)
            if jump is not None and (jump > 0 or name not in positive):
                point[name], only_real = jump - random.choice((0, 0, _JUST_BELOW)), True
        yield point, only_real


def complex_points(random: Random, a: Node, b: Node, names: list[str]) -> Iterator[Point]:
    """Yields an endless series of points at which the letters that may be complex are complex.

    Yields nothing if no letter may be complex.
    """
    used = functions(a) | functions(b)
    letters = _complex_letters(a) | _complex_letters(b) if used & COMPLEX_FUNCTIONS else set()
    while letters:
        yield {
            name: (_fraction(random, -3, 3), _fraction(random, -3, 3))
            if name in letters
            else _fraction(random, 0, 3)
            for name in names
        }


def _complex_letters(node: Node) -> set[str]:
    """The letters that may be complex: the letters inside Re, Im and arg, and the letters z and w inside |…|."""
    letters = set[str]()
    for part in walk(node):
        if isinstance(part, Call) and part.name in COMPLEX_FUNCTIONS:
            letters |= {name for name in variables(part) if name[0] in "zw" or part.name not in LENGTHS}
    return {name for name in letters if name[0] in "zw"} or letters


def has_steps(a: Node, b: Node) -> bool:
    """Whether one of two expressions has jumps, or a function such as gcd, whose value depends on divisors."""
    return any(
        (isinstance(part, Residue) or (isinstance(part, Call) and part.name in STEPS)) and variables(part)
        for node in (a, b)
        for part in walk(node)
    )


def is_piecewise(a: Node, b: Node) -> bool:
    """Whether one of two expressions may be piecewise, because it has |…|, minima, floors, (-1)^x or similar parts."""
    return bool((functions(a) | functions(b)) & (LENGTHS | STEPS)) or any(
        (isinstance(part, Power) and _has_whole_argument(part, variables(part))) or _is_root_of_a_square(part)
        for node in (a, b)
        for part in walk(node)
    )


def _is_root_of_a_square(part: Node) -> bool:
    """Whether a node is an even root of an even power: √(x²) is |x|."""
    match part:
        case Call(name="root", args=(Power(base=base, exponent=Number(value=exponent)), Number(value=index))):
            return index % 2 == 0 and exponent % 2 == 0 and bool(variables(base))
    return False


def has_kinks(a: Node, b: Node) -> bool:
    """Whether one of two expressions may follow different formulas for different values of its letters, as |x|, √(x²)
    and max(x, 1) do."""
    return any(_is_kinked(part) for node in (a, b) for part in walk(node))


def _is_kinked(part: Node) -> bool:
    match part:
        case Call(name="root", args=(inner, Number(value=index))):
            return index % 2 != 1 and bool(variables(inner))
        case Call(name=name):
            return (name in LENGTHS | STEPS | _INVERSES or name == "root") and bool(variables(part))
        case Power(base=base, exponent=exponent):
            is_integer = isinstance(exponent, Number) and exponent.value.denominator == 1
            return not is_integer and not variables(exponent) and bool(variables(base))
    return False


def _has_unknown_parts(a: Node, b: Node) -> bool:
    """Whether one of two expressions has unknown parts such as f(x), whose values depend on the text of their
    arguments."""
    return any(isinstance(part, Apply | Series) for node in (a, b) for part in walk(node))


def _centres(a: Node, b: Node) -> list[Fraction]:
    """Returns the constants in two expressions, the quotients of these constants, and 1."""
    values = {abs(value) for node in (a, b) for value in _constants(node)}
    sizes = sorted(value for value in values if 0 < value <= _MAX_CENTRE)
    if len(sizes) > _MAX_CENTRES:
        sizes = sizes[: _MAX_CENTRES // 2] + sizes[-_MAX_CENTRES // 2 :]
    quotients = {over / under for over in sizes for under in sizes if 1 not in {over, under}}
    return sorted({Fraction(1), *sizes, *quotients})


def _constants(node: Node) -> Iterator[Fraction]:
    """Yields the values of the parts without letters, such as 10^6 in |x - 10^6|. If a part without letters contains
    smaller parts, the values of the smaller parts are left out. Irrational values are rounded."""
    context = mpmath_context(_DIGITS)
    pending: list[Any] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, tuple):
            pending.extend(part)
        elif isinstance(part, Node) and variables(part):
            pending.extend([getattr(part, name) for name in part.__slots__])
        elif isinstance(part, Node):
            with contextlib.suppress(NoValue):
                value = evaluate(part, Setting({}, context))
                if isinstance(value, Fraction):
                    yield value
                elif context.im(value) == 0 and abs(value) < _MAX_CENTRE:
                    yield Fraction(int(context.re(value) * _CENTRE_DENOMINATOR), _CENTRE_DENOMINATOR)


def _fraction(random: Random, low: int, high: int, *, fine: bool = False) -> Fraction:
    """A fraction between two integers that is not an integer itself."""
    denominator = random.randint(*(_FINE_DENOMINATORS if fine else _DENOMINATORS))
    numerator = random.randrange((high - low) * denominator)
    return low + Fraction(numerator + (numerator % denominator == 0), denominator)
