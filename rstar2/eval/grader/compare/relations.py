"""Compares two equations, inequalities or congruences."""

from __future__ import annotations

from rstar2.eval.grader.compare import assignments
from rstar2.eval.grader.compare.listings import Same, in_order
from rstar2.eval.grader.compare.quantities import has_congruence
from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, negative, number, walk
from rstar2.eval.grader.values.equality import proportional
from rstar2.eval.grader.values.guarded_numbers import NoValue
from rstar2.eval.grader.values.letters import variables

_MIRRORED = {">": "<", ">=": "<="}


def same_equations(a: nodes.Relation, b: nodes.Relation, same: Same) -> bool:
    """Whether two equations are equivalent.

    Two solved equations certainly differ in two cases: if they have the same name and different values, or if their
    values are constants and their names or values differ. NoValue is raised for any other equations that differ in
    form, because they may still be equivalent.
    """
    if same_relations(a, b, same):
        return True
    (name, value), (other, other_value) = assignments.named(a), assignments.named(b)
    if name is None or other is None:
        raise NoValue("an equation in another form")
    are_solved = not any(side in walk(part) for side in (name, other) for part in (value, other_value))
    are_constant = type(name) is type(other) and not (variables(value) or variables(other_value))
    if are_solved and (are_constant or _same_names(name, other, same)):
        return False
    raise NoValue("an equation in another form")


def same_relations(a: nodes.Relation, b: nodes.Relation, same: Same) -> bool:
    """Whether two relations have the same form, or one is a multiple of the other.

    If the result is False, the relations may still be equivalent.
    """
    (name, left), (other, right) = assignments.named(a), assignments.named(b)
    if name is not None and other is not None:
        if _same_names(name, other, same):
            if same(left, right):
                return True
        elif not (assignments.is_name(name) or assignments.is_name(other)):
            raise NoValue("equations with different names")
    a, b = _ascending(a), _ascending(b)
    if a.operators != b.operators and set(a.operators) | set(b.operators) != assignments.EQUALS:
        return False
    if len(a.sides) != len(b.sides):
        return False
    if _same_form(a, b, same):
        return True
    return len(a.sides) == 2 and _equivalent(a, b)


def _same_names(a: Node, b: Node, same: Same) -> bool:
    """Whether the names in two equations mean the same quantity: AB is BA, but angle ABC is not angle BAC."""
    if assignments.is_name(a) or assignments.is_name(b):
        return assignments.same_name(a, b)
    if isinstance(a, nodes.Product) and isinstance(b, nodes.Product) and "angle" in variables(a):
        return b.factors in {a.factors, (*a.factors[:1], *a.factors[:0:-1])}
    return same(a, b)


def same_congruences(a: nodes.Relation, b: nodes.Relation, same: Same) -> bool:
    """Whether two congruences are the same. Raises NoValue if the congruences do not give residues of the same name.

    Congruences are not compared as equations: x = 2 (mod 5) is not x = 2, and dividing a congruence may change its
    modulus.
    """
    (name, left), (other, right) = assignments.named(a), assignments.named(b)
    if has_congruence(a) != has_congruence(b):
        raise NoValue("a congruence against an equation")
    if name is not None and other is not None and assignments.same_name(name, other):
        if same(left, right):
            return True
        if all(isinstance(side, nodes.Residue) and not variables(side) for side in (left, right)):
            return False
    elif a.operators == b.operators and in_order(a.sides, b.sides, same):
        return True
    raise NoValue("a congruence in another form")


def _same_form(a: nodes.Relation, b: nodes.Relation, same: Same) -> bool:
    try:
        if in_order(a.sides, b.sides, same):
            return True
        symmetric = set(a.operators) <= {"=", "~", "!="} and len(a.sides) == 2
        return symmetric and in_order(a.sides, b.sides[::-1], same)
    except NoValue:
        if len(a.sides) == 2:
            return False
        raise


def _ascending(node: nodes.Relation) -> nodes.Relation:
    """Exchanges the sides of an inequality with > or >=, so that it has < or <=. Any other relation is returned
    unchanged."""
    if set(node.operators) <= _MIRRORED.keys():
        return nodes.Relation(
            node.sides[::-1], tuple(_MIRRORED[operator] for operator in node.operators[::-1])
        )
    return node


def _equivalent(a: nodes.Relation, b: nodes.Relation) -> bool:
    """Whether one of two equations or inequalities is a multiple of the other."""
    if a.operators[0] not in {"=", "!=", "<", "<="} or not (variables(a) & variables(b)):
        return False
    differences: list[Node] = [nodes.Sum((node.sides[0], negative(node.sides[1]))) for node in (a, b)]
    if a.operators[0] == "=" and min(len(variables(one)) for one in differences) > 1:
        differences = [_as_fraction(one)[0] for one in differences]
    try:
        sign = proportional(differences[0], differences[1])
    except NoValue:
        return False  # a side that is not an expression, such as a tuple
    return sign is not None and (sign > 0 or a.operators[0] in {"=", "!="})


def _as_fraction(node: Node) -> tuple[Node, Node]:
    """Returns an expression as a numerator and a denominator. Denominators without letters are not split off: they
    remain as coefficients of the numerator.

    An equation is compared after it is multiplied by the denominator: y/x = 2 is compared as y = 2x. This changes a
    curve only at points where the equation is not defined.
    """
    match node:
        case nodes.Quotient(over=over, under=under) if variables(under):
            (one, below), (other, above) = _as_fraction(over), _as_fraction(under)
            return nodes.Product((one, above)), nodes.Product((below, other))
        case nodes.Product(factors=factors):
            parts = [_as_fraction(factor) for factor in factors]
            return nodes.Product(tuple(over for over, _ in parts)), nodes.Product(
                tuple(under for _, under in parts)
            )
        case nodes.Sum(terms=(first, *rest)):
            total, common = _as_fraction(first)
            for term in rest:
                over, under = _as_fraction(term)
                total = nodes.Sum((nodes.Product((total, under)), nodes.Product((over, common))))
                common = nodes.Product((common, under))
            return total, common
    return node, number(1)
