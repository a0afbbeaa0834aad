r"""The one answer a prediction states; NoValue where it offers several.

The gold answer is given, but a model that is rewarded for being graded correct may write any text, and would find one
that is accepted for many gold answers. So a prediction is brought to one value before it is compared: a chain such as
`x = \frac{1}{3} \approx 0.333` may hold an exact value and its decimal and nothing else, all that stands between equals
signs has to agree, and signs that can be read in two ways are read in one wherever both would be answers
(`one_reading`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rstar2.eval.grader.compare.assignments import EQUALS, is_name
from rstar2.eval.grader.compare.equality import constant_value, functions, variables, whole_number
from rstar2.eval.grader.compare.evaluate import is_unsolved
from rstar2.eval.grader.compare.guarded_numbers import NoValue
from rstar2.eval.grader.compare.listings import Same
from rstar2.eval.grader.compare.one_reading import DOUBLE, counted_in, in_one_reading, without_signs
from rstar2.eval.grader.parse import nodes, units
from rstar2.eval.grader.parse.nodes import Node, walk, with_parts

_CLOSE = 100
"""Another form, such as 22/7 or 1.27·10^30, may differ by one part in so many from the exact value before it."""
_SIGNS = frozenset({"percent", "degree"})
_STRUCTURE = (
    nodes.Listing | nodes.SetOf | nodes.Brackets | nodes.Relation | nodes.SetOperation | nodes.Quantity | nodes.Ratio
    | nodes.Residue | nodes.Matrix
)  # fmt: skip
"""What holds values and is no value to be computed itself."""


def one_answer(pred: Node, same: Same) -> list[Node]:
    """The prediction with one value where it has chains: as it is exact, and, where it differs, as it is rounded."""
    found = [part for part in walk(pred) if isinstance(part, nodes.Relation | nodes.Call)]
    chains = [part.operators for part in found if isinstance(part, nodes.Relation)]
    if not chains and not any(isinstance(part, nodes.Call) and part.name in DOUBLE for part in found):
        return [pred]
    exact = _with_one_value(pred, same, rounded=False)
    if not any("~" in operators for operators in chains):
        return [exact]
    rounded = _with_one_value(pred, same, rounded=True)
    return [exact] if rounded == exact else [exact, rounded]


def _with_one_value(node: Node, same: Same, rounded: bool) -> Node:
    if not isinstance(node, _STRUCTURE):
        return in_one_reading(node)
    node = with_parts(node, lambda part: _with_one_value(part, same, rounded))
    if isinstance(node, nodes.Relation) and set(node.operators) <= EQUALS and node.operators != ("=",):
        return _reduced(node, same, rounded)
    return node


def _reduced(chain: nodes.Relation, same: Same, rounded: bool) -> Node:
    """A chain of = and ≈ as one equation, or one value where nothing in it is a name."""
    known = any(map(_is_constant, chain.sides))
    groups = [
        [side for side in group if _is_constant(side) or not (known or is_name(side))]
        for group in _groups(chain)
    ]
    values = [_agreed(group, same) for group in groups if group]
    if len(values) > 2:
        raise NoValue("several values")
    if len(values) < 2:
        return nodes.Relation(chain.sides, ("=",) * len(chain.operators))
    value = _options(values[0], values[1])[-1 if rounded else 0]
    counted = [side for group in groups for side in group]
    names = [side for side in chain.sides if side not in counted]
    return nodes.Relation((names[0], value), ("=",)) if names else value


def _groups(chain: nodes.Relation) -> Iterator[list[Node]]:
    """The sides between two ≈ signs."""
    group = [chain.sides[0]]
    for operator, side in zip(chain.operators, chain.sides[1:], strict=True):
        if operator == "~":
            yield group
            group = []
        group.append(side)
    yield group


def _is_constant(node: Node) -> bool:
    return not variables(node) and not any(
        isinstance(part, nodes.Apply) or is_unsolved(part) for part in walk(node)
    )


def _agreed(values: list[Node], same: Same) -> Node:
    """The last of the values that equals signs join; NoValue where another one, but for working, differs from it."""
    last = values[-1]
    for value in values[:-1]:
        # Before a residue stand congruent numbers.
        if isinstance(last, nodes.Residue) or _is_working(value) or not _is_constant(value):
            continue
        with contextlib.suppress(NoValue):
            if not same(value, last):
                break
    else:
        return last
    raise NoValue("an equation that is false")


def _is_working(node: Node) -> bool:
    """Whether a value is a calculation on the way to the answer, such as 5 + 5 + 1."""
    steps = nodes.Sum | nodes.Product
    return isinstance(node, steps) and all(isinstance(part, steps | nodes.Number) for part in walk(node))


def _options(exact: Node, other: Node) -> list[Node]:
    """What may be the answer where two values are called approximately equal; NoValue where they are not."""
    if not (_is_constant(exact) and _is_constant(other)):
        return [exact]
    pairs = _pairs(exact, other)
    if all(_is_rounding(one, two) or _is_rounding(two, one) for one, two in pairs):
        # 1 and 57.3 degrees, 42 and 4200.0 % would be two integers.
        other_sign = functions(exact) & _SIGNS != functions(other) & _SIGNS
        return [exact] if other_sign and _is_integer(exact) else [exact, other]
    if all(_is_integer_near(one, two) for one, two in pairs):
        return [other]
    if all(abs(_difference(one, two)) * _CLOSE <= abs(constant_value(one)) for one, two in pairs):
        return [exact]
    raise NoValue("several values")


def _pairs(one: Node, other: Node) -> list[tuple[Node, Node]]:
    """The numbers of two values that correspond; signs that only one of them has are taken into account."""
    match one, other:
        case (nodes.PlusMinus(left=a, right=b), nodes.PlusMinus(left=c, right=d)):
            return [*_pairs(a, c), *_pairs(b, d)]
        case (nodes.Brackets(items=a), nodes.Brackets(items=b)) | (
            nodes.SetOf(items=a),
            nodes.SetOf(items=b),
        ):
            if len(a) == len(b):
                return [pair for left, right in zip(a, b, strict=True) for pair in _pairs(left, right)]
        case (nodes.Quantity(unit=a), nodes.Quantity(unit=b)) if not units.same_words(a, b):
            raise NoValue("values in different units")
        case (nodes.Quantity(value=value), _):
            return _pairs(value, other)
        case (_, nodes.Quantity(value=value)):
            return _pairs(one, value)
        case (nodes.Call(name="percent" | "degree" as sign, args=(left,)), _):
            return [(left, counted_in(sign, other))]
        case (_, nodes.Call(name="percent" | "degree" as sign, args=(right,))):
            return [(counted_in(sign, one), right)]
    return [(one, other)]


def _is_rounding(exact: Node, other: Node) -> bool:
    """Whether the other value is a decimal to which the first is rounded or cut off."""
    if not isinstance(other, nodes.Number) or not other.places:
        return False
    return bool(abs(_difference(exact, other)) * 10**other.places < 1)


def _is_integer_near(exact: Node, other: Node) -> bool:
    """Whether the other value is an integer to which the first is rounded."""
    is_integer = isinstance(other, nodes.Number) and other.value.denominator == 1
    return is_integer and bool(abs(_difference(exact, other)) * 2 <= 1)


def _difference(one: Node, other: Node) -> Any:
    return constant_value(one) - constant_value(other)


def _is_integer(node: Node) -> bool:
    return whole_number(without_signs(node)) is not None
