"""Decides whether two expressions are equal, as numbers or as functions of their letters.

Numbers are compared by their digits (`numbers`). Expressions with letters are compared at random points, which cannot
be predicted without the secret of the run (`points`). For quotients of polynomials, the comparison proves equality with
a probability of error below 10^-12 (`rational`).
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
from rstar2.eval.grader.values.numbers import (
    LOW_DIGITS,
    ROUNDED_DIGITS,
    affords_large_values,
    agree,
    infinite,
)
from rstar2.eval.grader.values.points import (
    COMPLEX_FUNCTIONS,
    LENGTHS,
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

PRECISE_DIGITS = 230
"""Number of digits to which the ratio of two equations' values is computed at the first `LEAST_POINTS` points. If the
ratio is the same at all points, one equation is a multiple of the other. With 40 digits, the lines y = 10^40 x + √2 and
y = 10^40 x + √3 would count as equal."""
SMOOTH_POINTS, EDGED_POINTS = 6, 64
"""The number of points at which expressions have to agree. The first number applies to smooth expressions, and the
second to expressions with corners, jumps or functions such as gcd."""
MANY_POINTS = 500
"""The number of points at which expressions with corners, jumps or functions such as gcd are compared, as long as
`affords_large_values` is true. Most points take little work, and some expressions differ at only one point in a
hundred."""
LEAST_POINTS, LEAST_EDGED_POINTS = 3, 8
"""Minimum number of points at which both expressions must have a value. The first number applies to smooth expressions,
and the second to expressions with corners, jumps or functions such as gcd."""
FIRST_TRIES, TRIES_PER_POINT = 40, 8
"""Maximum number of points that are tried: `FIRST_TRIES`, plus `TRIES_PER_POINT` for each point at which the
expressions agree."""
MAX_ONE_SIDED, MAX_ONE_SIDED_ALONE, MAX_UNDEFINED = 6, 3, 0.25
"""Limits on the number of points at which only one of two expressions has a value, as multiples of the number of points
at which the expressions agree. The second limit applies if only integers are compared. The third limit applies to
points at which one expression is undefined, if an expression is piecewise or a letter is an integer. The third limit is
small because some expressions are undefined wherever they would differ: e^(ln(x - 3)) has values only where it equals
|x - 3|, and 2n/(1 + (-1)^n) only where it equals (-1)^n n."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The evidence that two expressions are equal."""

    points: tuple[Point, ...]
    """The points at which the expressions agree. For numbers, the tuple contains one empty point. For expressions of
    the same form, the tuple is empty."""
    degree: bool = False
    """Whether a degree sign was read as π/180. If False, the degree sign was dropped."""
    percent: bool = False
    """Whether a percent sign was read as 1/100. If False, the percent sign was dropped."""
    natural_log: bool = True
    """Whether `log` without a base was read as ln. If False, `log` was read as log10."""


@dataclass(frozen=True, slots=True)
class _Test:
    """How many points a comparison needs, and the limits on points at which only one of the expressions has a value."""

    needed: int
    """The number of points at which the expressions have to agree."""
    most: int
    """While the budget has work left, points are compared until the expressions agree at this many points."""
    undefined: float
    """Limit on the number of points at which only one expression is undefined, as a multiple of the number at which
    both agree.
    """
    beyond: float
    """Limit on the number of points at which only one expression is too large or a `NotACount`, as a multiple of the
    number at which both agree."""


def equal(a: Node, b: Node) -> bool:
    """Whether two expressions are equal. Raises NoValue if equality cannot be verified."""
    return identity(a, b) is not None


def identity(a: Node, b: Node) -> Identity | None:
    """Returns the evidence that two expressions are equal, or None if the expressions differ.

    Raises NoValue if neither equality nor a difference can be verified.
    """
    if a == b:
        return Identity(())
    ends = infinite(a), infinite(b)
    if any(ends):
        return Identity(()) if ends[0] == ends[1] else None
    names = sorted(variables(a) | variables(b))
    if "dots" in names:
        return Identity(()) if _same_visible_parts(a, b) else None
    doubt: NoValue | None = None
    with limited_work():
        for setting in _readings(a, b):
            try:
                points = _identical(a, b, names, setting)
                if points is not None and _unknown_names(a) != _unknown_names(b):
                    # The result must not depend on the values of unknown parts.
                    points = _identical(a, b, names, replace(setting, others=True))
                if points is not None:
                    return Identity(points, setting.degree, setting.percent, setting.natural_log)
            except NoValue as error:
                doubt = doubt or error
    if doubt:
        raise doubt
    # If only one side has an unknown part, its true value may make the two equal.
    if _unknown_names(a) != _unknown_names(b):
        raise NoValue("an unknown function or command")
    return None


