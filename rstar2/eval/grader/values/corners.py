"""Where expressions with |…|, roots, minima and the like pass from one formula to another.

Between two neighbouring corners an expression is one formula, so that a point there decides.
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

_MAX_TURNING, _MAX_CORNERS = 12, 12
_STEPS = 12
"""How often a zero is improved by the secant method; one step is enough for a linear expression."""
_STARTS = ((-7, -5), (1, 2), (11, 17))
"""Pairs of places from which a zero is sought."""
_FAR = 10**9


def points_between_corners(
    random: Random, a: Node, b: Node, point: Mapping[str, Fraction]
) -> Iterator[dict[str, Fraction]]:
    """Points that differ from a point in one letter, one in each gap between the corners of two expressions."""
    turning = [
        value for node in (a, b) for part in walk(node) for value in _turning(part) if variables(value)
    ]
    for name in point:
        zeros = {
            zero
            for value in dict.fromkeys(turning[:_MAX_TURNING])
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


def _turning(part: Node) -> list[Node]:
    """The expressions at whose zeros a part passes to another formula."""
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
    """A zero of an expression as a function of one letter, to a millionth; None if the secant method finds none."""
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
    here = Setting(point, mpmath_context(40), real=True)
    number = float(here.as_real(evaluate(value, here)))
    if not math.isfinite(number):
        raise NoValue("too large")
    return number
