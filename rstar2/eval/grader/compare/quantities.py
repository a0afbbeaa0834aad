"""Compares quantities with units, ratios and residues."""

from __future__ import annotations

from rstar2.eval.grader.compare.listings import Same, in_order
from rstar2.eval.grader.parse import nodes, units
from rstar2.eval.grader.parse.nodes import Node, negative, number, walk
from rstar2.eval.grader.values.equality import equal
from rstar2.eval.grader.values.guarded_numbers import NoValue
from rstar2.eval.grader.values.letters import variables


def same_quantities(a: Node, b: Node, same: Same) -> bool:
    """Whether two quantities, or a quantity and a number, are equal.

    Raises NoValue if it cannot be decided whether the two are equal.
    """
    a, b = _with_letter_unit(a), _with_letter_unit(b)
    if any(isinstance(node, nodes.Quantity) and node.unit.lower() in units.HALF_DAYS for node in (a, b)):
        is_clock = any(isinstance(part, nodes.Ratio) for node in (a, b) for part in walk(node))
        a, b = _time_of_day(a, is_clock), _time_of_day(b, is_clock)
    for pair in ((a, b), (b, a)):
        match pair:
            case nodes.Quantity(value=value, unit=unit), nodes.Call(name="degree", args=(degrees,)):
                if unit in units.TEMPERATURES:
                    return same(value, degrees)
                radians = nodes.Quotient(nodes.Product((degrees, nodes.Symbol("pi"))), number(180))
                return units.measure(unit) == units.measure("radian") and same(value, radians)
    values = [node.value if isinstance(node, nodes.Quantity) else node for node in (a, b)]
    unit_texts = [node.unit for node in (a, b) if isinstance(node, nodes.Quantity)]
    stated_units = [unit for unit in unit_texts if not units.no_unit(unit)]
    if len(stated_units) < 2 or units.same_words(*stated_units):
        if same(values[0], values[1]):
            if unit_texts == ["K"]:
                raise NoValue("it is unclear whether K means kelvins or thousands")
            return True
        if len(unit_texts) == 1 and any(map(variables, values)) and _may_hold_units(values, same):
            raise NoValue("letters that may be a unit")
        return False
    one, other = (units.measure(unit) for unit in stated_units)
    if one is None or other is None:
        if not same(values[0], values[1]):
            return False
        raise NoValue("units that are not known")
    if one[1] != other[1]:
        if all(unit in units.TEMPERATURES for unit in stated_units):
            raise NoValue("temperatures on different scales")
        return False
    return same(
        nodes.Product((values[0], nodes.Number(one[0]))), nodes.Product((values[1], nodes.Number(other[0])))
    )


def _with_letter_unit(node: Node) -> Node:
    """Converts a number followed by letters that are units, such as 5m, 5m/s, 5 m s^{-1} or 9pm, to a quantity. Any
    other node is returned unchanged.

    Any other node is returned unchanged.
    """
    match node:
        case nodes.Product(
            factors=(nodes.Number() as hour, nodes.Symbol(name="a" | "p" as half), nodes.Symbol("m"))
        ):
            return nodes.Quantity(hour, f"{half}m")
        case nodes.Product() | nodes.Quotient():
            factors, letters = _unit_letters(node, 1)
            value = nodes.Product(tuple(factors))
            if factors and letters and not variables(value):
                return nodes.Quantity(value, " ".join(letters))
    return node


def _unit_letters(node: Node, sign: int) -> tuple[list[Node], list[str]]:
    """Splits a product or quotient. Returns the factors that are not letters of units, and then the units with their
    powers."""
    match node:
        case nodes.Product(factors=factors):
            parts = [_unit_letters(factor, sign) for factor in factors]
            return [factor for part in parts for factor in part[0]], [
                unit for part in parts for unit in part[1]
            ]
        case nodes.Quotient(over=over, under=under) if variables(node):
            (first, one), (second, other) = _unit_letters(over, sign), _unit_letters(under, -sign)
            return first + second, one + other
        case nodes.Symbol(name=name) if units.measure(name):
            return [], [f"{name}^{sign}"]
        case nodes.Power(base=nodes.Symbol(name=name), exponent=nodes.Number(value=times)):
            if units.measure(name) and times.denominator == 1 and abs(times) < 10:
                return [], [f"{name}^{sign * times}"]
    return [node if sign > 0 else nodes.Quotient(number(1), node)], []


