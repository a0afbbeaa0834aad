"""Corners: the places where |…|, roots, minima and similar functions change from one formula to another.

Between two neighbouring corners, an expression is a single formula, so one point is enough to test it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from itertools import combinations, pairwise
from random import Random

from rstar2.eval.grader.parse.nodes import Call, Node, Number, Power, Sum, negative, walk
from rstar2.eval.grader.values.evaluate import evaluate
from rstar2.eval.grader.values.guarded_numbers import NoValue, Setting, mpmath_context
from rstar2.eval.grader.values.letters import variables

_MAX_ARGUMENTS, _MAX_CORNERS = 12, 12
"""Maximum number of expressions whose zeros are used as corners, and maximum number of corners for each letter."""
_STEPS = 12
"""Maximum number of steps of the secant method. One step is enough for a linear expression."""
_STARTS = ((-7, -5), (1, 2), (11, 17))
"""Pairs of values at which the secant method starts."""
_FAR = 10**9
"""Zeros whose absolute value is at least this large are ignored."""


def points_between_corners(
    random: Random, a: Node, b: Node, point: Mapping[str, Fraction]
) -> Iterator[dict[str, Fraction]]:
    """Yields points that differ from `point` in the value of one letter. The corners of two expressions divide the
    values of a letter into ranges, and each range gets one point."""
    arguments = [
        value
        for node in (a, b)
        for part in walk(node)
        for value in _corner_arguments(part)
        if variables(value)
    ]
    for name in point:
        zeros = {
            zero
            for value in dict.fromkeys(arguments[:_MAX_ARGUMENTS])
            if name in variables(value)
            for start in _STARTS
            if (zero := _zero(value, name, point, start)) is not None
        }
        places = sorted(zeros)[:_MAX_CORNERS]
        if not places:
            continue
        part = Fraction(random.randint(200, 800), 1000)
        gaps = [low + (high - low) * part for low, high in pairwise(places)]
        for place in (places[0] - part, *gaps, places[-1] + part):
            yield {**point, name: place}


def _corner_arguments(part: Node) -> list[Node]:
    """Returns the expressions whose zeros are the corners of `part`, a part of an expression."""
    match part:
        case Call(name="abs" | "norm" | "sgn", args=(inner,)):
            return [inner]
        case Call(name="root", args=(inner, index)):
            return [] if isinstance(index, Number) and index.value % 2 == 1 else [inner]
        case Power(base=base, exponent=exponent):
            whole = isinstance(exponent, Number) and exponent.value.denominator == 1
            return [] if whole or variables(exponent) else [base]
        case Call(name="min" | "max", args=args):
            return [Sum((one, negative(other))) for one, other in combinations(args, 2)]
    return []


def _zero(value: Node, name: str, point: Mapping[str, Fraction], start: tuple[int, int]) -> Fraction | None:
    """Returns the value of a letter at which an expression is zero, accurate to a millionth. Returns None if the secant
    method finds no such value."""
    low, high = map(Fraction, start)
    with contextlib.suppress(NoValue, OverflowError):
        bottom, top = (_real(value, {**point, name: place}) for place in (low, high))
        for _ in range(_STEPS):
            if top == bottom:
                break
            ahead = high - Fraction(top) * (high - low) / (Fraction(top) - Fraction(bottom))
            low, bottom, high = high, top, ahead.limit_denominator(10**6)
            top = _real(value, {**point, name: high})
            if abs(top) < 1e-9:
                return high if abs(high) < _FAR else None
    return None


def _real(value: Node, point: Mapping[str, Fraction]) -> float:
    setting = Setting(point, mpmath_context(40), real=True)
    number = float(setting.as_real(evaluate(value, setting)))
    if not math.isfinite(number):
        raise NoValue("a number that is too large")
    return number
