"""Compares two answers by their kinds: numbers, lists, sets, intervals, relations, quantities and more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rstar2.eval.grader.certificate import Fact
from rstar2.eval.grader.compare import assignments, matrices, relations
from rstar2.eval.grader.compare.intervals import (
    FLIPPED,
    as_interval,
    is_backwards,
    is_region,
    may_be_point,
    region_of,
    same_region,
)
from rstar2.eval.grader.compare.letters import (
    family_letter,
    has_condition,
    other_arguments,
    other_letter,
    same_numbers,
    shift,
    states_kinds,
    with_letters,
)
from rstar2.eval.grader.compare.listings import flattened, has_open_signs, in_order, unordered
from rstar2.eval.grader.compare.one_answer import as_share, one_answer
from rstar2.eval.grader.compare.quantities import (
    are_parts_of_a_sum,
    has_congruence,
    same_quantities,
    same_ratios,
    same_residues,
)
from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, renamed, walk
from rstar2.eval.grader.parse.units import same_words
from rstar2.eval.grader.values.equality import Identity, identity
from rstar2.eval.grader.values.guarded_numbers import NoValue
from rstar2.eval.grader.values.letters import functions, variables

Items = tuple[Node, ...]
_SETS = (
    nodes.Relation | nodes.Listing | nodes.Brackets | nodes.SetOf | nodes.SetOperation | nodes.NumberSet
)  # fmt: skip
"""Nodes that may describe a set of numbers."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of comparing two answers."""

    equal: bool
    rule: str
    """The name of the rule that decided whether the answers are equal."""
    fact: Fact | None = None
    """Why the two answers are equal; None if the answers differ."""


def compare(gold: Node, pred: Node) -> Outcome:
    """Compares a prediction with the gold answer.

    Raises NoValue if it cannot be decided whether prediction and gold answer are equal.
    """
    outcome, doubt = Outcome(False, ""), None
    for candidate in one_answer(pred, lambda a, b: _Comparison().same(a, b)):
        answer = candidate if "percent" in functions(gold) else as_share(candidate)
        try:
            outcome = _whole_answers(gold, answer)
            if (
                not outcome.equal
                and answer is not candidate
                and _is_integer(gold)
                and _Comparison().same(gold, candidate)
            ):
                raise NoValue("it is unclear whether a percentage or the number before its sign is meant")
        except NoValue as error:
            doubt = error
        if outcome.equal:
            return outcome
    if doubt:
        raise doubt
    return outcome


def _is_integer(node: Node) -> bool:
    return isinstance(node, nodes.Number) and node.value.denominator == 1


def _whole_answers(gold: Node, pred: Node) -> Outcome:
    gold_open, pred_open = has_open_signs(gold), has_open_signs(pred)
    gold, pred = flattened(gold), flattened(pred)
    names = other_letter(gold, pred)
    renamed_pred = renamed(pred, names)
    outcome = _Comparison(family_letter(gold, renamed_pred)).compared(gold, renamed_pred)
    if not outcome.equal:
        _refuse_undecided(gold, pred, gold_open or pred_open)
    if (outcome.equal or (variables(gold) and variables(pred))) and not same_numbers(gold, renamed_pred):
        raise NoValue("answers that state different kinds of numbers for a letter")
    if outcome.fact is not None and names:
        letters = tuple((old, nodes.Symbol(new)) for old, new in names.items())
        return Outcome(True, outcome.rule, Fact("letters", gold, pred, (outcome.fact,), letters=letters))
    return outcome


def _refuse_undecided(gold: Node, pred: Node, open_signs: bool) -> None:
    """Raises NoValue if two answers that differ in form may still mean the same."""
    if has_condition(gold) or has_condition(pred):
        raise NoValue("a condition that cannot be compared")
    if states_kinds(gold) or states_kinds(pred):
        raise NoValue("letters that stand for many numbers")
    if are_parts_of_a_sum(gold) or are_parts_of_a_sum(pred):
        raise NoValue("a list that may be one quantity in several units")
    if open_signs:
        raise NoValue("several ± in a tuple, whose signs may depend on each other")


