"""Whether two answers are the same, by what they are: numbers, lists, sets, intervals, relations, units…"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from rstar2.eval.grader.compare import assignments, matrices, relations, witnesses
from rstar2.eval.grader.compare.bound_letters import (
    depends_on_whole_numbers,
    has_condition,
    may_be_other_parameters,
    same_families,
    same_numbers,
    with_letter_of,
)
from rstar2.eval.grader.compare.intervals import (
    FLIPPED,
    as_interval,
    is_backwards,
    is_region,
    region_of,
    same_region,
)
from rstar2.eval.grader.compare.listings import flattened, has_open_signs, in_order, unordered
from rstar2.eval.grader.compare.notations import may_be_meant
from rstar2.eval.grader.compare.one_answer import as_share, one_answer
from rstar2.eval.grader.compare.quantities import (
    are_parts_of_a_sum,
    has_congruence,
    same_quantities,
    same_ratios,
    same_residues,
)
from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, walk
from rstar2.eval.grader.parse.units import same_words
from rstar2.eval.grader.values.equality import equal
from rstar2.eval.grader.values.guarded_numbers import NoValue
from rstar2.eval.grader.values.letters import functions, variables

Items = tuple[Node, ...]
Outcome = tuple[bool, str]
"""(equal, the rule that decided)."""


def compare(gold: Node, pred: Node) -> Outcome:
    """Whether a prediction equals the gold answer, and by which rule; NoValue where it cannot be verified."""
    outcome, doubt = (False, ""), None
    for answer in one_answer(pred, _same):
        share = answer if "percent" in functions(gold) else as_share(answer)
        try:
            outcome = _compare_whole(gold, share)
            if not outcome[0] and share != answer and _is_whole(gold) and _same(gold, answer):
                raise NoValue("a percentage, or the number before its sign")
        except NoValue as error:
            doubt = error
        if outcome[0]:
            return outcome
    if doubt:
        raise doubt
    return outcome


def _is_whole(node: Node) -> bool:
    """Whether an answer is written as a whole number."""
    return isinstance(node, nodes.Number) and node.value.denominator == 1


def _compare_whole(gold: Node, pred: Node) -> Outcome:
    golds, preds = _with_signs(gold), _with_signs(pred)
    gold, pred = golds[0], preds[0]
    named_alike = with_letter_of(gold, pred)
    outcome = _compare(gold, named_alike)
    both_have_letters = bool(variables(gold) and variables(pred))
    if (outcome[0] or both_have_letters) and not same_numbers(gold, named_alike):
        raise NoValue("the numbers that a letter may be")
    if outcome[0]:
        return outcome
    if has_condition(gold) or has_condition(pred):
        raise NoValue("a condition")
    if may_be_other_parameters(gold, named_alike):
        raise NoValue("letters that may be chosen otherwise")
    if are_parts_of_a_sum(gold) or are_parts_of_a_sum(pred):
        raise NoValue("a quantity in several units")
    if has_congruence(gold) and has_congruence(pred) and nodes.Listing in {type(gold), type(pred)}:
        raise NoValue("congruences in another form")
    if _about_regions(gold, pred) and (depends_on_whole_numbers(gold) or depends_on_whole_numbers(pred)):
        raise NoValue("bounds on whole numbers")
    same_members = same_families(gold, named_alike)
    if same_members is not None:
        return same_members, "family"
    other = with_letter_of(gold, pred, certain=False)
    if other is not pred and _same(gold, other):
        raise NoValue("a letter that may stand for every whole number")
    if any(_same(*pair) for pair in product(golds, preds) if pair != (gold, pred)):
        raise NoValue("several ± that may belong together")
    if may_be_meant(gold, pred, _same):
        raise NoValue("another notation")
    return outcome


def _with_signs(node: Node) -> list[Node]:
    """The answer with its ± written out; twice where there are two ways to do it, the usual one first."""
    ways = (False, True) if has_open_signs(node) else (False,)
    return [flattened(node, other_signs=way) for way in ways]


def _same(a: Node, b: Node) -> bool:
    return _compare(a, b)[0]


def _compare(a: Node, b: Node) -> Outcome:
    if isinstance(a, nodes.Text) or isinstance(b, nodes.Text):
        return _texts(a, b), "text"
    if a == b:
        return True, "identical"
    if isinstance(a, nodes.Relation) and isinstance(b, nodes.Relation) and has_congruence(a, b):
        return relations.same_congruences(a, b, _same), "residue"
    if _about_regions(a, b):
        if has_congruence(a, b):
            raise NoValue("a congruence in an inequality")
        return _regions(a, b), "interval"
    if isinstance(a, nodes.Relation) and isinstance(b, nodes.Relation):
        return relations.same_equations(a, b, _same), "relation"
    if isinstance(a, nodes.Relation) or isinstance(b, nodes.Relation):
        return _one_relation(a, b)
    if isinstance(a, nodes.Listing | nodes.SetOf) or isinstance(b, nodes.Listing | nodes.SetOf):
        return _lists(a, b)
    if isinstance(a, nodes.Brackets) and isinstance(b, nodes.Brackets) and not matrices.written_table(a):
        return _brackets(a, b), "tuple"
    if matrices.has_matrix(a) or matrices.has_matrix(b) or matrices.written_table(a):
        return _matrices(a, b), "matrix"
    return _values(a, b)


def _texts(a: Node, b: Node) -> bool:
    """Words equal the same words only. What was not understood is never called different."""
    if isinstance(a, nodes.Text) and isinstance(b, nodes.Text):
        if a.words == b.words:
            return True
        # Without their commas, red, blue and blue, red may be lists.
        if a.plain and b.plain and sorted(a.words) != sorted(b.words):
            return False
    raise NoValue("not understood")


def _lists(a: Node, b: Node) -> Outcome:
    one, other = _items(a), _items(b)
    kinds = {type(a), type(b)}
    if kinds == {nodes.SetOf, nodes.Brackets}:
        points, point = (a, b) if isinstance(a, nodes.SetOf) else (b, a)
        return len(_items(points)) == 1 and _same(_items(points)[0], point), "set"
    if any(part == nodes.Symbol("dots") for item in (*one, *other) for part in walk(item)):
        if len(one) != len(other):
            raise NoValue("members that are left out")
        return in_order(one, other, _same), "list"
    names = _titles(one), _titles(other)
    if not all(names) and not assignments.in_usual_order(names[0] or names[1]):
        raise NoValue("which value is which")
    if nodes.Brackets in kinds:
        roots = any(len(given) > 1 and len(set(given)) == 1 for given in names)
        return not roots and in_order(assignments.unnamed(one), assignments.unnamed(other), _same), "list"
    if names[0] and names[1]:
        return _both_named(one, other, names), "list"
    ordered = any(names) and not assignments.one_variable(names[0] or names[1])
    worded = any(
        isinstance(name, nodes.Quantity) or len(getattr(name, "name", "")) > 3
        for name in names[0] or names[1]
    )
    one, other = assignments.unnamed(one), assignments.unnamed(other)
    if ordered and worded:
        if nodes.SetOf not in kinds and not in_order(one, other, _same) and unordered(one, other, _same):
            raise NoValue("which value is which")
        return unordered(one, other, _same), "list"
    if ordered and nodes.SetOf in kinds:
        return False, "set"
    if ordered:
        return in_order(one, other, _same), "list"
    return unordered(one, other, _same), "set" if nodes.SetOf in kinds else "list"


def _both_named(one: Items, other: Items, names: tuple[list[Node], list[Node]]) -> bool:
    """Lists whose members have names or are counted; NoValue where the names do not say which belongs to which."""
    words = [[_words_of(name) for name in side] for side in names]
    counted = [isinstance(side[0], nodes.Quantity) for side in names]
    if counted[0] == counted[1]:
        return unordered(one, other, _same)
    values, others = assignments.unnamed(one), assignments.unnamed(other)
    if any(same_words(left, right) for left in words[0] for right in words[1]):
        pairs = [
            next((v for v, word in zip(others, words[1], strict=True) if same_words(word, title)), None)
            for title in words[0]
        ]
        matched = [pair for pair in pairs if pair is not None]
        return len(matched) == len(values) == len(others) and in_order(values, matched, _same)
    if not in_order(values, others, _same) and unordered(values, others, _same):
        raise NoValue("which value is which")
    return in_order(values, others, _same)


def _words_of(name: Node) -> str:
    return name.unit if isinstance(name, nodes.Quantity) else str(getattr(name, "name", ""))


def _titles(items: tuple[Node, ...]) -> list[Node]:
    """What the members are named or counted in, if all are named, or all are counted in different things."""
    counted = [item for item in items if isinstance(item, nodes.Quantity)]
    if len(counted) == len(items) > 1 and len({item.unit for item in counted}) == len(items):
        return list(counted)
    return assignments.names_of(items)


def _items(node: Node) -> tuple[Node, ...]:
    """The members of a list, set or tuple; a single value is a list of one."""
    if isinstance(node, nodes.Listing | nodes.SetOf | nodes.Brackets):
        return node.items
    return (node,)


def _brackets(a: nodes.Brackets, b: nodes.Brackets) -> bool:
    kinds = {(side.opening, side.closing) for side in (a, b)}
    vectors = kinds <= {("(", ")"), ("<", ">")}
    pythonic = kinds == {("(", ")"), ("[", "]")} and len(a.items) > 2
    if len(kinds) > 1 and not vectors and not pythonic:
        return False
    return in_order(a.items, b.items, _same)


def _about_regions(a: Node, b: Node) -> bool:
    certain = is_region(a), is_region(b)
    possible = (
        nodes.Relation | nodes.Listing | nodes.Brackets | nodes.SetOf | nodes.SetOperation | nodes.NumberSet
    )
    return any(certain) and isinstance(a, possible) and isinstance(b, possible)


def _regions(a: Node, b: Node) -> bool:
    for pair, other in ((a, b), (b, a)):
        if is_backwards(pair):
            # Empty sets are all equal, but the point (5, 2) is none of them.
            if is_backwards(other) or not region_of(other)[1]:
                raise NoValue("a pair that is no interval")
            return False
    try:
        (name, first), (other_name, second) = region_of(a), region_of(b)
    except NoValue:
        return _unsolved_regions(a, b)
    if any(isinstance(node, nodes.Listing) and not node.alternatives for node in (a, b)) and not (
        first and second
    ):
        raise NoValue("bounds that may exclude each other")
    if name is not None and other_name is not None and not assignments.same_name(name, other_name):
        return False
    return same_region(first, second)


def _unsolved_regions(a: Node, b: Node) -> bool:
    """Sets whose ends are expressions in variables, compared as they are written."""
    a, b = (
        node.sides[1] if isinstance(node, nodes.Relation) and node.operators == ("in",) else node
        for node in (a, b)
    )
    if isinstance(a, nodes.Relation) and isinstance(b, nodes.Relation):
        if relations.same_relations(a, b, _same):
            return True
        if witnesses.differ(a, b):
            return False
        raise NoValue("inequalities in another form")
    one, other = as_interval(a), as_interval(b)
    if one and other:
        return _brackets(one, other) or any(_brackets(*pair) for pair in _turned(a, b, one, other))
    if isinstance(a, nodes.SetOperation) and isinstance(b, nodes.SetOperation) and a.kind == b.kind:
        straight = in_order((a.left, a.right), (b.left, b.right), _same)
        return straight or (a.kind != "minus" and in_order((a.left, a.right), (b.right, b.left), _same))
    if isinstance(a, nodes.Listing) and isinstance(b, nodes.Listing):
        if (a.together and b.alternatives) or (a.alternatives and b.together):
            raise NoValue("bounds that hold together, or one of them")
        return unordered(a.items, b.items, _same)
    if isinstance(a, nodes.NumberSet) and isinstance(b, nodes.NumberSet):
        return a == b
    raise NoValue("a set that is not solved")


def _turned(
    a: Node, b: Node, one: nodes.Brackets, other: nodes.Brackets
) -> Iterator[tuple[nodes.Brackets, nodes.Brackets]]:
    """The same pair with a < x read as a bound on the other of its two names."""
    for node, against in ((a, other), (b, one)):
        if isinstance(node, nodes.Relation) and len(node.sides) == 2:
            turned = as_interval(nodes.Relation(node.sides[::-1], (FLIPPED[node.operators[0]],)))
            if turned is not None:
                yield turned, against


def _one_relation(a: Node, b: Node) -> Outcome:
    """A relation against something that is none: the name is dropped.

    Only a gold answer still has a chain with ≈, and any of its values may be given.
    """
    (name, left), (other, right) = assignments.named(a), assignments.named(b)
    if name is None and other is None and isinstance(b, nodes.Relation) and assignments.states_a_value(b):
        return _compare(a, b.sides[-1])
    if name is None and other is None:
        approximate = [
            node for node in (a, b) if isinstance(node, nodes.Relation) and set(node.operators) == {"~"}
        ]
        if not approximate:
            return _unsolved(a, b), "relation"
        plain = b if isinstance(a, nodes.Relation) else a
        return any(_same(side, plain) for side in approximate[0].sides), "relation"
    relation, plain, value = (a, right, left) if name is not None else (b, left, right)
    solutions = assignments.names_of(_items(plain)) if isinstance(plain, nodes.Listing) else []
    if solutions and variables(value) and not isinstance(name or other, nodes.Brackets):
        return _unsolved(a, b), "relation"
    assert isinstance(relation, nodes.Relation)
    if "~" in relation.operators and any(_same(side, plain) for side in relation.sides):
        return True, "relation"
    names = getattr(name or other, "items", ())
    if not assignments.in_usual_order(names):
        raise NoValue("which value is which")
    if names and isinstance(plain, nodes.Listing):
        return _lists(assignments.expanded(name, left) or left, assignments.expanded(other, right) or right)
    return _compare(left, right)


def _unsolved(a: Node, b: Node) -> bool:
    """False where values do not solve an equation; NoValue where they do, or where it may state one of them."""
    relation, plain = (a, b) if isinstance(a, nodes.Relation) else (b, a)
    assert isinstance(relation, nodes.Relation)
    if not set(relation.operators) <= assignments.EQUALS:
        return False
    letter = assignments.only_letter(relation)
    may_be_named = letter is None or not assignments.is_linear(relation)
    for item in _items(plain):
        name, value = assignments.named(item)
        letter = letter if name is None else name
        if name is None and may_be_named and _same(relation.sides[-1], value):
            break  # what x^2 is may be asked for in x^2 = 5
        if isinstance(value, nodes.Relation):
            break
        if letter not in set(walk(relation)) or not relations.holds_for(relation, letter, value):
            return False
    raise NoValue("an equation that is not solved")


def _matrices(a: Node, b: Node) -> bool:
    one, other = (matrices.table_of(node) or matrices.written_table(node) for node in (a, b))
    if one is not None and other is not None:
        return [len(row) for row in one] == [len(row) for row in other] and in_order(
            sum(one, ()), sum(other, ()), _same
        )
    table, plain = (one, b) if one is not None else (other, a)
    if table is None:
        raise NoValue("not a matrix")
    entries = matrices.vector(table)
    if entries is None:
        return False
    match plain:
        case nodes.Brackets(items=items) if plain.opening + plain.closing in {"()", "[]", "<>"}:
            return in_order(entries, items, _same)
    return len(entries) == 1 and _same(entries[0], plain)


def _without_base(a: Node, b: Node) -> bool:
    """A numeral against a number whose base is not stated: in question if the digits agree, different otherwise.

    Letters may be its digits: 1a_{16} is read as a product.
    """
    numeral, plain = (a, b) if isinstance(a, nodes.Based) else (b, a)
    assert isinstance(numeral, nodes.Based)
    if isinstance(plain, nodes.Number) and str(plain.value) == numeral.digits:
        raise NoValue("the base is not stated")
    if any(map(nodes.is_unknown, walk(plain))):
        raise NoValue("a numeral that may have letters")
    return False


def _values(a: Node, b: Node) -> Outcome:
    kinds = {type(a), type(b)}
    if nodes.Quantity in kinds:
        return same_quantities(a, b, _same), "unit"
    if nodes.Ratio in kinds:
        return same_ratios(a, b, _same), "ratio"
    if nodes.Based in kinds and kinds != {nodes.Based}:
        return _without_base(a, b), "base"
    if nodes.Residue in kinds:
        return same_residues(a, b, _same), "residue"
    if nodes.Brackets in kinds or nodes.NumberSet in kinds:
        return False, "tuple" if nodes.Brackets in kinds else "set"
    if isinstance(a, nodes.Based) and isinstance(b, nodes.Based):
        return a.value == b.value, "base"
    signs = tuple(functions(node) & {"percent", "degree"} for node in (a, b))
    if all(signs) and signs[0].isdisjoint(signs[1]):
        raise NoValue("a percentage against an angle")
    if "percent" in signs[0] | signs[1]:
        return equal(a, b), "percent"
    return equal(a, b), "expression" if variables(a) | variables(b) else "number"
