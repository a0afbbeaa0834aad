"""Whether two expressions are equal, as numbers or as functions of their variables.

Exact where both are rational. Otherwise both are computed to 40 and to 80 digits: a true difference keeps its
size, rounding noise shrinks with the precision. With variables this is done at several fixed points, which
decides identities far more often than a simplifier does, and in bounded time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import chain, product, repeat
from typing import Any

from rstar2.eval.grader.parse.nodes import UNKNOWN, Apply, Node, Number, Product, Series, Sum, Symbol, walk
from rstar2.eval.grader.values.evaluate import evaluate
from rstar2.eval.grader.values.guarded_numbers import (
    MAX_SPREAD_BITS,
    MAX_STEPS,
    Constant,
    NoValue,
    Setting,
    SeveralValues,
    Value,
    Work,
)
from rstar2.eval.grader.values.letters import functions, variables
from rstar2.eval.grader.values.points import (
    LENGTHS,
    OF_COMPLEX,
    STEPS,
    fixed_points,
    is_for_integers,
    points_around_kinks,
    small_whole_points,
    special_points,
    whole_points_around_kinks,
)

ROUNDED_DIGITS = 7
"""A decimal with this many significant digits or more may be the rounding of a value that has no exact decimal."""
FLOAT_DIGITS = 15
"""A float that is no short decimal is printed with at least so many significant digits."""
FLOAT_PLACES = 20
"""A float's own printing is nearer to every number that has this float than so many units of its last digit."""
MAX_FLOAT = 10**300
_LOW_DIGITS, _HIGH_DIGITS = 40, 80
_SMALL_BITS = 100
"""80 digits tell apart what is computed from numbers of at most this size."""
_MORE_DIGITS = (0, 150, 300, 600, 1200, 2400, 4800, 9600, 19200)
"""Where there are larger ones, twice their digits are added: √(10^100 + 1) differs from 10^50 in its 101st digit, and
their difference has 101 digits less. Few lengths are used, as a context is kept for each."""
_contexts = threading.local()


def equal(a: Node, b: Node) -> bool:
    """Whether two expressions are equal; NoValue where one cannot be evaluated, so that nothing is verified."""
    if a == b:
        return True
    ends = infinite(a), infinite(b)
    if any(ends):
        return ends[0] == ends[1]
    names = sorted(variables(a) | variables(b))
    if "dots" in names:
        return _same_written_parts(a, b)
    doubt: NoValue | None = None
    for setting in _readings(a, b):
        try:
            if _identical(a, b, names, setting) and (
                _unknown(a) == _unknown(b) or _identical(a, b, names, replace(setting, others=True))
            ):
                return True
        except NoValue as error:
            doubt = doubt or error
    if doubt:
        raise doubt
    # What came out different may be equal, if one side uses what is not known.
    if _unknown(a) != _unknown(b):
        raise NoValue("a function or command that is not known")
    return False


def _same_written_parts(a: Node, b: Node) -> bool:
    """Whether sums or products of which only some parts are written, as 1 + 2 + … + n, have equal parts in order.

    NoValue where they have not: what the dots stand for is not known.
    """
    match a, b:
        case (Sum(terms=one), Sum(terms=other)) | (Product(factors=one), Product(factors=other)):
            for order in (other, other[::-1]):
                if len(one) == len(order) and all(map(equal, one, order)):
                    return True
    raise NoValue("parts that are left out")


def _unknown(node: Node) -> set[str]:
    return {
        part.name
        for part in walk(node)
        if isinstance(part, Apply) or (isinstance(part, Symbol) and part.name.startswith(UNKNOWN))
    }


def infinite(node: Node) -> int:
    """1 for infinity, -1 for minus infinity, 0 for anything else."""
    if node == Symbol("infinity"):
        return 1
    match node:
        case Product(factors=(Number(value=value), Symbol(name="infinity"))):
            return -1 if value < 0 else int(value > 0)
        case Sum(terms=(*terms, Symbol(name="infinity"))) if all(isinstance(one, Number) for one in terms):
            return 1
    return 0


def real_value(node: Node) -> Any:
    """A constant as an mpmath real or infinity; NoValue where it has variables, is not real or cannot be computed."""
    value, context = constant_value(node), _context(_LOW_DIGITS)
    if abs(context.im(value)) > context.mpf(10) ** -30:
        raise NoValue("not real")
    return context.re(value)