class _Comparison:
    """Compares answers by their kinds, and records the facts about equal parts."""

    def __init__(self, family: str | None = None) -> None:
        self._family = family
        """The letter that stands for every integer in both answers, so that k + 1 may replace k; None if there is no
        such letter."""
        self._facts: list[Fact] = []
        """The facts established so far by the comparison in progress."""

    def same(self, a: Node, b: Node) -> bool:
        """Whether two answers, or parts of answers, are equal.

        Raises NoValue if it cannot be decided whether the two are equal.
        """
        return self.compared(a, b).equal

    def compared(self, a: Node, b: Node) -> Outcome:
        """Compares two answers, or parts of answers.

        Raises NoValue if it cannot be decided whether the two are equal.
        """
        kind = _kind(a, b)
        letters = other_arguments(a, b) if kind == "relation" else {}
        if letters:
            return self._with_letters(a, b, letters)
        facts, self._facts = self._facts, []
        try:
            decision = self._decide(kind, a, b)
            outcome = decision if isinstance(decision, Outcome) else Outcome(bool(decision), kind)
            evidence = decision if isinstance(decision, Identity) else None
            fact = Fact(kind, a, b, tuple(self._facts), evidence) if outcome.equal else None
            if fact is not None and kind == "name":
                name = assignments.dropped_name(a if isinstance(a, nodes.Relation) else b)
                fact = replace(fact, name=name)
        finally:
            self._facts = facts
        if fact is not None:
            self._facts.append(fact)
            return Outcome(True, outcome.rule, fact)
        letters = shift(a, b, self._family) if kind == "expression" and self._family else {}
        return self._with_letters(a, b, letters) if letters else outcome

    def _with_letters(self, a: Node, b: Node, letters: dict[str, Node]) -> Outcome:
        """Compares two answers after some letters of the second answer were replaced. An author can choose the names of
        the replaced letters freely."""
        facts, self._facts = self._facts, []
        try:
            outcome = self.compared(a, with_letters(b, letters))
        finally:
            self._facts = facts
        if outcome.fact is None:
            return outcome
        fact = Fact("letters", a, b, (outcome.fact,), letters=tuple(letters.items()))
        self._facts.append(fact)
        return Outcome(True, outcome.rule, fact)

    def _decide(self, kind: str, a: Node, b: Node) -> bool | Outcome | Identity | None:
        match kind:
            case "identical":
                return True
            case "text":
                return _same_texts(a, b)
            case "interval":
                return self._same_sets(a, b)
            case "name":
                return self._value_against_relation(a, b)
            case "list" | "set":
                return self._same_lists(a, b)
            case "matrix":
                return self._same_matrices(a, b)
            case "unit":
                return same_quantities(a, b, self.same)
            case "ratio":
                return same_ratios(a, b, self.same)
            case "base":
                return _same_numerals(a, b)
        match a, b:
            case (nodes.Relation(), nodes.Relation()) if kind == "residue":
                return relations.same_congruences(a, b, self.same)
            case nodes.Relation(), nodes.Relation():
                return relations.same_equations(a, b, self.same)
            case nodes.Brackets(), nodes.Brackets():
                return self._same_tuples(a, b)
        if kind == "residue":
            return same_residues(a, b, self.same)
        return None if kind in {"tuple", "number set"} else _same_values(a, b)

    # --- lists, sets and tuples ---

    def _same_lists(self, a: Node, b: Node) -> bool:
        kinds = {type(a), type(b)}
        if kinds == {nodes.SetOf, nodes.Brackets}:
            members, point = (_items(a), b) if isinstance(a, nodes.SetOf) else (_items(b), a)
            if not assignments.names_of(members):  # {x = 1, y = 2} is the point (1, 2)
                return len(members) == 1 and self.same(members[0], point)
        one, other = _items(a), _items(b)
        if any(part == nodes.Symbol("dots") for item in (*one, *other) for part in walk(item)):
            if len(one) != len(other):
                raise NoValue("lists of different lengths with dots in them")
            return in_order(one, other, self.same)
        titles, other_titles = _titles(one), _titles(other)
        if titles and other_titles and nodes.Brackets not in kinds:
            return self._same_titled_lists(one, titles, other, other_titles)
        names = titles or other_titles
        if not (titles and other_titles) and not assignments.in_usual_order(names):
            raise NoValue("it is unclear which value is which")
        if nodes.Brackets in kinds:
            return not assignments.is_one_variable(names) and in_order(one, other, self.same)
        if not names or assignments.is_one_variable(names):
            return unordered(one, other, self.same)
        worded = any(isinstance(name, nodes.Quantity) or len(getattr(name, "name", "")) > 3 for name in names)
        if nodes.SetOf in kinds:
            return worded and unordered(one, other, self.same)
        return self._same_in_order_only(one, other)

    def _same_in_order_only(self, one: Items, other: Items) -> bool:
        """Whether two lists have equal members in the same order. Raises NoValue if the members are equal only in
        another order."""
        if in_order(one, other, self.same):
            return True
        if unordered(one, other, self.same):
            raise NoValue("it is unclear which value is which")
        return False

    def _same_titled_lists(self, one: Items, titles: Items, other: Items, other_titles: Items) -> bool:
        """Whether two lists with titles have the same members with the same titles.

        A title is a member's name, or a member's unit. Raises NoValue if the titles do not show which members
        correspond.
        """
        if isinstance(one[0], nodes.Quantity) == isinstance(other[0], nodes.Quantity):
            return unordered(one, other, self.same)
        words, other_words = ([_words_of(title) for title in side] for side in (titles, other_titles))
        if not any(same_words(left, right) for left in words for right in other_words):
            return self._same_in_order_only(one, other)
        pairs = [
            (item, other_item)
            for item, word in zip(one, words, strict=True)
            for other_item, other_word in zip(other, other_words, strict=True)
            if same_words(other_word, word)
        ]
        if not len(pairs) == len(one) == len(other):
            return False
        return in_order([pair[0] for pair in pairs], [pair[1] for pair in pairs], self.same)

    def _same_tuples(self, a: nodes.Brackets, b: nodes.Brackets) -> bool:
        kinds = {(side.opening, side.closing) for side in (a, b)}
        vectors = kinds <= {("(", ")"), ("<", ">")}
        pythonic = kinds == {("(", ")"), ("[", "]")} and len(a.items) > 2
        if len(kinds) > 1 and not vectors and not pythonic:
            return False
        return in_order(a.items, b.items, self.same)

    def _same_matrices(self, a: Node, b: Node) -> bool:
        one, other = (matrices.table_of(node) or matrices.table_in_brackets(node) for node in (a, b))
        if one is not None and other is not None:
            return [len(row) for row in one] == [len(row) for row in other] and in_order(
                sum(one, ()), sum(other, ()), self.same
            )
        table, other_node = (one, b) if one is not None else (other, a)
        if table is None:
            raise NoValue("an expression that is not a matrix")
        entries = matrices.vector(table)
        if entries is None:
            return False
        match other_node:
            case nodes.Brackets(items=items) if other_node.opening + other_node.closing in {"()", "[]", "<>"}:
                return in_order(entries, items, self.same)
        return len(entries) == 1 and self.same(entries[0], other_node)

    # --- sets of numbers ---

    def _same_sets(self, a: Node, b: Node) -> bool:
        if has_congruence(a, b):
            raise NoValue("a congruence in an inequality")
        for pair, other in ((a, b), (b, a)):
            if is_backwards(pair):
                # All empty sets are equal, but (5, 2) is a point and not an empty set.
                if is_backwards(other) or not region_of(other)[1]:
                    raise NoValue("a pair that is not an interval")
                return False
        try:
            (name, region), (other_name, other_region) = region_of(a), region_of(b)
        except NoValue:
            return self._same_sets_with_letters(a, b)
        is_list = any(isinstance(node, nodes.Listing) and not node.alternatives for node in (a, b))
        if is_list and not (region and other_region):
            raise NoValue("bounds that may exclude each other")
        if name is not None and other_name is not None and not assignments.same_name(name, other_name):
            return False
        if not same_region(region, other_region):
            return False
        is_written_as_interval = isinstance(b, nodes.Brackets) or (
            isinstance(b, nodes.Relation) and b.operators == ("in",)
        )
        if may_be_point(a) and not is_written_as_interval:
            raise NoValue("it is unclear whether a point or an interval is meant")
        return True

    def _same_sets_with_letters(self, a: Node, b: Node) -> bool:
        """Whether two sets whose ends contain variables have the same form. Raises NoValue if a set is not solved for a
        variable."""
        a, b = (
            node.sides[1] if isinstance(node, nodes.Relation) and node.operators == ("in",) else node
            for node in (a, b)
        )
        if isinstance(a, nodes.Relation) and isinstance(b, nodes.Relation):
            if relations.same_relations(a, b, self.same):
                return True
            raise NoValue("inequalities in another form")
        interval, other = as_interval(a), as_interval(b)
        if interval and other:
            pairs = [(interval, other), *_mirrored_bounds(a, b, interval, other)]
            return any(self._same_tuples(*pair) for pair in pairs)
        match a, b:
            case nodes.SetOperation(), nodes.SetOperation() if a.kind == b.kind:
                straight = in_order((a.left, a.right), (b.left, b.right), self.same)
                return straight or (
                    a.kind != "minus" and in_order((a.left, a.right), (b.right, b.left), self.same)
                )
            case nodes.Listing(), nodes.Listing():
                if (a.together and b.alternatives) or (a.alternatives and b.together):
                    raise NoValue("it is unclear whether all bounds hold or only one of them")
                return unordered(a.items, b.items, self.same)
            case nodes.NumberSet(), nodes.NumberSet():
                return a == b
        raise NoValue("a set that is not solved")

    # --- a relation against a value ---

    def _value_against_relation(self, a: Node, b: Node) -> bool | Outcome:
        """Compares the value in a relation such as x = 5 with an answer that is not a relation.

        Predictions contain no ≈ when they are compared. If the gold answer contains ≈, the prediction may equal any of
        the values that ≈ joins.
        """
        (name, value), (other_name, other_value) = assignments.named(a), assignments.named(b)
        relation, plain = (a, b) if isinstance(a, nodes.Relation) else (b, a)
        assert isinstance(relation, nodes.Relation)
        if relation.operators != ("in",) and not set(relation.operators) <= assignments.EQUALS:
            return False
        if "~" in relation.operators and any(self.same(side, plain) for side in relation.sides):
            return True
        if name is None and other_name is None:
            if relation is b and assignments.states_a_value(b):
                return self.compared(a, b.sides[-1])
            raise NoValue("an equation that is not solved")
        names = getattr(name or other_name, "items", ())
        if not assignments.in_usual_order(names):
            raise NoValue("it is unclear which value is which")
        solutions = assignments.names_of(plain.items) if isinstance(plain, nodes.Listing) else []
        if solutions and not names and variables(value if name is not None else other_value):
            raise NoValue("an equation that is not solved")
        return self.compared(value, other_value)


