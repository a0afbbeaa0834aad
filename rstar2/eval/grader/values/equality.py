"""Whether two expressions are equal, as numbers or as functions of their letters.

Numbers that are rational are exact. Others are computed to 40 and to 80 digits: a true difference keeps its size,
rounding noise shrinks with the precision. Expressions with letters are compared at random points in general position,
which nobody who does not know the secret of the run can predict (`points`). For quotients of polynomials that proves
equality up to an error below 10^-12 (`rational`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import islice, product
from typing import Any

from rstar2.eval.grader.parse.nodes import (
    UNKNOWN,
    Apply,
    Call,
    Node,
    Number,
    Product,
    Series,
    Sum,
    Symbol,
    walk,
)
from rstar2.eval.grader.values.evaluate import evaluate
from rstar2.eval.grader.values.guarded_numbers import (
    BUDGET,
    MAX_SPREAD_BITS,
    BeyondGuards,
    Constant,
    NotACount,
    Notes,
    NoValue,
    Setting,
    SeveralValues,
    TooMuchWork,
    Value,
    limited_work,
    mpmath_context,
)
from rstar2.eval.grader.values.letters import functions, variables
from rstar2.eval.grader.values.points import (
    LENGTHS,
    OF_COMPLEX,
    STEPS,
    Point,
    complex_points,
    has_kinks,
    has_plain_counts,
    has_steps,
    is_piecewise,
    only_for_whole_numbers,
    point_source,
    rational_points,
    real_points,
    whole_letters,
    whole_points,
)
from rstar2.eval.grader.values.rational import Plan, plan

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
_FOR_LARGE_VALUES = 0.6
"""Beyond the first points of agreement, large values are compared only while more than this share of the budget is
left: it takes up to 200 times as long as for small ones, and there are other points."""
_MORE_DIGITS = (0, 150, 300, 600, 1200, 2400)
"""If there are larger ones, three times their digits are added: √(10^100 + 1) differs from 10^50 in its 101st digit,
their difference has 101 digits less, and cos(10^-100) differs from 1 in its 201st. Few lengths are used, as a context
is kept for each."""
SMOOTH_POINTS, EDGED_POINTS = 6, 64
"""At how many points expressions have to agree, without and with corners, jumps or divisors in them."""
LEAST_POINTS, LEAST_EDGED_POINTS = 3, 8
"""Expressions that have values at fewer of the points that were tried are not verified."""
FIRST_TRIES, TRIES_PER_POINT = 40, 8
"""Points are drawn until there are enough at which both expressions have a value, or this many were tried."""
MAX_ONE_SIDED, MAX_UNDEFINED = 6, 0.25
"""For each point of agreement there may be this many at which only one of the expressions has a value. Fewer if one is
piecewise, or a letter is whole, and the other is undefined there: e^(ln(x - 3)) has values only where |x - 3| is x - 3,
and 2n/(1 + (-1)^n) only where (-1)^n n is n."""


@dataclass(frozen=True, slots=True)
class Identity:
    """How two expressions were found to be equal."""

    points: tuple[Point, ...]
    """The values of the letters at which they agree; one empty point for numbers, none if they are written alike."""
    degree: bool = False
    """Whether a degree sign was read as π/180 rather than left out."""
    percent: bool = False
    """Whether a percent sign was read as 1/100 rather than left out."""
    natural_log: bool = True
    """Whether `log` without a base was read as ln rather than as log10."""


def equal(a: Node, b: Node) -> bool:
    """Whether two expressions are equal; NoValue if one cannot be evaluated, so that nothing is verified."""
    return identity(a, b) is not None


def identity(a: Node, b: Node) -> Identity | None:
    """Returns how two expressions are known to be equal, None if they differ; NoValue if nothing is verified."""
    if a == b:
        return Identity(())
    ends = infinite(a), infinite(b)
    if any(ends):
        return Identity(()) if ends[0] == ends[1] else None
    names = sorted(variables(a) | variables(b))
    if "dots" in names:
        return Identity(()) if _same_written_parts(a, b) else None
    doubt: NoValue | None = None
    with limited_work():
        for setting in _readings(a, b):
            try:
                points = _identical(a, b, names, setting)
                if points is not None and _unknown(a) != _unknown(b):
                    # Other values of what is not known must not matter.
                    points = _identical(a, b, names, replace(setting, others=True))
                if points is not None:
                    return Identity(points, setting.degree, setting.percent, setting.natural_log)
            except NoValue as error:
                doubt = doubt or error
    if doubt:
        raise doubt
    # What came out different may be equal, if one side uses what is not known.
    if _unknown(a) != _unknown(b):
        raise NoValue("a function or command that is not known")
    return None


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
    value, context = constant_value(node), mpmath_context(_LOW_DIGITS)
    if abs(context.im(value)) > context.mpf(10) ** -30:
        raise NoValue("not real")
    return context.re(value)


def constant_value(node: Node) -> Any:
    """A constant as an mpmath number or infinity; NoValue where it has variables or cannot be computed."""
    context = mpmath_context(_LOW_DIGITS)
    sign = infinite(node)
    if sign:
        return sign * context.inf
    if any(isinstance(part, Apply) for part in walk(node)):
        raise NoValue("not a known number")
    setting = Setting({}, context)
    return +setting.inexact(evaluate(node, setting))


def whole_number(node: Node) -> int | None:
    """The integer a constant is equal to, None where it is none; NoValue as `real_value`."""
    value = real_value(node)
    if not value.context.isfinite(value):
        raise NoValue("not finite")
    nearest = value.context.nint(value)
    return int(nearest) if abs(value - nearest) <= abs(value) * value.context.mpf(10) ** -30 else None


def proportional(a: Node, b: Node) -> Fraction | None:
    """Returns the sign (1 or -1) of c if a = c·b for some real number c other than 0, as functions; None otherwise.

    NoValue if that is not known.
    """
    names = sorted(variables(a) | variables(b))
    with limited_work():
        rational = None if {Symbol("pi"), Symbol("e")} & {*walk(a), *walk(b)} else plan(a, b)
        context, precise = mpmath_context(_LOW_DIGITS), mpmath_context(_HIGH_DIGITS + _MORE_DIGITS[1])
        ratios: list[Value] = []
        several_values = False
        random = point_source(a, b, "ratio")
        if rational is not None:
            points: Iterable[tuple[Point, bool]] = (
                (point, False) for point in rational_points(random, names, rational.bits)
            )
            needed = rational.points + 1
            least = needed
        else:
            whole = whole_letters(a, b)
            real = real_points(random, a, b, names, set())
            points = ((point, True) for point in whole_points(random, a, b, names, whole)) if whole else real
            edged = has_kinks(a, b) or has_steps(a, b)
            needed = EDGED_POINTS if edged or whole else SMOOTH_POINTS
            least = LEAST_EDGED_POINTS if edged else LEAST_POINTS
        agree, undefined = True, 0
        used: list[Point] = []
        for point, _ in islice(points, needed * TRIES_PER_POINT):
            # With 40 digits, y = 10^40 x + √2 is as good as y = 10^40 x + √3.
            digits = precise if len(ratios) < LEAST_POINTS else context
            setting = Setting(point, digits, real=rational is None)
            try:
                top, bottom = evaluate(a, setting), evaluate(b, setting)
            except TooMuchWork:
                raise
            except NoValue:
                reasons = [_reason_for_no_value(node, setting) for node in (a, b)]
                undefined += None in reasons and not any(isinstance(one, BeyondGuards) for one in reasons)
                continue
            finally:
                several_values |= setting.notes.several_values
            if top == bottom == 0 and rational is None:
                continue
            if top == 0 or bottom == 0:
                return None
            ratios.append(_ratio(top, bottom, setting))
            used.append(point)
            agree = _nearly(ratios[-1], ratios[0], digits)
            if not agree or len(ratios) == needed:
                break
    if ratios and agree and len(ratios) >= least and context.im(ratios[0]) == 0:
        if undefined > (MAX_UNDEFINED if is_piecewise(a, b) else MAX_ONE_SIDED) * len(ratios):
            raise NoValue("an expression that has a value where the other one has none")
        if any(_vanishes(node, tuple(used), Setting({}, context)) for node in (a, b)):
            raise NoValue("formulas that are zero wherever they were tried")
        return Fraction(1 if context.re(ratios[0]) > 0 else -1)
    if several_values or len(ratios) < 2:
        raise NoValue("not defined where it was tried")
    return None


def _ratio(top: Value, bottom: Value, setting: Setting) -> Value:
    if isinstance(top, Fraction) and isinstance(bottom, Fraction):
        return top / bottom
    return +setting.inexact(top) / +setting.inexact(bottom)


def _nearly(one: Value, other: Value, context: Any) -> bool:
    """Whether two ratios agree, exactly or, if one of them is not exact, to three quarters of the digits in use."""
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one == other
    first, second = (
        context.mpf(each.numerator) / each.denominator
        if isinstance(each, Fraction)
        else context.convert(each)
        for each in (one, other)
    )
    return bool(abs(first - second) <= abs(second) * context.mpf(10) ** (-context.dps * 3 // 4))


def _readings(a: Node, b: Node) -> Iterator[Setting]:
    """The ways to read degree signs, percent signs and bare logarithms."""
    either, both = functions(a) | functions(b), functions(a) & functions(b)
    degrees = [False, True] if "degree" in either else [False]
    percents = [True] if "percent" in both else [False, True] if "percent" in either else [False]
    logs = [True, False] if "log" in either else [True]
    for degree, percent, natural_log in product(degrees, percents, logs):
        yield Setting(
            {}, mpmath_context(_LOW_DIGITS), degree=degree, percent=percent, natural_log=natural_log
        )


def _identical(a: Node, b: Node, names: list[str], setting: Setting) -> tuple[Point, ...] | None:
    """Returns the points at which two expressions agree, None if they differ at one."""
    if not names:
        return ({},) if _agree(a, b, setting) else None
    rational = plan(a, b)
    if rational is not None and not _rounded(a, b):
        return _identical_fractions(a, b, names, rational, setting)
    whole = whole_letters(a, b)
    if not whole:
        points = _at_real_points(a, b, names, set(), setting)
    else:
        points = _at_whole_points(a, b, names, whole, setting)
    if points and variables(a) != variables(b) and (whole or has_kinks(a, b) or has_steps(a, b)):
        # A final answer has no letters that cancel; a text made to suit several gold answers may have.
        raise NoValue("a letter that only one of the answers has")
    return points


def _rounded(a: Node, b: Node) -> bool:
    """Whether one side is a decimal that may be rounded, so that exact arithmetic does not decide."""
    return any(isinstance(node, Number) and node.digits >= ROUNDED_DIGITS for node in (a, b))


def _identical_fractions(
    a: Node, b: Node, names: list[str], rational: Plan, setting: Setting
) -> tuple[Point, ...] | None:
    """The decision for quotients of polynomials, exact but for an error below `rational.ERROR`."""
    if any(Symbol("pi") in set(walk(node)) for node in (a, b)):
        names = [*names, "pi"]
    if any(Symbol("e") in set(walk(node)) for node in (a, b)):
        names = [*names, "e"]
    points: list[Point] = []
    source = rational_points(point_source(a, b, "rational"), names, rational.bits)
    for point in islice(source, rational.points * TRIES_PER_POINT):
        here = replace(setting, symbols=point, notes=Notes())
        try:
            left, right = evaluate(a, here), evaluate(b, here)
        except TooMuchWork:
            raise
        except NoValue:
            continue
        if left != right:
            return None
        points.append(point)
        if len(points) == rational.points:
            return tuple(points)
    raise NoValue("not defined where it was tried")


def _at_whole_points(
    a: Node, b: Node, names: list[str], whole: set[str], setting: Setting
) -> tuple[Point, ...] | None:
    """The decision if some letters stand for whole numbers.

    Other numbers decide too, unless a formula means something else there, as (-1)^n does. If the expressions have no
    values at whole numbers, only other numbers decide.
    """
    source = whole_points(point_source(a, b, "whole"), a, b, names, whole)
    edged = has_steps(a, b) or has_kinks(a, b)
    needed = EDGED_POINTS if edged else 2 * SMOOTH_POINTS
    real = Symbol("i") not in {*walk(a), *walk(b)}
    points = _points_of_agreement(((point, real) for point in source), needed, a, b, setting, MAX_UNDEFINED)
    if points is None:
        return None
    enough = len(points) >= (LEAST_EDGED_POINTS if edged else LEAST_POINTS)
    if enough and any(only_for_whole_numbers(node, whole) for node in (a, b)):
        if any(_vanishes(node, points, setting) for node in (a, b)):
            raise NoValue("formulas that are zero wherever they were tried")
        return points
    others = _at_real_points(a, b, names, whole, setting, few=enough)
    if others is None:
        if enough:
            raise NoValue("expressions that agree only at whole numbers")
        return None
    return (*points, *others)


def _vanishes(node: Node, points: tuple[Point, ...], setting: Setting) -> bool:
    """Whether a coefficient or product in a formula is zero at all points: n over 9000 is, for small n."""
    lasting = [
        part
        for part in dict.fromkeys(walk(node))
        if isinstance(part, Series) or (isinstance(part, Call) and part.name == "binom")
    ]
    return any(
        all(_is_zero(part, replace(setting, symbols=point, notes=Notes())) for point in points)
        for part in lasting
    )


def _is_zero(node: Node, setting: Setting) -> bool:
    """Whether an expression has the value zero; False if it has none, as the body of a sum has."""
    try:
        return bool(evaluate(node, setting) == 0)
    except TooMuchWork:
        raise
    except NoValue:
        return False


def _at_real_points(
    a: Node, b: Node, names: list[str], positive: set[str], setting: Setting, *, few: bool = False
) -> tuple[Point, ...] | None:
    """The decision if letters stand for real numbers, or for complex ones under Re, Im, arg and |…|.

    With `few`, a few points only confirm what others have shown.
    """
    edged = has_steps(a, b) or has_kinks(a, b)
    needed, least = (EDGED_POINTS, LEAST_EDGED_POINTS) if edged else (SMOOTH_POINTS, LEAST_POINTS)
    if few:
        needed = least = LEAST_POINTS
    undefined = MAX_UNDEFINED if is_piecewise(a, b) else MAX_ONE_SIDED
    complex_values = Symbol("i") in {*walk(a), *walk(b)}
    points = None
    for real in (False,) if complex_values else (True, False):
        source = real_points(point_source(a, b, "real"), a, b, names, positive)
        points = _points_of_agreement(
            ((point, real or only) for point, only in source), needed, a, b, setting, undefined
        )
        if points is None:
            return None
        if len(points) >= least:
            break
    else:
        raise NoValue("not defined where it was tried")
    free = complex_points(point_source(a, b, "complex"), a, b, names)
    others = _points_of_agreement(((point, False) for point in free), LEAST_POINTS, a, b, setting, undefined)
    if others is None:
        if not (functions(a) | functions(b)) & (STEPS | OF_COMPLEX - LENGTHS):
            raise NoValue("a letter that may stand for a complex number")
        return None
    return (*points, *others)


def _points_of_agreement(
    source: Iterable[tuple[Point, bool]],
    needed: int,
    a: Node,
    b: Node,
    setting: Setting,
    undefined_share: float,
) -> tuple[Point, ...] | None:
    """Returns up to `needed` points at which both have the same value; None if they differ at one.

    Each point comes with whether only real values count there. NoValue if only one of them has a value at many of the
    points: for each point of agreement, the other may be undefined at `undefined_share` and too large, or count in the
    wrong order, at `MAX_ONE_SIDED`. SeveralValues if a power of a negative number may have been meant otherwise.
    """
    points: dict[tuple[Constant, ...], Point] = {}
    undefined = beyond = 0
    counts = has_plain_counts(a) and has_plain_counts(b)
    doubt: SeveralValues | None = None
    for tries, (point, real) in enumerate(source):
        if len(points) == needed or tries >= FIRST_TRIES + TRIES_PER_POINT * len(points):
            break
        if tuple(point.values()) in points:
            continue
        here = replace(setting, symbols=point, real=real)
        try:
            if not _agree(a, b, here, briefly=len(points) >= SMOOTH_POINTS):
                return None
        except TooMuchWork:
            raise
        except SeveralValues as error:
            doubt = error
        except NoValue:
            reasons = [_reason_for_no_value(node, here) for node in (a, b)]
            if None in reasons:
                reason = reasons[0] or reasons[1]
                known = isinstance(reason, BeyondGuards) or (counts and isinstance(reason, NotACount))
                beyond += reason is not None and known
                undefined += reason is not None and not known
        else:
            points[tuple(point.values())] = point
    if doubt:
        raise doubt
    if undefined > undefined_share * len(points) or beyond > MAX_ONE_SIDED * len(points):
        raise NoValue("an expression that has a value where the other one has none")
    return tuple(points.values())


def _reason_for_no_value(node: Node, setting: Setting) -> NoValue | None:
    """Why an expression has no value at a point; None if it has one."""
    try:
        evaluate(node, setting)
    except TooMuchWork:
        raise
    except NoValue as error:
        return error
    return None


def _agree(a: Node, b: Node, setting: Setting, *, briefly: bool = False) -> bool:
    """Whether both have the same value at a point; if only real values count there, NoValue for others.

    With `briefly`, agreement of 25 digits is enough: it adds a point to others at which all digits were compared.
    SeveralValues: they differ, but one may be taken to have other values than the principal one.
    """
    setting = replace(setting, notes=Notes())
    first = _difference(a, b, setting)
    context, notes = setting.context, setting.notes
    if first is True and notes.bits:
        # Exact values may be those of rounded parts: ⌊3 - π/10^40⌋ is 3 to 40 digits.
        first = context.zero, context.one, True
    if isinstance(first, bool):
        return first
    low, scale, is_real = first
    if setting.real and not is_real:
        raise NoValue("not real here")
    if briefly and notes.bits <= _SMALL_BITS and low <= scale * context.mpf(10) ** -25:
        return True
    noise_of_largest = context.mpf(2) ** notes.largest * context.mpf(10) ** (15 - _LOW_DIGITS)
    same = bool(low <= max(context.mpf(10) ** -15 * max(scale, 1), noise_of_largest))
    if same and briefly and setting.budget.left < BUDGET * _FOR_LARGE_VALUES:
        raise NoValue("too much work to tell large values apart here")
    if same:
        lost = notes.bits * 3 // 10 if notes.bits > _SMALL_BITS else 0
        more = _more_digits(3 * lost)
        finer = replace(setting, context=mpmath_context(_HIGH_DIGITS + more), notes=Notes())
        second = _difference(a, b, finer)
        if isinstance(second, bool):
            return second
        # The difference shrinks with the precision, or is rounding noise of the largest number in the expressions.
        noise = max(low, scale * context.mpf(10) ** -_LOW_DIGITS)
        shrinks = second[0] <= noise * context.mpf(10) ** (lost - more - 25)
        last_digits = context.mpf(2) ** finer.notes.largest * context.mpf(10) ** (15 - _HIGH_DIGITS - more)
        same = bool(shrinks or second[0] <= last_digits)
    if not same and notes.several_values:
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
