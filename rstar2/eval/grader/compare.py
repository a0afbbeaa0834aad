"""Whether two answers are the same, by what they are: numbers, lists, sets, intervals, relations, units…"""

from __future__ import annotations

from collections.abc import Sequence

from rstar2.eval.grader import matrices, units
from rstar2.eval.grader.equality import equal, proportional, variables
from rstar2.eval.grader.nodes import (
    Apply,
    Based,
    Brackets,
    Call,
    Listing,
    Node,
    Number,
    NumberSet,
    Power,
    Product,
    Quantity,
    Quotient,
    Ratio,
    Relation,
    Residue,
    SetOf,
    SetOperation,
    Sum,
    Symbol,
    Text,
    negative,
    number,
    walk,
)
from rstar2.eval.grader.plusminus import flattened
from rstar2.eval.grader.region import is_region, region_of, same_region
from rstar2.eval.grader.values import NoValue

MAX_ITEMS = 200
"""Longer lists are compared in order only."""

Outcome = tuple[bool, str]
"""(equal, the rule that decided)."""
_EQUALS = frozenset({"=", "~"})
_ORDER = {">": "<", ">=": "<="}


def compare(gold: Node, pred: Node) -> Outcome:
    """Whether two answers are equal, and by which rule.

    Raises:
        NoValue: it cannot be verified.
    """
    return _compare(flattened(gold), flattened(pred))


def _same(a: Node, b: Node) -> bool:
    return _compare(a, b)[0]


def _compare(a: Node, b: Node) -> Outcome:
    if isinstance(a, Text) or isinstance(b, Text):
        return _texts(a, b), "text"
    if a == b:
        return True, "identical"
    relations = isinstance(a, Relation), isinstance(b, Relation)
    if _about_regions(a, b):
        return _regions(a, b), "interval"
    if all(relations):
        return _relations(a, b), "relation"
    if any(relations):
        return _one_relation(a, b)
    if _is_list(a) or _is_list(b):
        return _lists(a, b)
    if isinstance(a, Brackets) and isinstance(b, Brackets) and not matrices.written_table(a):
        return _brackets(a, b), "tuple"
    if matrices.has_matrix(a) or matrices.has_matrix(b) or matrices.written_table(a):
        return _matrices(a, b), "matrix"
    return _values(a, b)


# --- text ---


def _texts(a: Node, b: Node) -> bool:
    """Words equal the same words only. What was not understood is never called different."""
    if isinstance(a, Text) and isinstance(b, Text):
        if a.words == b.words:
            return True
        if a.plain and b.plain:
            return False
    elif (isinstance(a, Text) and a.plain) or (isinstance(b, Text) and b.plain):
        return False
    raise NoValue("not understood")


# --- lists and sets ---


def _is_list(node: Node) -> bool:
    return isinstance(node, Listing | SetOf)


def _lists(a: Node, b: Node) -> Outcome:
    one, other = _items(a), _items(b)
    if one is None or other is None:
        return False, "list"
    kinds = {type(a), type(b)}
    if kinds == {SetOf, Brackets}:
        return False, "set"
    if Brackets in kinds:
        return _in_order(_unnamed(one), _unnamed(other)), "list"
    names = _names(one), _names(other)
    if names[0] and names[1]:
        return _unordered(one, other), "list"
    in_order = any(names) and not _one_variable(names[0] or names[1])
    one, other = _unnamed(one), _unnamed(other)
    if in_order or any(part == Symbol("dots") for item in (*one, *other) for part in walk(item)):
        return _in_order(one, other), "list"
    return _unordered(one, other), "set" if SetOf in kinds else "list"


def _items(node: Node) -> tuple[Node, ...] | None:
    """The members of a list, set or tuple; a single value is a list of one."""
    if isinstance(node, Listing | SetOf | Brackets):
        return node.items
    return (node,)


def _names(items: Sequence[Node]) -> list[Node]:
    """The names the members are given, if all of them are given one."""
    named = [_named(item) for item in items]
    return [name for name, _ in named if name is not None] if all(name for name, _ in named) else []


def _unnamed(items: Sequence[Node]) -> tuple[Node, ...]:
    return tuple(_named(item)[1] for item in items)