def _kind(a: Node, b: Node) -> str:
    """Returns the name of the rule that compares two answers, such as `list`. The rule depends on the kinds of the
    answers."""
    kinds = {type(a), type(b)}
    if nodes.Text in kinds:
        return "text"
    if a == b:
        return "identical"
    if kinds == {nodes.Relation} and has_congruence(a, b):
        return "residue"
    if (is_region(a) or is_region(b)) and isinstance(a, _SETS) and isinstance(b, _SETS):
        return "interval"
    if isinstance(a, nodes.Relation) and isinstance(b, nodes.Relation):
        return "relation"
    if nodes.Relation in kinds:
        return "name"
    if nodes.SetOf in kinds or nodes.Listing in kinds:
        return "set" if nodes.SetOf in kinds else "list"
    if matrices.table_in_brackets(a) or matrices.has_matrix(a) or matrices.has_matrix(b):
        return "matrix"
    for kind, rule in (
        (nodes.Quantity, "unit"),
        (nodes.Ratio, "ratio"),
        (nodes.Based, "base"),
        (nodes.Residue, "residue"),
        (nodes.Brackets, "tuple"),
        (nodes.NumberSet, "number set"),
    ):
        if kind in kinds:
            return rule
    if "percent" in functions(a) | functions(b):
        return "percent"
    return "expression" if variables(a) | variables(b) else "number"


