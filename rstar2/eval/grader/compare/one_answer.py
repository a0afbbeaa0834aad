r"""Reduces a prediction to the one answer that it states.

A model that is rewarded for correct verdicts may write any text, and could learn to write a text that is accepted for
many gold answers. Therefore a prediction is reduced to one value before it is compared. A chain such as
`x = \frac{1}{3} \approx 0.333` may contain an exact value and its decimal approximation, and no other value. All values
joined by equals signs have to agree.

Some signs have two readings: 30° is 30 or π/6, 5 % is 5 or 0.05, and log is natural or decimal. A whole answer such as
30° may have either meaning. In a calculation such as 1° - 1, the two readings have different values and would be two
answers, so the signs get their usual reading.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from rstar2.eval.grader.compare.assignments import EQUALS, is_name
from rstar2.eval.grader.compare.listings import Same
from rstar2.eval.grader.parse import nodes, units
from rstar2.eval.grader.parse.nodes import Call, Node, Symbol, number, walk, with_parts
from rstar2.eval.grader.values.evaluate import is_unsolved
from rstar2.eval.grader.values.functions import ANGLES, TRANSCENDENTAL
from rstar2.eval.grader.values.guarded_numbers import NoValue
from rstar2.eval.grader.values.letters import functions, variables
from rstar2.eval.grader.values.numbers import constant_value, real_value, whole_number
from rstar2.eval.grader.values.points import ROUNDING

_CLOSE = 100
"""Inverse of the maximum relative error of an approximation. Approximations are, for example, 22/7 and 1.27·10^30."""
_SIGNS = frozenset({"percent", "degree"})
_DOUBLE = _SIGNS | {"log"}
"""The names of functions and postfix signs that have two readings."""
_STRUCTURE = (
    nodes.Listing | nodes.SetOf | nodes.Brackets | nodes.Relation | nodes.SetOperation | nodes.Quantity | nodes.Matrix
)  # fmt: skip
"""Nodes that contain values but are not values themselves."""


def one_answer(pred: Node, same: Same) -> list[Node]:
    """Returns the prediction in up to two forms, with each chain reduced to one value.

    The first form has the exact values, and the second form has the rounded values. The second form is left out if it
    equals the first. Raises NoValue if the prediction offers several answers.
    """
    parts = [part for part in walk(pred) if isinstance(part, nodes.Relation | nodes.Call)]
    chains = [part.operators for part in parts if isinstance(part, nodes.Relation)]
    if not chains and not any(isinstance(part, nodes.Call) and part.name in _DOUBLE for part in parts):
        return [pred]
    exact = _with_one_value(pred, same, rounded=False)
    if not any("~" in operators for operators in chains):
        return [exact]
    rounded = _with_one_value(pred, same, rounded=True)
    return [exact] if rounded == exact else [exact, rounded]


def _with_one_value(node: Node, same: Same, rounded: bool) -> Node:
    if not isinstance(node, _STRUCTURE):
        return _in_one_reading(node)
    node = with_parts(node, lambda part: _with_one_value(part, same, rounded))
    if isinstance(node, nodes.Relation) and set(node.operators) <= EQUALS and node.operators != ("=",):
        return _reduced(node, same, rounded)
    return node


def _reduced(chain: nodes.Relation, same: Same, rounded: bool) -> Node:
    """Reduces a chain of = and ≈ to one equation, or to one value if no side of the chain is a name."""
    has_constant = any(map(_is_constant, chain.sides))
    groups = [
        [side for side in group if _is_constant(side) or not (has_constant or is_name(side))]
        for group in _groups(chain)
    ]
    values = [_common_value(group, same) for group in groups if group]
    if len(values) > 2:
        raise NoValue("several values in one answer")
    if len(values) < 2:
        return nodes.Relation(chain.sides, ("=",) * len(chain.operators))
    value = _options(values[0], values[1])[-1 if rounded else 0]
    value_sides = [side for group in groups for side in group]
    names = [side for side in chain.sides if side not in value_sides]
    return nodes.Relation((names[0], value), ("=",)) if names else value


def _groups(chain: nodes.Relation) -> Iterator[list[Node]]:
    """The sides of the chain, split at ≈ signs."""
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


def _common_value(values: list[Node], same: Same) -> Node:
    """Returns the last of several values joined by equals signs. Raises NoValue if another of the values differs from
    the last value. Calculations such as 5 + 5 + 1 and values with letters are not compared with the last value."""
    last = values[-1]
    for value in values[:-1]:
        # The values before a residue are congruent to it, not equal.
        if isinstance(last, nodes.Residue) or _is_working(value) or not _is_constant(value):
            continue
        with contextlib.suppress(NoValue):
            if not same(value, last):
                break
    else:
        return last
    raise NoValue("an equation that is false")


def _is_working(node: Node) -> bool:
    """Whether a value is an intermediate calculation, such as 5 + 5 + 1."""
    steps = nodes.Sum | nodes.Product
    return isinstance(node, steps) and all(isinstance(part, steps | nodes.Number) for part in walk(node))


def _options(exact: Node, other: Node) -> list[Node]:
    """Returns the values that an answer `exact ≈ other` may mean.

    Raises NoValue if `exact` and `other` are not close to each other.
    """
    if not (_is_constant(exact) and _is_constant(other)):
        return [exact]
    pairs = _pairs(exact, other)
    to_integer = all(_is_integer_near(one, two) for one, two in pairs)
    if to_integer and not functions(other) & _SIGNS:
        return [other]
    if all(_is_rounding(one, two) or _is_rounding(two, one) for one, two in pairs):
        # 42 ≈ 4200.0 % and 573.0° ≈ 10 would offer two integers.
        other_sign = functions(exact) & _SIGNS != functions(other) & _SIGNS
        return [exact] if other_sign and _may_be_integer(exact) and _may_be_integer(other) else [exact, other]
    if to_integer:
        return [other]
    if all(abs(_difference(one, two)) * _CLOSE <= abs(constant_value(one)) for one, two in pairs):
        return [exact]
    raise NoValue("several values in one answer")


def _pairs(one: Node, other: Node) -> list[tuple[Node, Node]]:
    """Returns pairs of corresponding numbers in two values.

    If only one value has a percent or degree sign, the other value is converted to percent or degrees.
    """
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
            return [(left, _converted_to(sign, other))]
        case (_, nodes.Call(name="percent" | "degree" as sign, args=(right,))):
            return [(_converted_to(sign, one), right)]
    return [(one, other)]


def _is_rounding(exact: Node, other: Node) -> bool:
    """Whether `other` is `exact` rounded or truncated to a decimal."""
    if not isinstance(other, nodes.Number) or not other.places:
        return False
    last_places = abs(_difference(exact, other)) * 10**other.places
    is_truncated = last_places < 1 and abs(constant_value(other)) < abs(constant_value(exact))
    return bool(last_places * 2 <= 1 or is_truncated)


def _is_integer_near(exact: Node, other: Node) -> bool:
    """Whether `other` is `exact` rounded to an integer."""
    is_integer = isinstance(other, nodes.Number) and other.value.denominator == 1
    return is_integer and bool(abs(_difference(exact, other)) * 2 <= 1)


def _difference(one: Node, other: Node) -> Any:
    return constant_value(one) - constant_value(other)


def _may_be_integer(node: Node) -> bool:
    """Whether a value is an integer in one of the readings of its signs."""
    return any(whole_number(_without_signs(node, plain=plain)) is not None for plain in (True, False))


# --- signs with two readings ---


def _in_one_reading(node: Node) -> Node:
    """Returns the expression with its signs in their usual reading. Signs are left as they are if both readings may be
    meant."""
    used = functions(node)
    several = len(used & _DOUBLE) > 1
    if "degree" in used and (several or _degrees(node) not in {0, 1}):
        node = _replaced(node, "degree", plain=Symbol("pi") not in set(walk(node)))
    if "log" in used and (several or not _is_safe_in_logs(node)):
        calculus = variables(node) or used & TRANSCENDENTAL or Symbol("e") in set(walk(node))
        node = _renamed(node, "ln" if calculus and not used & ROUNDING else "log10")
    if "percent" in used and not _is_percentage(node):
        return _replaced(node, "percent", plain=False)
    return node


def _without_signs(node: Node, *, plain: bool = False) -> Node:
    """Returns the number that a percentage or an angle denotes, such as 5/100 for 5 %.

    If `plain`, returns the number before the sign instead, such as 5 for 5 %.
    """
    return _replaced(_replaced(node, "percent", plain=plain), "degree", plain=plain)


def _converted_to(sign: str, node: Node) -> Node:
    """Converts a number to percent or to degrees."""
    node = _without_signs(node)
    if sign == "percent":
        return nodes.Product((node, number(100)))
    return nodes.Quotient(nodes.Product((node, number(180))), Symbol("pi"))


def as_share(node: Node) -> Node:
    """Returns the answer with each percentage divided by 100, except percentages that are integers between 0 and 100.

    The answer to "how many percent" may be 45 or 45 %, so 45 % stays. 120 % and 0.5 % become 1.2 and 0.005. The
    function is used only if the gold answer has no percent sign.
    """
    if "percent" not in functions(node):
        return node
    if isinstance(node, _STRUCTURE):
        return with_parts(node, as_share)
    with contextlib.suppress(NoValue):
        if 0 < abs(whole_number(_replaced(node, "percent", plain=True)) or 0) < 100:
            return node
    return _replaced(node, "percent", plain=False)


def _is_percentage(node: Node) -> bool:
    """Whether an expression is a percentage, the negative of a percentage or a sum of percentages."""
    match node:
        case nodes.Call(name="percent", args=(arg,)):
            return "percent" not in functions(arg)
        case nodes.Product(factors=(nodes.Number(value=sign), arg)):
            return sign == -1 and _is_percentage(arg)
        case nodes.Sum(terms=terms):
            return all(map(_is_percentage, terms))
        case nodes.PlusMinus(left=left, right=right):
            return _is_percentage(right) and (left == number(0) or _is_percentage(left))
    return False


def _degrees(node: Node) -> int | None:
    """Returns the power to which degrees occur in an expression: 1 in 30°, and 2 in a product of two angles in degrees.
    Returns None if the power cannot be determined, for example because the terms have different powers."""
    if "degree" not in functions(node):
        return 0
    match node:
        case nodes.Call(name="degree", args=(arg,)):
            inner = _degrees(arg)
            return None if inner is None else inner + 1
        case nodes.Call(name=name) if name in ANGLES:
            return 0
        case nodes.Sum(terms=terms):
            return _common(terms)
        case nodes.PlusMinus(left=left, right=right):
            return _common(tuple(part for part in (left, right) if part != number(0)))
        case nodes.Product(factors=factors):
            parts = [_degrees(factor) for factor in factors]
            powers = [part for part in parts if part is not None]
            return sum(powers) if len(powers) == len(parts) else None
        case nodes.Quotient(over=over, under=under):
            one, other = _degrees(over), _degrees(under)
            return None if one is None or other is None else one - other
    return None


def _common(terms: tuple[Node, ...]) -> int | None:
    powers = {_degrees(term) for term in terms}
    return powers.pop() if len(powers) == 1 else None


def _replaced(node: Node, sign: str, *, plain: bool) -> Node:
    """Replaces a sign in an expression by the factor that the sign denotes. If `plain`, the sign is dropped instead."""
    if sign not in functions(node) or (plain and isinstance(node, Call) and node.name in ANGLES):
        return node
    node = with_parts(node, lambda part: _replaced(part, sign, plain=plain))
    match node:
        case nodes.Call(name=name, args=(arg,)) if name == sign:
            if plain:
                return arg
            if sign == "percent":
                return nodes.Quotient(arg, number(100))
            return nodes.Quotient(nodes.Product((arg, Symbol("pi"))), number(180))
    return node


def _renamed(node: Node, name: str) -> Node:
    node = with_parts(node, lambda part: _renamed(part, name))
    return Call(name, node.args) if isinstance(node, Call) and node.name == "log" else node


def _is_safe_in_logs(node: Node) -> bool:
    """Whether an expression can never equal one integer with natural logarithms and another integer with decimal
    logarithms.

    The result is True if the expression only adds, multiplies and divides logarithms of positive numbers, algebraic
    numbers and pi. The result is False for expressions with e, log(-1), floors or roots of sums, because such an
    expression can be 1 with natural logarithms and 7 with decimal logarithms.
    """
    return all(map(_is_algebraic, walk(node))) and _is_rational_in_logs(node)


def _is_algebraic(part: Node) -> bool:
    """Whether a part may occur in an algebraic expression of logarithms and pi."""
    match part:
        case Call(name="log", args=(arg,)):
            return _is_positive(arg)
        case Call(name=name):
            return name in {"root", "abs"}
        case nodes.Power(exponent=exponent):
            return isinstance(exponent, nodes.Number)
    return part != Symbol("e") and not isinstance(part, nodes.Apply | nodes.Series)


def _is_positive(arg: Node) -> bool:
    """Whether a number, or an expression in positive variables, is certainly positive."""
    if variables(arg):
        return all(part != Symbol("i") and getattr(part, "value", 1) > 0 for part in walk(arg))
    try:
        return bool(real_value(arg) > 0)
    except NoValue:
        return False


def _is_monomial(node: Node) -> bool:
    """Whether an expression has no sums with logarithms. Without such sums, an expression has the same sign with
    natural and with decimal logarithms."""
    sums = nodes.Sum | nodes.PlusMinus
    return not any(isinstance(part, sums) and "log" in functions(part) for part in walk(node))


def _is_rational_in_logs(node: Node) -> bool:
    if "log" not in functions(node):
        return True
    match node:
        case nodes.Call(name="log", args=args):
            return not any("log" in functions(arg) for arg in args)
        case nodes.Sum(terms=parts) | nodes.Product(factors=parts):
            return all(map(_is_rational_in_logs, parts))
        case nodes.PlusMinus(left=left, right=right) | nodes.Quotient(over=left, under=right):
            return _is_rational_in_logs(left) and _is_rational_in_logs(right)
        case nodes.Power(base=base, exponent=nodes.Number(value=exponent)):
            return _is_rational_in_logs(base) and (exponent.denominator == 1 or _is_monomial(base))
        case nodes.Call(name="root", args=(base, nodes.Number())):
            return _is_rational_in_logs(base) and _is_monomial(base)
    return False