def constant_value(node: Node) -> Any:
    """A constant as an mpmath number or infinity; NoValue where it has variables or cannot be computed."""
    context = _context(_LOW_DIGITS)
    sign = infinite(node)
    if sign:
        return sign * context.inf
    if any(isinstance(part, Apply) for part in walk(node)):
        raise NoValue("not a known number")
    setting = Setting({}, context)
    return +setting.inexact(evaluate(node, setting))


def real_setting() -> Setting:
    """How an expression is evaluated where only its real values count."""
    return Setting({}, _context(_LOW_DIGITS), real=True)


def whole_number(node: Node) -> int | None:
    """The integer a constant is equal to, None where it is none; NoValue as `real_value`."""
    value = real_value(node)
    if not value.context.isfinite(value):
        raise NoValue("not finite")
    nearest = value.context.nint(value)
    return int(nearest) if abs(value - nearest) <= abs(value) * value.context.mpf(10) ** -30 else None


def proportional(a: Node, b: Node) -> Fraction | None:
    """The sign (1 or -1) of c where a = c·b for some number c other than 0, as functions; None where there is none."""
    names = sorted(variables(a) | variables(b))
    context = _context(_LOW_DIGITS)
    ratios, work = [], Work()
    kinked = points_around_kinks(a, b, names, Setting({}, context))
    for point, real in chain(zip(fixed_points(names), repeat(False)), zip(kinked, repeat(True))):
        work.left = MAX_STEPS
        setting = Setting(point, context, work, real=real)
        try:
            top, bottom = evaluate(a, setting), evaluate(b, setting)
        except NoValue:
            continue
        if real and top == bottom == 0:
            continue
        if top == 0 or bottom == 0:
            return None
        ratios.append(+setting.inexact(top) / +setting.inexact(bottom))
        if abs(ratios[-1] - ratios[0]) > abs(ratios[0]) * context.mpf(10) ** -30:
            break
    else:
        if len(ratios) > 2 and abs(context.im(ratios[0])) <= context.mpf(10) ** -30:
            return Fraction(1 if context.re(ratios[0]) > 0 else -1)
    if work.several_values:
        raise NoValue("a power of a negative number that is not real")
    return None


def _readings(a: Node, b: Node) -> Iterator[Setting]:
    """The ways to read degree signs, percent signs and bare logarithms."""
    either, both = functions(a) | functions(b), functions(a) & functions(b)
    degrees = [False, True] if "degree" in either else [False]
    percents = [True] if "percent" in both else [False, True] if "percent" in either else [False]
    logs = [True, False] if "log" in either else [True]
    for degree, percent, natural_log in product(degrees, percents, logs):
        yield Setting({}, _context(_LOW_DIGITS), degree=degree, percent=percent, natural_log=natural_log)


def _identical(a: Node, b: Node, names: list[str], setting: Setting) -> bool:
    if not names:
        return _agree(a, b, setting)
    for_integers = _identical_for_integers(a, b, names, setting) if is_for_integers(names) else None
    if for_integers is not None:
        return for_integers
    tried, doubt = 0, ""
    for point in fixed_points(names):
        negative = any(value < 0 for value in point.values())
        try:
            if not _agree(a, b, replace(setting, symbols=point, real=negative)):
                return False
            tried += not negative
        except SeveralValues as error:
            doubt = str(error)
        except NoValue:
            continue
    if tried < 2:
        doubt = doubt or "not defined where it was tried"
    if doubt:
        raise NoValue(doubt)
    same = _identical_at(special_points(a, b, names), a, b, setting)
    if not same and not (functions(a) | functions(b)) & (STEPS | OF_COMPLEX - LENGTHS):
        raise NoValue("a letter that may stand for a complex number")
    return same and _identical_at(
        points_around_kinks(a, b, names, setting), a, b, replace(setting, real=True)
    )


def _identical_for_integers(a: Node, b: Node, names: list[str], setting: Setting) -> bool | None:
    """Whether they agree where letters for whole numbers are some; None where they have no values there.

    Where they have, other numbers must not decide, or an expression with another value at fractions would be two.
    """
    tried = 0
    for start in (7, 10, 12, 13):
        point = {name: Fraction(start + 5 * i) for i, name in enumerate(names)}
        try:
            if not _agree(a, b, replace(setting, symbols=point)):
                return False
            tried += 1
        except SeveralValues:
            raise
        except NoValue:
            continue
    if tried < 2:
        return None
    if not _identical_at(small_whole_points(a, b, names), a, b, setting):
        return False
    if any(isinstance(part, Series) for node in (a, b) for part in walk(node)):
        return True  # a sum up to a large number is not added up
    large = (
        point
        for point in special_points(a, b, names)
        if all(not isinstance(value, tuple) and value.denominator == 1 < value for value in point.values())
    )
    return _identical_at(chain(whole_points_around_kinks(a, b, names, setting), large), a, b, setting)