def _same_visible_parts(a: Node, b: Node) -> bool:
    """Whether two sums or products with dots, such as 1 + 2 + … + n, have equal parts, in the same order or in reverse
    order.

    Raises NoValue if the visible parts are not equal, because the parts that the dots leave out are not known.
    """
    match a, b:
        case (Sum(terms=one), Sum(terms=other)) | (Product(factors=one), Product(factors=other)):
            for order in (other, other[::-1]):
                if len(one) == len(order) and all(map(equal, one, order)):
                    return True
    raise NoValue("a sum or product with dots in it")


def _unknown_names(node: Node) -> set[str]:
    return {
        part.name
        for part in walk(node)
        if isinstance(part, Apply) or (isinstance(part, Symbol) and part.name.startswith(UNKNOWN))
    }


def proportional(a: Node, b: Node) -> Fraction | None:
    """Returns the sign (1 or -1) of the factor c if two functions are proportional: a = c·b for a real number c other
    than 0.

    Returns None if there is no such factor c. Raises NoValue if it cannot be verified whether there is such a factor.
    """
    names = sorted(variables(a) | variables(b))
    with limited_work():
        # `plan` counts π and e as letters, but the factor c may be a multiple of π.
        rational = None if {Symbol("pi"), Symbol("e")} & {*walk(a), *walk(b)} else plan(a, b)
        if rational is not None:
            return _ratio_of_fractions(a, b, names, rational)
        return _ratio_of_values(a, b, names)


def _ratio_of_fractions(a: Node, b: Node, names: list[str], rational: Plan) -> Fraction | None:
    """Implements `proportional` for quotients of polynomials. The ratio of the two quotients has to be the same at all
    points."""
    ratios: list[Fraction] = []
    source = rational_points(point_source(a, b, "ratio"), names, rational.bits)
    for point in islice(source, (rational.points + 1) * TRIES_PER_POINT):
        setting = Setting(point, mpmath_context(LOW_DIGITS))
        try:
            top, bottom = evaluate(a, setting), evaluate(b, setting)
        except TooMuchWork:
            raise
        except NoValue:
            continue
        if top == 0 or bottom == 0 or (ratios and top / bottom != ratios[0]):
            return None
        ratios.append(top / bottom)
        if len(ratios) == rational.points + 1:
            return Fraction(1 if ratios[0] > 0 else -1)
    raise NoValue("an expression without a value at the points that were tried")


def _ratio_of_values(a: Node, b: Node, names: list[str]) -> Fraction | None:
    """Implements `proportional` for expressions that are not quotients of polynomials. Points are chosen and counted in
    the same way as when the equality of such expressions is tested."""
    context, precise = mpmath_context(LOW_DIGITS), mpmath_context(PRECISE_DIGITS)
    whole, edged = whole_letters(a, b), has_kinks(a, b) or has_steps(a, b)
    needed = EDGED_POINTS if edged or whole else SMOOTH_POINTS
    random = point_source(a, b, "ratio")
    real = (point for point, _ in real_points(random, a, b, names, set()))
    source = whole_points(random, a, b, names, whole) if whole else real
    ratios: list[Value] = []
    points: list[Point] = []
    undefined, several_values = 0, False
    for point in islice(source, needed * TRIES_PER_POINT):
        digits = precise if len(ratios) < LEAST_POINTS else context
        setting = Setting(point, digits, real=True)
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
        if top == bottom == 0:
            continue
        if top == 0 or bottom == 0:
            return None
        ratios.append(_ratio(top, bottom, setting))
        points.append(point)
        if not _same_ratio(ratios[-1], ratios[0], digits):
            if several_values:
                raise NoValue("a power of a negative number that is not real")
            return None
        if len(ratios) == needed:
            break
    if len(ratios) < (LEAST_EDGED_POINTS if edged else LEAST_POINTS):
        raise NoValue("an expression without a value at the points that were tried")
    if undefined > (MAX_UNDEFINED if is_piecewise(a, b) else MAX_ONE_SIDED) * len(ratios):
        raise NoValue("an expression that has values where the other one has none")
    if any(_vanishes(node, tuple(points), Setting({}, context)) for node in (a, b)):
        raise NoValue("formulas that are zero at all points that were tried")
    if context.im(ratios[0]) != 0:
        return None
    return Fraction(1 if context.re(ratios[0]) > 0 else -1)


def _ratio(top: Value, bottom: Value, setting: Setting) -> Value:
    if isinstance(top, Fraction) and isinstance(bottom, Fraction):
        return top / bottom
    return +setting.inexact(top) / +setting.inexact(bottom)


