"""Comparing quantities with units, ratios and residues."""

from __future__ import annotations

from rstar2.eval.grader.compare.equality import equal
from rstar2.eval.grader.compare.guarded_numbers import NoValue
from rstar2.eval.grader.compare.letters import variables
from rstar2.eval.grader.compare.listings import Same, in_order
from rstar2.eval.grader.parse import nodes, units
from rstar2.eval.grader.parse.nodes import Node, negative, number, walk


def same_quantities(a: Node, b: Node, same: Same) -> bool:
    a, b = _with_letter_unit(a), _with_letter_unit(b)
    for pair in ((a, b), (b, a)):
        match pair:
            case nodes.Quantity(value=value, unit=unit), nodes.Call(name="degree", args=(degrees,)):
                turned = nodes.Quotient(nodes.Product((degrees, nodes.Symbol("pi"))), number(180))
                return units.measure(unit) == units.measure("radian") and same(value, turned)
    values = [node.value if isinstance(node, nodes.Quantity) else node for node in (a, b)]
    given = [node.unit for node in (a, b) if isinstance(node, nodes.Quantity)]
    written = [unit for unit in given if not units.no_unit(unit)]
    if len(written) < 2 or units.same_words(*written):
        return same(values[0], values[1])
    one, other = (units.measure(unit) for unit in written)
    if one is None or other is None:
        if not same(values[0], values[1]):
            return False
        raise NoValue("units that are not known")
    if one[1] != other[1]:
        return False
    return same(
        nodes.Product((values[0], nodes.Number(one[0]))), nodes.Product((values[1], nodes.Number(other[0])))
    )


def _with_letter_unit(node: Node) -> Node:
    """5m as five metres and 5m/s as a speed, where the other side has a unit."""
    match node:
        case nodes.Quotient(over=over, under=nodes.Symbol(name=name)) if units.measure(name):
            speed = _with_letter_unit(over)
            if isinstance(speed, nodes.Quantity):
                return nodes.Quantity(speed.value, f"{speed.unit} / {name}")
        case nodes.Product(factors=(*numbers, last)):
            base, power = (last.base, last.exponent) if isinstance(last, nodes.Power) else (last, number(1))
            value = nodes.Product(tuple(numbers))
            match base, power:
                case nodes.Symbol(name=unit), nodes.Number(value=times):
                    if units.measure(unit) and not variables(value):
                        return nodes.Quantity(value, f"{unit}^{times}")
    return node


def same_ratios(a: Node, b: Node, same: Same) -> bool:
    one, other = (node.parts if isinstance(node, nodes.Ratio) else None for node in (a, b))
    clock = any(isinstance(node, nodes.Ratio) and node.clock for node in (a, b))
    if one is not None and other is not None:
        if len(one) != len(other):
            return False
        return in_order(one, other, same) or (
            not clock
            and all(
                equal(nodes.Product((one[0], right)), nodes.Product((other[0], left)))
                for left, right in zip(one, other, strict=True)
            )
        )
    parts, plain = (one, b) if one is not None else (other, a)
    return bool(parts and len(parts) == 2 and not clock and equal(nodes.Quotient(parts[0], parts[1]), plain))


def has_congruence(*answers: Node) -> bool:
    """Whether an answer says something up to multiples of a number, as x = 2 (mod 5), rather than a remainder."""
    return any(
        isinstance(part, nodes.Residue) and not part.is_remainder for node in answers for part in walk(node)
    )


def are_parts_of_a_sum(node: Node) -> bool:
    """Whether a list may be one quantity in several units, as 5 feet and 3 inches."""
    if not isinstance(node, nodes.Listing):
        return False
    found = [units.measure(item.unit) if isinstance(item, nodes.Quantity) else None for item in node.items]
    known = [each for each in found if each is not None]
    return len(known) == len(found) == len(set(known)) and len({powers for _, powers in known}) == 1


def same_residues(a: Node, b: Node, same: Same) -> bool:
    if isinstance(a, nodes.Residue) and isinstance(b, nodes.Residue):
        if not same(a.modulus, b.modulus):
            return False
        difference = nodes.Quotient(nodes.Sum((a.value, negative(b.value))), a.modulus)
        return same(a.value, b.value) or equal(nodes.Call("floor", (difference,)), difference)
    residue, plain = (a, b) if isinstance(a, nodes.Residue) else (b, a)
    assert isinstance(residue, nodes.Residue)
    if not residue.is_remainder:
        if variables(residue):
            raise NoValue("numbers up to multiples of another")
        return same(residue.value, plain)
    if equal(residue, plain):
        return True
    if same(residue.value, plain):
        raise NoValue("a remainder, or a number with the modulus it is meant for")
    return False
