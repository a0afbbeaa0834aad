"""Whether two expressions are equal, as numbers or as functions of their letters.

Numbers are compared by their digits (`numbers`). Expressions with letters are compared at random points in general
position, which nobody who does not know the secret of the run can predict (`points`). For quotients of polynomials that
proves equality up to an error below 10^-12 (`rational`).
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

PRECISE_DIGITS = 230
"""The digits of the first ratios of two equations: with 40, y = 10^40 x + √2 is as good as y = 10^40 x + √3."""
SMOOTH_POINTS, EDGED_POINTS = 6, 64
"""At how many points expressions have to agree, without and with corners, jumps or divisors in them."""
MANY_POINTS = 500
"""Those with corners, jumps or divisors are compared at up to this many points while `affords_large_values`: most are
cheap, and some differ at one point of a hundred."""
LEAST_POINTS, LEAST_EDGED_POINTS = 3, 8
"""Expressions that have values at fewer of the points that were tried are not verified."""
FIRST_TRIES, TRIES_PER_POINT = 40, 8
"""Points are drawn until there are enough at which both expressions have a value, or this many were tried."""
MAX_ONE_SIDED, MAX_ONE_SIDED_ALONE, MAX_UNDEFINED = 6, 3, 0.25
"""For each point of agreement there may be this many at which only one of the expressions has a value. Fewer if no
other numbers confirm what whole ones show, and fewer still if one is
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


@dataclass(frozen=True, slots=True)
class _Test:
    """At how many points two expressions are compared, and where only one of them may have a value."""

    needed: int
    most: int
    """Points beyond those that are needed are added up to this number, as long as there is work left for them."""
    undefined: float
    """For each point of agreement, one of the expressions may be undefined at this many others."""
    beyond: float
    """The same if one is too large there, or counts in the wrong order."""


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


def proportional(a: Node, b: Node) -> Fraction | None:
    """Returns the sign (1 or -1) of c if a = c·b for some real number c other than 0, as functions; None otherwise.

    NoValue if that is not known.
    """
    names = sorted(variables(a) | variables(b))
    with limited_work():
        # π and e are no letters here: a factor of π is a number, too.
        rational = None if {Symbol("pi"), Symbol("e")} & {*walk(a), *walk(b)} else plan(a, b)
        if rational is not None:
            return _ratio_of_fractions(a, b, names, rational)
        return _ratio_of_values(a, b, names)


def _ratio_of_fractions(a: Node, b: Node, names: list[str], rational: Plan) -> Fraction | None:
    """The decision for quotients of polynomials: their ratio is the same at all points."""
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
    raise NoValue("not defined where it was tried")


def _ratio_of_values(a: Node, b: Node, names: list[str]) -> Fraction | None:
    """The decision for other expressions, under the same conditions as whether they are equal."""
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
        if not _nearly(ratios[-1], ratios[0], digits):
            if several_values:
                raise NoValue("a power of a negative number that is not real")
            return None
        if len(ratios) == needed:
            break
    if len(ratios) < (LEAST_EDGED_POINTS if edged else LEAST_POINTS):
        raise NoValue("not defined where it was tried")
    if undefined > (MAX_UNDEFINED if is_piecewise(a, b) else MAX_ONE_SIDED) * len(ratios):
        raise NoValue("an expression that has a value where the other one has none")
    if any(_vanishes(node, tuple(points), Setting({}, context)) for node in (a, b)):
        raise NoValue("formulas that are zero wherever they were tried")
    if context.im(ratios[0]) != 0:
        return None
    return Fraction(1 if context.re(ratios[0]) > 0 else -1)


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
        yield Setting({}, mpmath_context(LOW_DIGITS), degree=degree, percent=percent, natural_log=natural_log)


def _identical(a: Node, b: Node, names: list[str], setting: Setting) -> tuple[Point, ...] | None:
    """Returns the points at which two expressions agree, None if they differ at one."""
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
    alone = any(only_for_whole_numbers(node, whole) for node in (a, b))
    if edged:
        needed, most = EDGED_POINTS, MANY_POINTS
    elif alone:  # with few points, it may be that all are even, and (-1)^n is 1 at all of them
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
        raise NoValue("not defined where it was tried")
    free = complex_points(point_source(a, b, "complex"), a, b, names)
    others = _points_of_agreement(((point, False) for point in free), a, b, setting, confirming)
    if others is None:
        if not (functions(a) | functions(b)) & (STEPS | OF_COMPLEX - LENGTHS):
            raise NoValue("a letter that may stand for a complex number")
        return None
    return (*points, *others)


def _points_of_agreement(
    source: Iterable[tuple[Point, bool]], a: Node, b: Node, setting: Setting, test: _Test
) -> tuple[Point, ...] | None:
    """Returns the points at which both have the same value; None if they differ at one.

    Each point comes with whether only real values count there. NoValue if only one of the expressions has a value at
    more points than the test allows; SeveralValues if a power of a negative number may have been meant otherwise.
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
        here = replace(setting, symbols=point, real=real)
        try:
            if not agree(a, b, here, briefly=len(points) >= SMOOTH_POINTS):
                return None
        except TooMuchWork:
            raise
        except SeveralValues as error:
            doubt = error
        except NoValue:
            reasons = [_reason_for_no_value(node, here) for node in (a, b)]
            if None in reasons and (has_work or len(points) < SMOOTH_POINTS):
                # Points with large values, where both have one, are passed over once there is little work left.
                reason = reasons[0] or reasons[1]
                known = isinstance(reason, BeyondGuards) or (counts and isinstance(reason, NotACount))
                beyond += reason is not None and known
                undefined += reason is not None and not known
        else:
            points[tuple(point.values())] = point
    if doubt:
        raise doubt
    if undefined > test.undefined * len(points) or beyond > test.beyond * len(points):
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