def _one_variable(names: Sequence[Node]) -> bool:
    """Whether the names are one variable, as in x = 1, x = 2 or x_1 = 1, x_2 = 2."""
    return len({name.name if isinstance(name, Apply | Symbol) else str(name) for name in names}) == 1


def _in_order(one: Sequence[Node], other: Sequence[Node]) -> bool:
    if len(one) != len(other):
        return False
    return _all(one, other)


def _all(one: Sequence[Node], other: Sequence[Node]) -> bool:
    """Whether all pairs are equal; one certain difference decides even where another pair is uncertain."""
    doubt: NoValue | None = None
    for left, right in zip(one, other, strict=True):
        try:
            if not _same(left, right):
                return False
        except NoValue as error:
            doubt = error
    if doubt:
        raise doubt
    return True


def _unordered(one: Sequence[Node], other: Sequence[Node]) -> bool:
    """Whether both have the same members, however often and in whatever order they stand there."""
    if max(len(one), len(other)) > MAX_ITEMS:
        return _in_order(one, other)
    return _covered(one, other) and _covered(other, one)


def _covered(members: Sequence[Node], by: Sequence[Node]) -> bool:
    doubt: NoValue | None = None
    for member in members:
        found = False
        for candidate in by:
            try:
                found = found or _same(member, candidate)
            except NoValue as error:
                doubt = error
        if not found:
            if doubt:
                raise doubt
            return False
    return True


def _brackets(a: Brackets, b: Brackets) -> bool:
    kinds = {(side.opening, side.closing) for side in (a, b)}
    vectors = kinds <= {("(", ")"), ("<", ">")}
    pythonic = kinds == {("(", ")"), ("[", "]")} and len(a.items) > 2
    if len(kinds) > 1 and not vectors and not pythonic:
        return False
    return _in_order(a.items, b.items)


# --- regions ---


def _about_regions(a: Node, b: Node) -> bool:
    certain = is_region(a), is_region(b)
    possible = Relation | Listing | Brackets | SetOf | SetOperation | NumberSet
    return any(certain) and isinstance(a, possible) and isinstance(b, possible)


def _regions(a: Node, b: Node) -> bool:
    try:
        (name, first), (other_name, second) = region_of(a), region_of(b)
    except NoValue:
        return _unsolved_regions(a, b)
    if name is not None and other_name is not None and not _same_name(name, other_name):
        return False
    return same_region(first, second)


def _unsolved_regions(a: Node, b: Node) -> bool:
    """Sets whose ends are expressions in variables, compared as they are written."""
    a, b = (
        node.sides[1] if isinstance(node, Relation) and node.operators == ("in",) else node for node in (a, b)
    )
    if isinstance(a, Relation) and isinstance(b, Relation):
        return _relations(a, b)
    if isinstance(a, Brackets) and isinstance(b, Brackets):
        return _brackets(a, b)
    if isinstance(a, SetOperation) and isinstance(b, SetOperation) and a.kind == b.kind:
        straight = _all((a.left, a.right), (b.left, b.right))
        return straight or (a.kind != "minus" and _all((a.left, a.right), (b.right, b.left)))
    if isinstance(a, Listing) and isinstance(b, Listing):
        return _unordered(a.items, b.items)
    if a == b:
        return True
    raise NoValue("a set that is not solved")


# --- relations ---


def _named(node: Node) -> tuple[Node | None, Node]:
    """The name and the value of an assignment such as x = 5 or 5 = x; (None, node) for anything else."""
    if not isinstance(node, Relation):
        return None, node
    if node.operators == ("in",):
        return node.sides[0], node.sides[1]
    if not set(node.operators) <= _EQUALS:
        return None, node
    first, last = node.sides[0], node.sides[-1]
    if _is_name(first):
        return first, last
    if _is_name(last):
        return last, first
    if not variables(last) and not _open(first):
        return first, last
    return None, node


def _is_name(node: Node) -> bool:
    """Whether a side only names what the other side gives: x, a_3, f(x), (p, q, r), AB, NO/BO."""
    if isinstance(node, Brackets):
        return bool(node.items) and all(isinstance(item, Symbol | Apply) for item in node.items)
    return isinstance(node, Symbol | Apply) and node not in (
        Symbol("pi"),
        Symbol("e"),
        Symbol("i"),
        Symbol("infinity"),
    )


