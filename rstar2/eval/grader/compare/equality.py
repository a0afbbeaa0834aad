"""Whether two expressions are equal, as numbers or as functions of their variables.

Exact where both are rational. Otherwise both are computed to 40 and to 80 digits: a true difference keeps its
size, rounding noise shrinks with the precision. With variables this is done at several fixed points, which
decides identities far more often than a simplifier does, and in bounded time.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from fractions import Fraction
from itertools import product
from typing import Any

from rstar2.eval.grader.compare.evaluate import evaluate
from rstar2.eval.grader.compare.guarded_numbers import MAX_STEPS, NoValue, Setting, SeveralValues, Value, Work
from rstar2.eval.grader.parse.nodes import CONSTANTS, UNKNOWN, Apply, Call, Node, Number, Series, Symbol, walk

ROUNDED_DIGITS = 7
"""A decimal with this many significant digits or more may be the rounding of a value that has no exact decimal."""
FLOAT_DIGITS = 15
"""A float that is no short decimal is printed with at least so many significant digits."""
FLOAT_PLACES = 20
"""A float's own printing is nearer to every number that has this float than so many units of its last digit."""
MAX_FLOAT = 10**300
_LOW_DIGITS, _HIGH_DIGITS = 40, 80
_INTEGERS = frozenset("nkmj")
"""Variables that may be taken to be whole numbers where an identity holds for those only."""
_contexts = threading.local()


def equal(a: Node, b: Node) -> bool:
    """Whether two expressions are equal.

    Raises:
        NoValue: one of them cannot be evaluated, so nothing is verified.
    """
    if a == b:
        return True
    ends = infinite(a), infinite(b)
    if any(ends):
        return ends[0] == ends[1]
    names = sorted(variables(a) | variables(b))
    doubt: NoValue | None = None
    for reading in _readings(a, b):
        try:
            if _identical(a, b, names, reading):
                return True
        except NoValue as error:
            doubt = doubt or error
    if doubt:
        raise doubt
    _refuse_unknown(a, b)
    return False


def _refuse_unknown(a: Node, b: Node) -> None:
    """Two expressions that came out different may be equal, if one of them uses what is not known.

    Raises:
        NoValue: so it is.
    """
    if _unknown(a) != _unknown(b):
        raise NoValue("a function or command that is not known")


def _unknown(node: Node) -> set[str]:
    functions = {part.name for part in walk(node) if isinstance(part, Apply)}
    names = {part.name for part in walk(node) if isinstance(part, Symbol)}
    return functions | {name for name in names if name.startswith(UNKNOWN)}


def infinite(node: Node) -> int:
    """1 for infinity, -1 for minus infinity, 0 for anything else."""
    if node == Symbol("infinity"):
        return 1
    factors = getattr(node, "factors", getattr(node, "terms", ()))
    if factors and factors[-1] == Symbol("infinity") and all(isinstance(one, Number) for one in factors[:-1]):
        return -1 if factors[0].value < 0 else 1
    return 0


def variables(node: Node) -> set[str]:
    """The names of the free variables."""
    bound = {part.index for part in walk(node) if isinstance(part, Series)} | {"none"}
    return {part.name for part in walk(node) if isinstance(part, Symbol)} - CONSTANTS - bound


def real_value(node: Node) -> Any:
    """The value of a constant as an mpmath real, with infinities.

    Raises:
        NoValue: it has variables, is not real, or cannot be computed.
    """
    context = _context(_LOW_DIGITS)
    sign = infinite(node)
    if sign:
        return sign * context.inf
    if any(isinstance(part, Apply) for part in walk(node)):
        raise NoValue("not a known number")
    value = evaluate(node, Setting({}, context))
    if isinstance(value, Fraction):
        return context.mpf(value.numerator) / value.denominator
    if abs(context.im(value)) > context.mpf(10) ** -30:
        raise NoValue("not real")
    return context.re(value)


