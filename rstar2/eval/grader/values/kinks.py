"""Where expressions with |…|, roots, floors, minima and the like pass from one formula to another.

Between two neighbouring kinks an expression is one formula, so that one point there decides.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, pairwise

from rstar2.eval.grader.parse.nodes import Call, Node, Number, Power, Quotient, Residue, Sum, negative, walk
from rstar2.eval.grader.values.evaluate import evaluate
from rstar2.eval.grader.values.guarded_numbers import NoValue, Setting, Work
from rstar2.eval.grader.values.letters import variables

MAX_TURNINGS, MAX_KINKS = 40, 24
"""So many are looked at."""
_INVERSES = frozenset({"arcsin", "arccos", "arctan", "arccot"})
_NOISE = 1e-9
Function = Callable[[Fraction], float]


@dataclass(frozen=True, slots=True)
class Turning:
    """An expression on whose value it hinges which formula another one follows."""

    value: Node
    at_whole_numbers: bool = False
    """Whether there is another formula after each whole number, as with floors, rather than after zero."""


def turnings(*expressions: Node) -> list[Turning]:
    """All that have letters, those within others first."""
    parts = [part for node in expressions for part in reversed(list(walk(node)))]
    found = [turning for part in parts for turning in _turnings_of(part)]
    return list(dict.fromkeys(turning for turning in found if variables(turning.value)))[:MAX_TURNINGS]


def _turnings_of(part: Node) -> list[Turning]:
    match part:
        case Call(name="abs" | "norm" | "sgn", args=(inner,)):
            return [Turning(inner)]
        case Call(name="root", args=(inner, index)):
            return [] if isinstance(index, Number) and index.value % 2 == 1 else [Turning(inner)]
        case Power(base=base, exponent=exponent):
            smooth = variables(exponent) or (isinstance(exponent, Number) and exponent.value.denominator == 1)
            return [] if smooth else [Turning(base)]
        case Call(name="min" | "max", args=args):
            return [Turning(Sum((one, negative(other)))) for one, other in combinations(args, 2)]
        case Call(name="floor" | "ceil", args=(inner,)):
            return [Turning(inner, at_whole_numbers=True)]
        case Residue(value=value, modulus=modulus):
            return [Turning(Quotient(value, modulus), at_whole_numbers=True)]
        case Call(name=name, args=(inner,)) if name in _INVERSES:
            # They jump where their argument has a pole, and do not undo sin, cos and tan far from zero.
            poles = [Turning(quotient.under) for quotient in walk(inner) if isinstance(quotient, Quotient)]
            return [Turning(inner), *poles]
    return []


def kinks(
    found: list[Turning], letter: str, point: Mapping[str, Fraction], setting: Setting
) -> list[Fraction]:
    """Where a letter changes the formula while the other letters stay at a point; in order, and perhaps not all."""
    known: list[Fraction] = []
    for turning in found:
        if letter in variables(turning.value) and len(known) < MAX_KINKS:
            function = _function(turning.value, letter, point, setting)
            known = sorted({*known, *_changes(function, turning.at_whole_numbers, known)})
    return known[:MAX_KINKS]


def _function(expression: Node, letter: str, point: Mapping[str, Fraction], setting: Setting) -> Function:
    def value(place: Fraction) -> float:
        here = replace(setting, symbols={**point, letter: place}, real=True, work=Work())
        try:
            return float(here.as_real(evaluate(expression, here)))
        except OverflowError:
            raise NoValue("too large") from None

    return value


def _changes(function: Function, at_whole_numbers: bool, known: list[Fraction]) -> Iterator[Fraction]:
    """Where a function is zero, or is a whole number next to its value, between kinks that are known."""
    for low, high in pairwise([None, *known, None]):
        places = _inside(low, high)
        with contextlib.suppress(NoValue, OverflowError):
            values = [function(place) for place in places]
            levels = [math.floor(values[1]) + step for step in (0, 1)] if at_whole_numbers else [0]
            for level, root in [
                (one, r) for one in levels for r in _roots(places, [v - one for v in values])
            ]:
                near = _improved(function, level, root)
                if (low is None or near > low) and (high is None or near < high):
                    yield near


def _inside(low: Fraction | None, high: Fraction | None) -> list[Fraction]:
    """Three places between two kinks; None is infinity."""
    if low is None and high is not None:
        return [high - step for step in (3, 2, 1)]
    if high is None:
        return [(low or 0) + step for step in map(Fraction, (1, 2, 3))]
    assert low is not None
    return [low + (high - low) * Fraction(step, 4) for step in (1, 2, 3)]


def _roots(places: list[Fraction], values: list[float]) -> list[float]:
    """The zeros of the parabola through three points; a double one where rounding hides it."""
    first, second, third = map(float, places)
    slope = (values[1] - values[0]) / (second - first)
    bend = ((values[2] - values[1]) / (third - second) - slope) / (third - first)
    if abs(bend) <= _NOISE * (abs(slope) + abs(values[0])):
        return [first - values[0] / slope] if slope else []
    slope -= bend * (second - first)
    inner = slope**2 - 4 * bend * values[0]
    if inner < -_NOISE * (slope**2 + abs(bend * values[0])):
        return []
    return [first + (-slope + sign * math.sqrt(max(inner, 0))) / (2 * bend) for sign in (-1, 1)]


def _improved(function: Function, level: int, root: float) -> Fraction:
    """A zero of a function that is no parabola, from parabolas ever nearer to it, as far as the function has values."""
    near, step = Fraction(root).limit_denominator(10**6), Fraction(1, 4)
    with contextlib.suppress(NoValue, OverflowError):
        for _ in range(4):
            if abs(function(near) - level) <= _NOISE * max(1, abs(level)):
                break
            places = [near - step, near, near + step]
            found = _roots(places, [function(place) - level for place in places])
            if not found:
                break
            near = Fraction(min(found, key=lambda one: abs(one - near))).limit_denominator(10**6)
            step /= 8
    return near
