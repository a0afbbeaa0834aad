"""Points that show that two equations, or two inequalities, say different things."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise

from rstar2.eval.grader.compare import assignments
from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, negative, walk
from rstar2.eval.grader.values.equality import real_setting
from rstar2.eval.grader.values.evaluate import evaluate
from rstar2.eval.grader.values.guarded_numbers import NoValue, Work
from rstar2.eval.grader.values.kinks import Turning, kinks
from rstar2.eval.grader.values.letters import variables
from rstar2.eval.grader.values.points import fixed_points, is_for_integers

_ORDERS = frozenset({"<", "<=", ">", ">="})
_NOISE, _CLEAR = 1e-6, 1e-3
Point = Mapping[str, Fraction]


def differ(a: nodes.Relation, b: nodes.Relation) -> bool:
    """Whether a point shows that they differ; if none does, they need not be the same.

    Inequalities differ where one is true and the other false. Equations differ where, with all letters but one at a
    point, one has solutions and none of them solves the other: a single one may come from a factor, as 0 in r^2 = 2r.
    """
    if not assignments.are_independent(a, b):
        return False
    a, b = assignments.with_plain_letters(a), assignments.with_plain_letters(b)
    names = sorted({name for node in (a, b) for side in node.sides for name in variables(side)})
    if set(a.operators) <= _ORDERS and set(b.operators) <= _ORDERS:
        truths = ((_is_true(a, point), _is_true(b, point)) for point in _points(a, b, names))
        return any(one is not other and None not in {one, other} for one, other in truths)
    if a.operators != ("=",) or b.operators != ("=",) or is_for_integers(names):
        return False
    one, other = (nodes.Sum((node.sides[0], negative(node.sides[1]))) for node in (a, b))
    starts = list(fixed_points(names))[:2]  # positive, as lengths are
    return any(
        _share_no_solution(one, other, name, start) or _share_no_solution(other, one, name, start)
        for name in names
        for start in starts
    )


def _points(a: Node, b: Node, names: list[str]) -> Iterator[Point]:
    """Fixed points, and for each letter values between the numbers in both relations; whole ones for n, k, m and j."""
    numbers = {part.value for node in (a, b) for part in walk(node) if isinstance(part, nodes.Number)}
    values = [sign * number + step for number in numbers for sign in (1, -1) for step in (-1, 0, 1)]
    step = Fraction(0) if is_for_integers(names) else Fraction(3, 7)
    starts = [dict.fromkeys(names, Fraction(7))] if not step else list(fixed_points(names))
    yield from starts
    for name in names:
        for value in values:
            if step or (value.denominator == 1 and value > 0):
                yield {**starts[0], name: value + step}


def _is_true(relation: nodes.Relation, point: Point) -> bool | None:
    """Whether inequalities hold at a point; None where they have no real value, or on their edge."""
    try:
        values = [_value(side, point) for side in relation.sides]
    except NoValue:
        return None
    for (left, right), operator in zip(pairwise(values), relation.operators, strict=True):
        if abs(left - right) <= _NOISE * max(abs(left), abs(right), 1):
            return None
        if (left < right) != operator.startswith("<"):
            return False
    return True


def _share_no_solution(one: Node, other: Node, name: str, start: Point) -> bool:
    """Whether one expression has zeros for a letter and the other is clearly not zero at any of them."""
    if name not in variables(one) or name not in variables(other):
        return False
    try:
        points = [{**start, name: root} for root in kinks([Turning(one)], name, start, real_setting())]
        found = [point for point in points if abs(_value(one, point)) < _NOISE]
        return bool(found) and all(abs(_value(other, point)) > _CLEAR for point in found)
    except NoValue:
        return False


def _value(node: Node, point: Point) -> float:
    setting = replace(real_setting(), symbols=point, work=Work())
    try:
        return float(setting.as_real(evaluate(node, setting)))
    except OverflowError:
        raise NoValue("too large") from None