def _same_ratio(one: Value, other: Value, context: Any) -> bool:
    """Whether two ratios are equal. If a ratio is inexact, three quarters of the digits in use have to be equal."""
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
    """Yields one setting for each way to read degree signs, percent signs and logarithms without a base. The settings
    do not contain a point yet."""
    either, both = functions(a) | functions(b), functions(a) & functions(b)
    degrees = [False, True] if "degree" in either else [False]
    percents = [True] if "percent" in both else [False, True] if "percent" in either else [False]
    logs = [True, False] if "log" in either else [True]
    for degree, percent, natural_log in product(degrees, percents, logs):
        yield Setting({}, mpmath_context(LOW_DIGITS), degree=degree, percent=percent, natural_log=natural_log)


def _identical(a: Node, b: Node, names: list[str], setting: Setting) -> tuple[Point, ...] | None:
    """Returns the points at which two expressions agree in one reading of their signs. Returns None if the expressions
    differ at a point."""
    if not names:
        return ({},) if agree(a, b, setting) else None
    rational = plan(a, b)
    if rational is not None and not _rounded(a, b):
        return _identical_fractions(a, b, names, rational, setting)
    whole = whole_letters(a, b)
    if not whole:
        points = _at_real_points(a, b, names, set(), setting)
    else:
        points = _at_whole_points(a, b, names, whole, setting)
    if points and variables(a) != variables(b) and (whole or has_kinks(a, b) or has_steps(a, b)):
        # Letters do not cancel in honest answers, but they may in a text that is meant to fit several gold answers.
        raise NoValue("a letter that is in only one of the answers")
    return points


def _rounded(a: Node, b: Node) -> bool:
    """Whether one of two expressions is a decimal that may be rounded, so that exact arithmetic cannot decide whether
    the expressions are equal."""
    return any(isinstance(node, Number) and node.digits >= ROUNDED_DIGITS for node in (a, b))


def _identical_fractions(
    a: Node, b: Node, names: list[str], rational: Plan, setting: Setting
) -> tuple[Point, ...] | None:
    """Implements `_identical` for quotients of polynomials. The probability of a wrong result is below
    `rational.ERROR`."""
    if any(Symbol("pi") in set(walk(node)) for node in (a, b)):
        names = [*names, "pi"]
    if any(Symbol("e") in set(walk(node)) for node in (a, b)):
        names = [*names, "e"]
    points: list[Point] = []
    source = rational_points(point_source(a, b, "rational"), names, rational.bits)
    for point in islice(source, rational.points * TRIES_PER_POINT):
        point_setting = replace(setting, symbols=point, notes=Notes())
        try:
            left, right = evaluate(a, point_setting), evaluate(b, point_setting)
        except TooMuchWork:
            raise
        except NoValue:
            continue
        if left != right:
            return None
        points.append(point)
        if len(points) == rational.points:
            return tuple(points)
    raise NoValue("an expression without a value at the points that were tried")


def _at_whole_points(
    a: Node, b: Node, names: list[str], whole: set[str], setting: Setting
) -> tuple[Point, ...] | None:
    """Implements `_identical` for expressions in which some letters are integers.

    The expressions have to agree at fractions too, unless one of them behaves differently at fractions, as (-1)^n does.
    If the expressions have no values at integers, only fractions are compared.
    """
    source = whole_points(point_source(a, b, "whole"), a, b, names, whole)
    edged = has_steps(a, b) or has_kinks(a, b)
    alone = any(only_for_whole_numbers(node, whole) for node in (a, b))
    if edged:
        needed, most = EDGED_POINTS, MANY_POINTS
    elif alone:  # if there were few points, n might be even at all of them, and (-1)^n would be 1
        needed, most = 2 * SMOOTH_POINTS, EDGED_POINTS
    else:
        needed = most = 2 * SMOOTH_POINTS
    real = Symbol("i") not in {*walk(a), *walk(b)}
    test = _Test(needed, most, MAX_UNDEFINED, MAX_ONE_SIDED_ALONE if alone else MAX_ONE_SIDED)
    points = _points_of_agreement(((point, real) for point in source), a, b, setting, test)
    if points is None:
        return None
    enough = len(points) >= (LEAST_EDGED_POINTS if edged else LEAST_POINTS)
    if enough and alone:
        if any(_vanishes(node, points, setting) for node in (a, b)):
            raise NoValue("formulas that are zero at all points that were tried")
        return points
    others = _at_real_points(a, b, names, whole, setting, few=enough)
    if others is None:
        if enough:
            raise NoValue("expressions that agree only at integers")
        return None
    return (*points, *others)