def _open(node: Node) -> bool:
    """Whether an expression has variables to solve for, rather than names of points, lengths or probabilities."""
    names = {part.name for part in walk(node) if isinstance(part, Symbol) and not _indexes(node, part)}
    return any(
        name in variables(node) and not name[0].isupper() and name not in {"angle", "triangle"}
        for name in names
    )


def _indexes(node: Node, symbol: Node) -> bool:
    """Whether a symbol stands only inside indexed names and unknown functions."""
    inside = [part for part in walk(node) if isinstance(part, Apply)]
    return any(symbol in part.args for part in inside)


def _same_name(a: Node, b: Node) -> bool:
    functions = [name == Symbol("y") or (isinstance(name, Apply) and len(name.name) == 1) for name in (a, b)]
    return a == b or all(functions)


def _one_relation(a: Node, b: Node) -> Outcome:
    """A relation against something that is none: the name is dropped."""
    (name, left), (other, right) = _named(a), _named(b)
    if name is None and other is None and isinstance(b, Relation) and _states_a_value(b):
        return _compare(a, b.sides[-1])
    if name is None and other is None:
        approximate = [node for node in (a, b) if isinstance(node, Relation) and set(node.operators) == {"~"}]
        if not approximate:
            return False, "relation"
        plain = b if isinstance(a, Relation) else a
        return any(_same(side, plain) for side in approximate[0].sides), "relation"
    relation, plain = (a, right) if name is not None else (b, left)
    assert isinstance(relation, Relation)
    if "~" in relation.operators and any(_same(side, plain) for side in relation.sides[1:]):
        return True, "relation"
    if isinstance(name or other, Brackets) and isinstance(plain, Listing):
        return _lists(_expanded(name, left) or left, _expanded(other, right) or right)
    outcome = _compare(left, right)
    return outcome if outcome[0] else (False, outcome[1])


def _states_a_value(node: Relation) -> bool:
    """Whether an equation says what an expression amounts to, as xy = 125 does and x^2 - 1 = 0 does not."""
    value = node.sides[-1]
    return set(node.operators) <= _EQUALS and not variables(value) and value != number(0)


def _expanded(name: Node | None, value: Node) -> Node | None:
    """(a, b) = (1, 2) as a = 1, b = 2."""
    if isinstance(name, Brackets) and isinstance(value, Brackets) and len(name.items) == len(value.items):
        return Listing(
            tuple(Relation((part, one), ("=",)) for part, one in zip(name.items, value.items, strict=True))
        )
    return None


def _relations(a: Node, b: Node) -> bool:
    assert isinstance(a, Relation)
    assert isinstance(b, Relation)
    (name, left), (other, right) = _named(a), _named(b)
    if (
        name is not None
        and other is not None
        and (_same_name(name, other) or not (_is_name(name) or _is_name(other)))
    ):
        if _same(left, right):
            return True
        if len(a.sides) > 2 or len(b.sides) > 2:
            return False
    a, b = _ascending(a), _ascending(b)
    if a.operators != b.operators and set(a.operators) | set(b.operators) != _EQUALS:
        return False
    if len(a.sides) != len(b.sides):
        return False
    if _written_alike(a, b):
        return True
    return len(a.sides) == 2 and _equivalent(a, b)


def _written_alike(a: Relation, b: Relation) -> bool:
    try:
        if _all(a.sides, b.sides):
            return True
        return set(a.operators) <= {"=", "~", "!="} and len(a.sides) == 2 and _all(a.sides, b.sides[::-1])
    except NoValue:
        if len(a.sides) == 2:
            return False
        raise


def _ascending(node: Relation) -> Relation:
    """The relation with its larger side on the right."""
    if set(node.operators) <= _ORDER.keys():
        return Relation(node.sides[::-1], tuple(_ORDER[operator] for operator in node.operators[::-1]))
    return node


def _equivalent(a: Relation, b: Relation) -> bool:
    """Whether two equations or inequalities say the same: one is a multiple of the other."""
    if a.operators[0] not in {"=", "!=", "<", "<="} or not (variables(a) & variables(b)):
        return False
    differences = [Sum((node.sides[0], negative(node.sides[1]))) for node in (a, b)]
    sign = proportional(differences[0], differences[1])
    return sign is not None and (sign > 0 or a.operators[0] in {"=", "!="})