def _same_texts(a: Node, b: Node) -> bool:
    """Whether two texts have the same words.

    Raises NoValue if the texts have different words but may mean the same, or if the words of a text are unknown
    because it is too long to be parsed.
    """
    if isinstance(a, nodes.Text) and isinstance(b, nodes.Text):
        if a.words and a.words == b.words:
            return True
        # `words` drops commas: red, blue and blue, red may be the same list.
        if a.plain and b.plain and sorted(a.words) != sorted(b.words):
            return False
    raise NoValue("not understood")


def _same_numerals(a: Node, b: Node) -> bool:
    """Whether numerals are equal. A number without a base never equals a number with a base.

    Raises NoValue if the number without a base has the same digits as the other number, or contains letters, which may
    be digits as in 1a_{16}.
    """
    if isinstance(a, nodes.Based) and isinstance(b, nodes.Based):
        return a.value == b.value
    numeral, plain = (a, b) if isinstance(a, nodes.Based) else (b, a)
    assert isinstance(numeral, nodes.Based)
    if isinstance(plain, nodes.Number) and str(plain.value) == numeral.digits:
        raise NoValue("a numeral without its base")
    if any(map(nodes.is_unknown, walk(plain))):
        raise NoValue("a numeral whose digits may be letters")
    return False


def _same_values(a: Node, b: Node) -> Identity | None:
    signs, other_signs = (functions(node) & {"percent", "degree"} for node in (a, b))
    if signs and other_signs and signs.isdisjoint(other_signs):
        raise NoValue("a percentage against an angle")
    if any(isinstance(part, nodes.Quantity) for node in (a, b) for part in walk(node)):
        raise NoValue("a unit within a formula")
    return identity(a, b)