def _vanishes(node: Node, points: tuple[Point, ...], setting: Setting) -> bool:
    """Whether a node has a series or a binomial coefficient that is zero at all points. An example is the number of
    ways to choose 9000 of n things, which is zero for small n."""
    candidates = [
        part
        for part in dict.fromkeys(walk(node))
        if isinstance(part, Series) or (isinstance(part, Call) and part.name == "binom")
    ]
    return any(
        all(_is_zero(part, replace(setting, symbols=point, notes=Notes())) for point in points)
        for part in candidates
    )


def _is_zero(node: Node, setting: Setting) -> bool:
    """Whether the value of an expression is zero. Returns False if the expression has no value. For example, the body
    of a sum has no value by itself."""
    try:
        return bool(evaluate(node, setting) == 0)
    except TooMuchWork:
        raise
    except NoValue:
        return False


def _at_real_points(
    a: Node, b: Node, names: list[str], positive: set[str], setting: Setting, *, few: bool = False
) -> tuple[Point, ...] | None:
    """Implements `_identical` for real letters, and for letters in Re, Im, arg and |…|, which may be complex.

    If `few`, only a few points are compared, to confirm the result of other comparisons.
    """
    undefined = MAX_UNDEFINED if is_piecewise(a, b) else MAX_ONE_SIDED
    confirming = _Test(LEAST_POINTS, LEAST_POINTS, undefined, MAX_ONE_SIDED)
    if few:
        test, least = confirming, LEAST_POINTS
    elif has_steps(a, b) or has_kinks(a, b):
        test, least = _Test(EDGED_POINTS, MANY_POINTS, undefined, MAX_ONE_SIDED), LEAST_EDGED_POINTS
    else:
        test, least = _Test(SMOOTH_POINTS, SMOOTH_POINTS, undefined, MAX_ONE_SIDED), LEAST_POINTS
    complex_values = Symbol("i") in {*walk(a), *walk(b)}
    points = None
    for real in (False,) if complex_values else (True, False):
        source = real_points(point_source(a, b, "real"), a, b, names, positive)
        points = _points_of_agreement(((point, real or only) for point, only in source), a, b, setting, test)
        if points is None:
            return None
        if len(points) >= least:
            break
    else:
        raise NoValue("an expression without a value at the points that were tried")
    free = complex_points(point_source(a, b, "complex"), a, b, names)
    others = _points_of_agreement(((point, False) for point in free), a, b, setting, confirming)
    if others is None:
        if not (functions(a) | functions(b)) & (STEPS | COMPLEX_FUNCTIONS - LENGTHS):
            raise NoValue("a letter that may be a complex number")
        return None
    return (*points, *others)


def _points_of_agreement(
    source: Iterable[tuple[Point, bool]], a: Node, b: Node, setting: Setting, test: _Test
) -> tuple[Point, ...] | None:
    """Returns the points at which two expressions have the same value. Returns None if the expressions differ at a
    point.

    `source` yields pairs of a point and a flag, which says whether only real values count at the point. Raises NoValue
    if there are too many points at which only one of the expressions has a value. Raises SeveralValues if the
    expressions differ at a point at which a power of a negative number has several values.
    """
    points: dict[tuple[Constant, ...], Point] = {}
    undefined = beyond = 0
    counts = has_plain_counts(a) and has_plain_counts(b)
    doubt: SeveralValues | None = None
    for tries, (point, real) in enumerate(source):
        has_work = affords_large_values(setting.budget)
        enough = len(points) >= (test.most if has_work else test.needed)
        if enough or tries >= FIRST_TRIES + TRIES_PER_POINT * len(points):
            break
        if tuple(point.values()) in points:
            continue
        point_setting = replace(setting, symbols=point, real=real)
        try:
            if not agree(a, b, point_setting, briefly=len(points) >= SMOOTH_POINTS):
                return None
        except TooMuchWork:
            raise
        except SeveralValues as error:
            doubt = error
        except NoValue:
            reasons = [_reason_for_no_value(node, point_setting) for node in (a, b)]
            if None in reasons and (has_work or len(points) < SMOOTH_POINTS):
                # Once there is little work left, points with large values are skipped.
                reason = reasons[0] or reasons[1]
                is_beyond = isinstance(reason, BeyondGuards) or (counts and isinstance(reason, NotACount))
                beyond += reason is not None and is_beyond
                undefined += reason is not None and not is_beyond
        else:
            points[tuple(point.values())] = point
    if doubt:
        raise doubt
    if undefined > test.undefined * len(points) or beyond > test.beyond * len(points):
        raise NoValue("an expression that has values where the other one has none")
    return tuple(points.values())


def _reason_for_no_value(node: Node, setting: Setting) -> NoValue | None:
    """Returns the reason why an expression has no value at a point, or None if it has a value."""
    try:
        evaluate(node, setting)
    except TooMuchWork:
        raise
    except NoValue as error:
        return error
    return None