def proportional(a: Node, b: Node) -> Fraction | None:
    """The sign (1 or -1) of c where a = c·b for some number c other than 0, as functions; None where there is none."""
    names = sorted(variables(a) | variables(b))
    context = _context(_LOW_DIGITS)
    ratios, work = [], Work()
    for point in _points(names):
        work.left = MAX_STEPS
        try:
            top, bottom = (evaluate(side, Setting(point, context, work)) for side in (a, b))
        except NoValue:
            continue
        if top == 0 or bottom == 0:
            return None
        top, bottom = (value if isinstance(value, Fraction) else +value for value in (top, bottom))
        ratios.append(_ratio(top, bottom, context))
    if len(ratios) < 3 or any(
        abs(ratio - ratios[0]) > abs(ratios[0]) * context.mpf(10) ** -30 for ratio in ratios
    ):
        if work.several_values:
            raise NoValue("a power of a negative number that is not real")
        return None
    if abs(context.im(ratios[0])) > context.mpf(10) ** -30:
        return None
    return Fraction(1 if context.re(ratios[0]) > 0 else -1)


def _ratio(top: Value, bottom: Value, context: Any) -> Any:
    numbers = [
        context.mpf(v.numerator) / v.denominator if isinstance(v, Fraction) else v for v in (top, bottom)
    ]
    return numbers[0] / numbers[1]


def _readings(a: Node, b: Node) -> Iterator[tuple[bool, bool, bool]]:
    """The ways to read degree signs, percent signs and bare logarithms, as (degree, percent, natural log)."""
    signs = [{part.name for part in walk(side) if isinstance(part, Call)} for side in (a, b)]
    either = signs[0] | signs[1]
    both = signs[0] & signs[1]
    degree = [False, True] if "degree" in either else [False]
    percent = [True] if "percent" in both else [False, True] if "percent" in either else [False]
    log = [True, False] if "log" in either else [True]
    yield from product(degree, percent, log)


def _identical(a: Node, b: Node, names: list[str], reading: tuple[bool, bool, bool]) -> bool:
    if not names:
        return _agree(a, b, {}, reading, real=False)
    tried, doubt = 0, ""
    for point in _points(names):
        negative = any(value < 0 for value in point.values())
        try:
            if not _agree(a, b, point, reading, real=negative):
                return _identical_for_integers(a, b, names, reading)
            tried += not negative
        except SeveralValues as error:
            if set(names) <= _INTEGERS:
                return _identical_for_integers(a, b, names, reading)
            doubt = str(error)
        except NoValue:
            continue
    if tried < 2:
        doubt = doubt or "not defined where it was tried"
    if doubt:
        raise NoValue(doubt)
    return True


def _identical_for_integers(a: Node, b: Node, names: list[str], reading: tuple[bool, bool, bool]) -> bool:
    if not set(names) <= _INTEGERS:
        return False
    points = [{name: Fraction(start + 5 * i) for i, name in enumerate(names)} for start in (7, 10, 12, 13)]
    try:
        return all(_agree(a, b, point, reading, real=False) for point in points)
    except SeveralValues:
        raise
    except NoValue:
        return False


def _points(names: list[str]) -> Iterator[dict[str, Fraction]]:
    """Fixed points with fractions that depend on the names only; the last two have negative coordinates."""
    for trial in range(5):
        point = {}
        for name in names:
            digest = hashlib.sha256(f"{trial}|{name}".encode()).digest()
            value = Fraction(200 + int.from_bytes(digest[:2], "big") % 2500, 1009)
            point[name] = -value if trial > 2 and (len(names) == 1 or digest[2] % 2 or trial == 4) else value
        yield point


