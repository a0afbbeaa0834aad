"""What names what in an answer: x in x = 5, (a, b) in (a, b) = (1, 2)."""

from __future__ import annotations

from collections.abc import Sequence

from rstar2.eval.grader.compare.equality import equal
from rstar2.eval.grader.compare.guarded_numbers import NoValue
from rstar2.eval.grader.compare.letters import variables
from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, is_unknown, negative, number, walk

EQUALS = frozenset({"=", "~"})
_POLYNOMIAL = nodes.Number | nodes.Symbol | nodes.Sum | nodes.Product | nodes.Quotient | nodes.Power


def named(node: Node) -> tuple[Node | None, Node]:
    """The name and the value of an assignment such as x = 5 or 5 = x; (None, node) for anything else."""
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
        constant = not variables(first) and not any(isinstance(part, nodes.Apply) for part in walk(first))
        if constant and node.operators == ("=",) and not _holds(first, last):
            raise NoValue("an equation that is false")
        return first, last
    return None, node


def _holds(left: Node, right: Node) -> bool:
    """Whether an equation of constants is true, or a congruence such as 17 = 2 (mod 5)."""
    if isinstance(right, nodes.Residue):
        difference = nodes.Sum((left, negative(right.value)))
        return equal(nodes.Residue(difference, right.modulus, is_remainder=True), number(0))
    return equal(left, right)


def is_name(node: Node) -> bool:
    """Whether a side only names what the other side gives: x, a_3, f(x), (p, q, r), AB, NO/BO."""
    if isinstance(node, nodes.Brackets):
        return bool(node.items) and all(isinstance(item, nodes.Symbol | nodes.Apply) for item in node.items)
    return is_unknown(node)


def _open(node: Node) -> bool:
    """Whether an expression has variables to solve for, rather than names of points, lengths or probabilities."""
    inside = {arg for part in walk(node) if isinstance(part, nodes.Apply) for arg in part.args}
    names = {part.name for part in walk(node) if isinstance(part, nodes.Symbol) and part not in inside}
    free = names & variables(node) - {"angle", "triangle"}
    return not all(name[0].isupper() for name in free)


def same_name(a: Node, b: Node) -> bool:
    """Whether two names are the same, or both those of functions of a variable: y, f(x), g(t), not f(2) and f(5)."""
    return a == b or (_names_function(a) and _names_function(b))


def _names_function(name: Node) -> bool:
    return name == nodes.Symbol("y") or (
        isinstance(name, nodes.Apply)
        and len(name.name) == 1
        and all(isinstance(arg, nodes.Symbol) for arg in name.args)
    )


def states_a_value(node: nodes.Relation) -> bool:
    """Whether an equation says what an expression amounts to, as m + n = 33 does.

    x^2 + y^2 = 1 is a curve, and 2x = 42 is to be solved.
    """
    value = node.sides[-1]
    if not set(node.operators) <= EQUALS or variables(value) or value == number(0):
        return False
    parts = list(walk(node.sides[0]))
    linear = len(variables(node.sides[0])) > 1 and not any(isinstance(part, nodes.Power) for part in parts)
    return len(node.sides) > 2 or linear or not all(isinstance(part, _POLYNOMIAL) for part in parts)


def expanded(name: Node | None, value: Node) -> Node | None:
    """(a, b) = (1, 2) as a = 1, b = 2."""
    match name, value:
        case nodes.Brackets(items=names), nodes.Brackets(items=values) if len(names) == len(values):
            pairs = zip(names, values, strict=True)
            return nodes.Listing(tuple(nodes.Relation(pair, ("=",)) for pair in pairs))
    return None


def names_of(items: Sequence[Node]) -> list[Node]:
    """The names the members are given, if all of them are given one."""
    found = [named(item)[0] for item in items]
    return [name for name in found if name is not None] if all(found) else []


def unnamed(items: Sequence[Node]) -> tuple[Node, ...]:
    return tuple(named(item)[1] for item in items)


def one_variable(names: Sequence[Node]) -> bool:
    """Whether the names are one variable, as in x = 1, x = 2 or x_1 = 1, x_2 = 2."""
    given = {name.name if isinstance(name, nodes.Apply | nodes.Symbol) else str(name) for name in names}
    return len(given) == 1