def _may_hold_units(values: list[Node], same: Same) -> bool:
    """Whether letters of two values may be units.

    The letters may be units if at least one of them is a unit, as m is in 60 k m / h, or if the numbers without the
    letters are equal.
    """
    split = [_unit_letters(value, 1) for value in values]
    numbers = [[factor for factor in factors if not variables(factor)] for factors, _ in split]
    return any(letters for _, letters in split) or same(
        *(nodes.Product((number(1), *factors)) for factors in numbers)
    )


def _time_of_day(node: Node, is_clock: bool) -> Node:
    """Converts a time to the 12-hour clock: 15:30 becomes 3:30 pm. If `is_clock`, 3 pm becomes 3:00 pm."""
    match node:
        case nodes.Quantity(value=nodes.Number() as hour, unit=unit) if is_clock:
            return nodes.Quantity(nodes.Ratio((hour, number(0)), True), unit)
        case nodes.Ratio(parts=(nodes.Number(value=value), *rest), clock=True) if not 1 <= value <= 12:
            is_afternoon, hour_12 = divmod(int(value) % 24, 12)
            time = nodes.Ratio((number(hour_12 or 12), *rest), True)
            return nodes.Quantity(time, "pm" if is_afternoon else "am")
    return node


def same_ratios(a: Node, b: Node, same: Same) -> bool:
    """Whether two ratios or times of day are the same. A number counts as the ratio of the number to 1.

    Raises NoValue if a time and a ratio are equal as ratios, since 12:16 may be meant as 3:4. Also raises NoValue if a
    ratio in words such as `3 to 4` is compared with a number, since the words may mean a range or odds.
    """
    if any(isinstance(node, nodes.Ratio) and node.worded for node in (a, b)) and type(a) is not type(b):
        raise NoValue("a ratio in words against a number")
    one, other = (node.parts if isinstance(node, nodes.Ratio) else (node, number(1)) for node in (a, b))
    clocks = [isinstance(node, nodes.Ratio) and node.clock for node in (a, b)]
    if len(one) != len(other):
        return False
    agree = in_order(one, other, same)
    # If the first part is zero, all products below are zero and show nothing.
    if not (agree or all(clocks) or equal(one[0], number(0)) or equal(other[0], number(0))):
        agree = all(
            equal(nodes.Product((one[0], right)), nodes.Product((other[0], left)))
            for left, right in zip(one, other, strict=True)
        )
    if agree and any(clocks) and not all(clocks):
        raise NoValue("it is unclear whether a ratio or a time of day is meant")
    return agree


def has_congruence(*answers: Node) -> bool:
    """Whether an answer contains a class of congruent numbers, as in x = 2 (mod 5), rather than a remainder."""
    return any(
        isinstance(part, nodes.Residue) and not part.is_remainder for node in answers for part in walk(node)
    )


def are_parts_of_a_sum(node: Node) -> bool:
    """Whether a list may be one quantity in several units, such as 5 feet and 3 inches."""
    if not isinstance(node, nodes.Listing):
        return False
    measures = [units.measure(item.unit) if isinstance(item, nodes.Quantity) else None for item in node.items]
    valid = [each for each in measures if each is not None]
    return len(valid) == len(measures) == len(set(valid)) and len({powers for _, powers in valid}) == 1


def same_residues(a: Node, b: Node, same: Same) -> bool:
    """Whether two residues, or a residue and a number, are equal.

    Raises NoValue if it cannot be decided whether the two are equal.
    """
    if isinstance(a, nodes.Residue) and isinstance(b, nodes.Residue):
        if not same(a.modulus, b.modulus):
            return False
        difference = nodes.Quotient(nodes.Sum((a.value, negative(b.value))), a.modulus)
        return same(a.value, b.value) or equal(nodes.Call("floor", (difference,)), difference)
    residue, plain = (a, b) if isinstance(a, nodes.Residue) else (b, a)
    assert isinstance(residue, nodes.Residue)
    if not residue.is_remainder:
        if variables(residue):
            raise NoValue("a class of congruent numbers against one number")
        if same(residue.value, plain) and not equal(
            nodes.Residue(residue.value, residue.modulus, True), plain
        ):
            raise NoValue("a number that is not a remainder of its modulus")
        return same(residue.value, plain)
    if equal(residue, plain):
        return True
    if same(residue.value, plain):
        raise NoValue("it is unclear whether a remainder or a number with its modulus is meant")
    return False