def _identical_at(points: Iterable[Mapping[str, Constant]], a: Node, b: Node, setting: Setting) -> bool:
    """Whether they agree at all of the points where both are defined."""
    for point in points:
        try:
            if not _agree(a, b, replace(setting, symbols=point)):
                return False
        except NoValue:
            continue
    return True


def _agree(a: Node, b: Node, setting: Setting) -> bool:
    """Whether both have the same value at a point; where only real values count, others do not decide.

    SeveralValues: they differ, but one may be taken to have other values than the principal one.
    """
    setting = replace(setting, work=Work())
    first = _difference(a, b, setting)
    if isinstance(first, bool):
        return first
    low, scale, is_real = first
    if setting.real and not is_real:
        raise NoValue("not real here")
    context = setting.context
    same = bool(low <= context.mpf(10) ** -15 * max(scale, 1))
    if same:
        lost = setting.work.bits * 3 // 10 if setting.work.bits > _SMALL_BITS else 0
        more = _more_digits(2 * lost)
        finer = replace(setting, context=_context(_HIGH_DIGITS + more), work=Work())
        second = _difference(a, b, finer)
        if isinstance(second, bool):
            return second
        noise = max(low, scale * context.mpf(10) ** -_LOW_DIGITS)
        same = bool(second[0] <= noise * context.mpf(10) ** (lost - more - 25))
    if not same and setting.work.several_values:
        raise SeveralValues("a power of a negative number that is not real")
    return same


def _more_digits(needed: int) -> int:
    """How many digits beyond the usual ones values are computed to that need at least so many more."""
    found = next((more for more in _MORE_DIGITS if more >= needed), None)
    if found is None:
        raise NoValue("too large to be told apart")
    return found


def _difference(a: Node, b: Node, setting: Setting) -> bool | tuple[Any, Any, bool]:
    """A verdict where it is exact, else (|a - b|, the larger of |a| and |b|, whether both are real)."""
    context = setting.context
    left, right = evaluate(a, setting), evaluate(b, setting)
    is_exact = isinstance(left, Fraction), isinstance(right, Fraction)
    exact = all(is_exact)
    if (exact and left == right) or _rounds(a, right, setting) or _rounds(b, left, setting):
        return True
    if exact:
        return False
    left, right = setting.inexact(left), setting.inexact(right)
    scale = max(abs(left), abs(right))
    if any(is_exact) and context.mag(scale) > MAX_SPREAD_BITS:
        raise NoValue("too large to compare with a value that is not exact")
    imaginary = max(abs(context.im(left)), abs(context.im(right)))
    return abs(left - right), scale, imaginary <= scale * context.mpf(10) ** (5 - context.dps)


def _rounds(node: Node, value: Value, setting: Setting) -> bool:
    """Whether a long decimal is the rounding, or the cutting off, of a value that has no exact decimal."""
    if not isinstance(node, Number) or node.digits < ROUNDED_DIGITS:
        return False
    written: Value = node.value
    if isinstance(value, Fraction):
        if pow(10, value.denominator.bit_length(), value.denominator) == 0:  # it has an exact decimal
            return False
        difference = abs(value) - abs(written)
    else:
        if setting.context.im(value) != 0:
            return False
        value, written = setting.context.re(value), setting.inexact(written)
        shift = 10 ** (node.places + 20)
        difference = Fraction(int((abs(value) - abs(written)) * shift), shift)
    last_place = Fraction(1, 10**node.places)
    if not node.places:  # 1.4142135623730951e20, whose last digit is no unit
        return _is_printed_float(node, value)
    if (value < 0) != (written < 0) or not abs(difference) < last_place * FLOAT_PLACES:
        return False
    return -last_place / 2 <= difference < last_place or _is_printed_float(node, value)


def _is_printed_float(node: Number, value: Value) -> bool:
    """Whether a decimal is what Python prints for the float next to a value, though its last digits may differ."""
    if node.digits < FLOAT_DIGITS or abs(node.value) > MAX_FLOAT:
        return False
    written = float(node.value)
    return Fraction(repr(written)) == node.value and float(value) == written


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