def _words_of(title: Node) -> str:
    return title.unit if isinstance(title, nodes.Quantity) else str(getattr(title, "name", ""))


def _titles(items: Items) -> Items:
    """Returns a title for each member of a list. If all members are quantities in different units, the
    title of a quantity is the quantity itself, because its unit identifies it. Otherwise, the title of a member is its
    name.

    Returns an empty tuple if a member has no name.
    """
    quantities = [item for item in items if isinstance(item, nodes.Quantity)]
    if len(quantities) == len(items) > 1 and len({item.unit for item in quantities}) == len(items):
        return items
    return tuple(assignments.names_of(items))


def _items(node: Node) -> Items:
    """Returns the members of a list, set or tuple. A single value is returned as the only member."""
    if isinstance(node, nodes.Listing | nodes.SetOf | nodes.Brackets):
        return node.items
    return (node,)


def _mirrored_bounds(
    a: Node, b: Node, interval: nodes.Brackets, other: nodes.Brackets
) -> Iterator[tuple[nodes.Brackets, nodes.Brackets]]:
    """Yields the pairs of intervals for a second comparison. An inequality such as a < x bounds either of its letters:
    the first comparison read it as a bound on one letter, and the second reads it as a bound on the other."""
    for node, against in ((a, other), (b, interval)):
        if isinstance(node, nodes.Relation) and len(node.sides) == 2:
            mirrored = as_interval(nodes.Relation(node.sides[::-1], (FLIPPED[node.operators[0]],)))
            if mirrored is not None:
                yield mirrored, against