# --- matrices ---


def _matrices(a: Node, b: Node) -> bool:
    one, other = (matrices.table_of(node) or matrices.written_table(node) for node in (a, b))
    if one is not None and other is not None:
        return [len(row) for row in one] == [len(row) for row in other] and _all(sum(one, ()), sum(other, ()))
    table, plain = (one, b) if one is not None else (other, a)
    if table is None:
        raise NoValue("not a matrix")
    entries = matrices.vector(table)
    if entries is not None and isinstance(plain, Brackets):
        return _in_order(entries, plain.items)
    return len(entries or ()) == 1 and _same(entries[0], plain) if entries else False


# --- single values ---


def _values(a: Node, b: Node) -> Outcome:
    kinds = {type(a), type(b)}
    if Quantity in kinds:
        return _quantities(a, b), "unit"
    if Ratio in kinds:
        return _ratios(a, b), "ratio"
    if Residue in kinds:
        return _residues(a, b), "residue"
    if Based in kinds and not kinds <= {Based, Number}:
        return False, "base"
    if Brackets in kinds or NumberSet in kinds:
        return False, "tuple" if Brackets in kinds else "set"
    if isinstance(a, Based) and isinstance(b, Based):
        return a.value == b.value, "base"
    signs = [{part.name for part in walk(side) if isinstance(part, Call)} for side in (a, b)]
    rule = (
        "percent"
        if "percent" in signs[0] | signs[1]
        else "expression"
        if variables(a) | variables(b)
        else "number"
    )
    return equal(a, b), rule


def _with_letter_unit(node: Node) -> Node:
    """5m as five metres and 5m/s as a speed, where the other side has a unit."""
    match node:
        case Quotient(over=over, under=Symbol(name=name)) if units.measure(name):
            speed = _with_letter_unit(over)
            return Quantity(speed.value, f"{speed.unit} / {name}") if isinstance(speed, Quantity) else node
        case Product(factors=(*numbers, last)):
            base, power = (last.base, last.exponent) if isinstance(last, Power) else (last, number(1))
            value = Product(tuple(numbers))
            if isinstance(base, Symbol) and units.measure(base.name) and not variables(value):
                return Quantity(value, f"{base.name}^{power.value}") if isinstance(power, Number) else node
    return node


def _quantities(a: Node, b: Node) -> bool:
    a, b = _with_letter_unit(a), _with_letter_unit(b)
    values = [node.value if isinstance(node, Quantity) else node for node in (a, b)]
    written = [node.unit for node in (a, b) if isinstance(node, Quantity) and not units.no_unit(node.unit)]
    if len(written) < 2 or units.same_words(*written):
        return _same(values[0], values[1])
    measures = [units.measure(unit) for unit in written]
    if measures[0] is None or measures[1] is None:
        if not _same(values[0], values[1]):
            return False
        raise NoValue("units that are not known")
    if measures[0][1] != measures[1][1]:
        return False
    scaled = [
        Product((value, Number(measure[0])))
        for value, measure in zip(values, measures, strict=True)
        if measure
    ]
    return _same(scaled[0], scaled[1])


def _ratios(a: Node, b: Node) -> bool:
    one, other = (node.parts if isinstance(node, Ratio) else None for node in (a, b))
    clock = any(isinstance(node, Ratio) and node.clock for node in (a, b))
    if one is not None and other is not None:
        if len(one) != len(other):
            return False
        return _all(one, other) or (
            not clock
            and all(
                equal(Product((one[0], right)), Product((other[0], left)))
                for left, right in zip(one, other, strict=True)
            )
        )
    parts, plain = (one, b) if one is not None else (other, a)
    return bool(parts and len(parts) == 2 and not clock and equal(Quotient(parts[0], parts[1]), plain))


def _residues(a: Node, b: Node) -> bool:
    if isinstance(a, Residue) and isinstance(b, Residue):
        if not _same(a.modulus, b.modulus):
            return False
        difference = Quotient(Sum((a.value, negative(b.value))), a.modulus)
        return _same(a.value, b.value) or equal(Call("floor", (difference,)), difference)
    value, other = (a.value, b) if isinstance(a, Residue) else (a, b.value if isinstance(b, Residue) else b)
    return _same(value, other)
