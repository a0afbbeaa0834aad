"""Names of values in an answer: x in x = 5, (a, b) in (a, b) = (1, 2)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, is_unknown, negative, number, walk
from rstar2.eval.grader.parse.vocabulary import ANOTHER_VALUE, DECORATIONS, GREEK, OF_ANOTHER
from rstar2.eval.grader.values.equality import equal
from rstar2.eval.grader.values.functions import ANGLES
from rstar2.eval.grader.values.guarded_numbers import NoValue
from rstar2.eval.grader.values.letters import variables

EQUALS = frozenset({"=", "~"})
_ASKED_FOR = ANGLES | {"det", "Re", "Im", "arg"}
"""Functions whose value a problem may ask for. The value of a root or a logarithm is only an intermediate step."""
_DOTS = nodes.Symbol("dots")
_MAX_PARTS = 1000
"""A sum or product with dots is written out only if it has at most this many terms or factors."""


def named(node: Node) -> tuple[Node | None, Node]:
    """Returns the name and the value of an assignment such as x = 5, 5 = x or AB = 5.

    For any other node, returns (None, node). Raises NoValue for a false equation that contains only constants.
    """
    if not isinstance(node, nodes.Relation):
        return None, node
    if node.operators == ("in",):
        return node.sides[0], node.sides[1]
    if not set(node.operators) <= EQUALS:
        return None, node
    first, last = node.sides[0], node.sides[-1]
    if is_name(first):
        return first, last
    if is_name(last):
        return last, first
    if not variables(last) and not _open(first):
        is_constant = not variables(first) and not any(isinstance(part, nodes.Apply) for part in walk(first))
        if is_constant and node.operators == ("=",) and not _holds(first, last):
            raise NoValue("an equation that is false")
        if is_constant or names_quantity(first):
            return first, last
    return None, node


def _holds(left: Node, right: Node) -> bool:
    """Whether an equation or a congruence that contains only constants is true, as 17 = 2 (mod 5) is."""
    if isinstance(right, nodes.Residue):
        difference = nodes.Sum((left, negative(right.value)))
        return equal(nodes.Residue(difference, right.modulus, is_remainder=True), number(0))
    return equal(left, right)


def is_name(node: Node) -> bool:
    """Whether a side of an equation is only a name for the other side: x, a_3, f(x) or (p, q, r)."""
    if isinstance(node, nodes.Brackets):
        return bool(node.items) and all(isinstance(item, nodes.Symbol | nodes.Apply) for item in node.items)
    if isinstance(node, nodes.Symbol) and (OF_ANOTHER.match(node.name) or ANOTHER_VALUE.search(node.name)):
        return False
    return is_unknown(node)


def names_quantity(node: Node) -> bool:
    """Whether a side of an equation only names a quantity: x, AB, NO/BO, P(A), |AB|, sin A, AB + BC or 100m + n.

    2AB, N - 1, AB^2 and √x are not names of a quantity: the problem may ask for AB, N or x, which must still be worked
    out.
    """
    match node:
        case nodes.Product(factors=parts):
            is_power = math.gcd(*Counter(parts).values()) > 1  # AB·AB, but not AB·AC
            if bool(parts) and not is_power and all(map(names_quantity, parts)):
                return True
            return _is_squared_length(parts) or _joins_letters(node)
        case nodes.Ratio(parts=parts):
            return all(map(names_quantity, parts))
        case nodes.Quotient(over=over, under=under):
            named_parts = over != under and names_quantity(over) and names_quantity(under)
            return named_parts or _joins_letters(node)
        case nodes.Sum(terms=terms):
            bare = [_without_numbers(term) for term in terms]
            lone = {term.name for term in bare if isinstance(term, nodes.Symbol)}
            named_terms = len(set(bare)) > 1 and all(map(names_quantity, bare)) and not lone & _applied(node)
            return named_terms or _joins_letters(node)
        case nodes.Call(name="floor" | "ceil", args=(inner,)) | nodes.Residue(value=inner):
            return bool(variables(inner))
        case nodes.Power(base=nodes.Apply(name=name), exponent=nodes.Number()):
            return name in DECORATIONS
        case nodes.Power(base=base, exponent=nodes.Number()) if not isinstance(base, nodes.Symbol):
            return names_quantity(base) or _joins_letters(base)
        case nodes.Call(name="abs" | "norm", args=(inner,)) if names_quantity(inner):
            return not (
                isinstance(inner, nodes.Symbol) and inner.name.islower() and inner.name not in {"z", "w"}
            )
        case nodes.Call(name="min" | "max" | "gcd" | "lcm", args=args):
            return all(map(names_quantity, args))
        case nodes.Call(name=name, args=args):
            return bool(variables(node)) if name in _ASKED_FOR else any(map(_has_several_letters, args))
    return is_name(node)


def _joins_letters(node: Node) -> bool:
    """Whether an expression combines several letters, and has no number as a term or a factor. An example is x^2 + y^2.

    An equation such as x^2 + y^2 = 25 cannot be solved for one letter, so the problem asks for the value of x^2 + y^2.
    """
    letters = variables(node)
    if len(letters) < 2 or not all(len(name) == 1 or name in GREEK for name in letters):
        return False
    match node:
        case nodes.Sum(terms=parts):
            return all(variables(part) for part in parts)
        case nodes.Product(factors=parts):
            return all(variables(part) and not isinstance(part, nodes.Call) for part in parts)
        case nodes.Quotient(over=over, under=under):
            return bool(variables(over) and variables(under))
    return False


def _is_squared_length(factors: tuple[Node, ...]) -> bool:
    """Whether the factors are the square of a length between two points: AB^2."""
    match factors:
        case (
            nodes.Symbol(name=one),
            nodes.Power(base=nodes.Symbol(name=other), exponent=nodes.Number(value=power)),
        ):
            return one.isupper() and other.isupper() and power == 2
    return False


def dropped_name(relation: Node) -> Node | None:
    """Returns the side of an equation that names the equation's value. Dots in the returned side are replaced by the
    terms or factors for which they stand.

    Returns None if no side names the value.
    """
    name, _ = named(relation)
    if not isinstance(relation, nodes.Relation):
        return name
    if name is not None:
        return next(filter(is_name, relation.sides[:-1]), name)
    written_out = _written_out(relation.sides[0], relation.sides[-1])
    return written_out or (relation.sides[0] if states_a_value(relation) else None)


def _written_out(side: Node, value: Node) -> Node | None:
    """Returns a sum or product such as 1 + 2 + ... + 15 with all its terms or factors in place of the dots.

    Returns None if neither the difference nor the ratio of neighbouring numbers is constant, or if the sum or product
    is not `value`.
    """
    match side:
        case nodes.Sum(terms=parts) | nodes.Product(factors=parts) if parts.count(_DOTS) == 1:
            place = parts.index(_DOTS)
            numbers = [part.value for part in parts if isinstance(part, nodes.Number)]
        case _:
            return None
    if len(numbers) != len(parts) - 1 or place < 2 or place == len(parts) - 1:
        return None
    is_product = isinstance(side, nodes.Product)
    steps = _steps(numbers[0], numbers[-1], numbers[1] - numbers[0], 1)
    if numbers[0]:
        steps += _steps(numbers[0], numbers[-1], Fraction(0), numbers[1] / numbers[0])
    for row in filter(None, steps):
        fits = row[:place] == numbers[:place] and row[len(row) - len(numbers) + place :] == numbers[place:]
        if fits and equal(nodes.Number(Fraction(math.prod(row) if is_product else sum(row))), value):
            members = tuple(map(nodes.Number, row))
            return nodes.Product(members) if is_product else nodes.Sum(members)
    return None


def _steps(first: Fraction, last: Fraction, step: Fraction, ratio: Fraction | int) -> list[list[Fraction]]:
    """Returns a list with one row, which contains the numbers from `first` to `last`.

    Each number is the previous number times `ratio`, plus `step`. Returns an empty list if `last` is not among the
    first `_MAX_PARTS` numbers.
    """
    row = [first]
    while row[-1] != last and len(row) < _MAX_PARTS:
        row.append(row[-1] * ratio + step)
    return [row] if row[-1] == last else []


def _without_numbers(term: Node) -> Node:
    """Returns a term without its numerical factors."""
    if not isinstance(term, nodes.Product):
        return term
    factors = tuple(factor for factor in term.factors if not isinstance(factor, nodes.Number))
    return factors[0] if len(factors) == 1 else nodes.Product(factors)


def _applied(node: Node) -> set[str]:
    """The letters in arguments of unknown functions."""
    return {name for part in walk(node) if isinstance(part, nodes.Apply) for name in variables(part)}


def _has_several_letters(node: Node) -> bool:
    """Whether a node is a sum of several letters without a number as a term, such as a^2 + b^2."""
    if not isinstance(node, nodes.Sum) or any(isinstance(term, nodes.Number) for term in node.terms):
        return False
    return len(variables(node)) > 1


def _open(node: Node) -> bool:
    """Whether an expression has variables to solve for, rather than names of points, lengths or probabilities."""
    return not all(name[0].isupper() for name in _letters(node) - {"angle", "triangle"})


def _letters(node: Node) -> set[str]:
    """The letters that are not arguments of unknown functions."""
    inside = {arg for part in walk(node) if isinstance(part, nodes.Apply) for arg in part.args}
    names = {part.name for part in walk(node) if isinstance(part, nodes.Symbol) and part not in inside}
    return names & variables(node)


def same_name(a: Node, b: Node) -> bool:
    """Whether two names are equal, or are names of the same function, as y and f(x) are, or f(x) and f(t).

    The names f(2) and f(5) are not the same.
    """
    heads = _function(a), _function(b)
    return a == b or (all(heads) and ("y" in heads or heads[0] == heads[1]))


def _function(name: Node) -> str:
    """Returns the letter of a function of variables, such as f for f(x), or the empty string for other names. The name
    y counts as a function."""
    if name == nodes.Symbol("y"):
        return "y"
    if not isinstance(name, nodes.Apply) or len(name.name) != 1:
        return ""
    return name.name if all(isinstance(arg, nodes.Symbol) and arg.name.islower() for arg in name.args) else ""


def states_a_value(node: nodes.Relation) -> bool:
    """Whether an equation gives the value of an expression, as m + n = 33 does.

    The equation 2x = 42 gives no value: it must still be solved. The equation 2x + 2y = 9 + 16 = 25 gives a value: its
    first side has several letters, and its value is calculated.
    """
    value = node.sides[-1]
    if not set(node.operators) <= EQUALS or variables(value) or value == number(0):
        return False
    match node.sides[0], value:
        case nodes.Power(base=nodes.Symbol(name=name)), nodes.Matrix():
            return name.isupper()
    is_calculated = len(node.sides) > 2 and len(variables(node.sides[0])) > 1
    return is_calculated or names_quantity(node.sides[0]) or _written_out(node.sides[0], value) is not None


def in_usual_order(names: Sequence[Node]) -> bool:
    """Whether names are in alphabetical order: x before y, and x_1 before x_2. If a tuple gives values without names,
    the values are taken to be in this order."""
    letters = [
        (
            name.name.lower(),
            *(arg.value for arg in getattr(name, "args", ()) if isinstance(arg, nodes.Number)),
        )
        for name in names
        if isinstance(name, nodes.Symbol | nodes.Apply) and len(name.name.rstrip("_")) == 1
    ]
    return letters == sorted(letters)


def names_of(items: Sequence[Node]) -> list[Node]:
    """Returns the names of the members if all members have names, otherwise an empty list."""
    names = [named(item)[0] for item in items]
    return [name for name in names if name is not None] if all(names) else []


def is_one_variable(names: Sequence[Node]) -> bool:
    """Whether all names denote the same variable, as in x = 1, x = 2 or x_1 = 1, x_2 = 2."""
    letters = {name.name if isinstance(name, nodes.Apply | nodes.Symbol) else str(name) for name in names}
    return len(letters) == 1