def _agree(
    a: Node, b: Node, point: dict[str, Fraction], reading: tuple[bool, bool, bool], *, real: bool
) -> bool:
    """Whether both have the same value at a point; where `real`, points at which one is not real do not count.

    Raises:
        NoValue: one has no value there.
        SeveralValues: they differ, but one of them may be taken to have other values than the principal one.
    """
    work = Work()
    first = _difference(a, b, point, reading, real, _LOW_DIGITS, work)
    if isinstance(first, bool):
        return first
    low, scale, is_real = first
    if real and not is_real:
        raise NoValue("not real here")
    context = _context(_LOW_DIGITS)
    same = bool(low <= context.mpf(10) ** -15 * max(scale, 1))
    if same:
        second = _difference(a, b, point, reading, real, _HIGH_DIGITS, Work())
        if isinstance(second, bool):
            return second
        noise = max(low, scale * context.mpf(10) ** -_LOW_DIGITS)
        same = bool(second[0] <= noise * context.mpf(10) ** -25)
    if not same and work.several_values:
        raise SeveralValues("a power of a negative number that is not real")
    return same


def _difference(
    a: Node,
    b: Node,
    point: dict[str, Fraction],
    reading: tuple[bool, bool, bool],
    real: bool,
    digits: int,
    work: Work,
) -> bool | tuple[Any, Any, bool]:
    """A verdict where it is exact, else (|a - b|, the larger of |a| and |b|, whether both are real)."""
    context = _context(digits)
    degree, percent, natural_log = reading
    setting = Setting(point, context, work, degree, percent, real, natural_log)
    left, right = evaluate(a, setting), evaluate(b, setting)
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return left == right or _rounds(a, right, setting) or _rounds(b, left, setting)
    if _rounds(a, right, setting) or _rounds(b, left, setting):
        return True
    left, right = (
        context.mpf(value.numerator) / value.denominator if isinstance(value, Fraction) else value
        for value in (left, right)
    )
    scale = max(abs(left), abs(right))
    is_real = max(abs(context.im(left)), abs(context.im(right))) <= scale * context.mpf(10) ** (5 - digits)
    return abs(left - right), scale, is_real


def _rounds(node: Node, value: Value, setting: Setting) -> bool:
    """Whether a long decimal is the rounding, or the cutting off, of a value that has no exact decimal."""
    if not isinstance(node, Number) or node.digits < ROUNDED_DIGITS or not node.places:
        return False
    if isinstance(value, Fraction):
        under = value.denominator
        for prime in (2, 5):
            while under % prime == 0:
                under //= prime
        if under == 1:
            return False
        difference: Any = abs(value) - abs(node.value)
        same_sign = (value < 0) == (node.value < 0)
    else:
        context = setting.context
        if context.im(value) != 0:
            return False
        written = context.mpf(node.value.numerator) / node.value.denominator
        difference = abs(value) - abs(written)
        same_sign = (context.re(value) < 0) == (written < 0)
    last_place = Fraction(1, 10**node.places)
    if not isinstance(difference, Fraction):
        difference = Fraction(int(difference * 10 ** (node.places + 20)), 10 ** (node.places + 20))
    if not same_sign or not abs(difference) < last_place * FLOAT_PLACES:
        return False
    return -last_place / 2 <= difference < last_place or _is_printed_float(node, value, setting)


def _is_printed_float(node: Number, value: Value, setting: Setting) -> bool:
    """Whether a decimal is what Python prints for the float next to a value, though its last digits may differ."""
    if node.digits < FLOAT_DIGITS or abs(node.value) > MAX_FLOAT:
        return False
    written = float(node.value)
    nearest = float(value if isinstance(value, Fraction) else setting.context.re(value))
    return Fraction(repr(written)) == node.value and nearest == written


def _context(digits: int) -> Any:
    """This thread's mpmath context of a precision; the library's own context is shared by all threads."""
    from mpmath.ctx_mp import MPContext  # loaded when the first inexact comparison needs it

    held = getattr(_contexts, "held", None)
    if held is None:
        held = _contexts.held = {}
    if digits not in held:
        held[digits] = MPContext()
        held[digits].dps = digits
    return held[digits]
