"""Letters of an answer that may be renamed, and the kinds of numbers, such as integers, that an answer states for its
letters."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from rstar2.eval.grader.compare.assignments import EQUALS, is_name
from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import CONSTANTS, AnyNode, Node, negative, number, walk, with_parts
from rstar2.eval.grader.values.equality import equal
from rstar2.eval.grader.values.guarded_numbers import NoValue
from rstar2.eval.grader.values.letters import functions, variables
from rstar2.eval.grader.values.numbers import real_value, whole_number

_FAMILY_LETTERS = frozenset("klmn")
"""Letters that stand for every integer in a family of angles such as π/4 + kπ, even if the answer does not say so."""
_WHOLE_IN_FORMULAS = _FAMILY_LETTERS | {"j"}
"""Letters that are integers in many formulas."""
_WHOLE_KINDS = ("integer", "natural number", "whole number")
"""Endings of the names of all kinds of whole numbers. For example, `positive integer` ends with `integer`."""
_MAX_DENOMINATOR = 10_000
"""Maximum denominator of the fraction of π by which a family of angles grows."""


def other_letter(gold: Node, pred: Node) -> dict[str, str]:
    """Returns a dict from the prediction's letter that stands for every integer to the gold answer's letter that stands
    for every integer.

    The dict is empty if an answer has no such letter or several, or if one of the two letters occurs in both answers.
    """
    name, other = _whole_letter(gold), _whole_letter(pred)
    if not name or not other or other in variables(gold) or name in variables(pred):
        return {}
    return {other: name}


def other_arguments(gold: Node, pred: Node) -> dict[str, Node]:
    """Returns a dict from the prediction's names for the arguments of a function to the gold answer's names.

    For the gold answer f(x) = x and the prediction f(z) = z, z becomes x. The dict is empty if the names are the same,
    or if the answers do not define the same function with the same number of arguments.
    """
    match gold, pred:
        case (
            nodes.Relation(sides=(nodes.Apply() as defined, *_, value)),
            nodes.Relation(sides=(nodes.Apply() as other, *_)),
        ) if defined.name == other.name:
            pass
        case _:
            return {}
    old, new = _letters(other.args), _letters(defined.args)
    if old == new or not old or len(old) != len(new):
        return {}
    if "".join(old + new).isupper() and variables(value).isdisjoint(new):
        return {}  # the probabilities P(A) and P(B), not a function
    # A free letter that has the name of a new argument must stay different from it.
    free = {name: f"{name} outside" for name in variables(pred).intersection(new).difference(old)}
    return {name: nodes.Symbol(other) for name, other in (free | dict(zip(old, new, strict=True))).items()}


def with_letters(node: AnyNode, letters: Mapping[str, Node]) -> AnyNode:
    """Returns the node with letters replaced by expressions. All letters are replaced at the same time."""
    return with_parts(
        node,
        lambda part: (
            letters[part.name]
            if isinstance(part, nodes.Symbol) and part.name in letters
            else with_letters(part, letters)
        ),
    )


def _letters(args: tuple[Node, ...]) -> list[str]:
    """Returns the names of the arguments if all arguments are different letters, otherwise an empty list."""
    names = [arg.name for arg in args if isinstance(arg, nodes.Symbol) and arg.name not in CONSTANTS]
    return names if len(set(names)) == len(args) else []


# --- kinds of numbers ---


def states_kinds(node: Node) -> bool:
    """Whether an answer says which kind of number one of its letters stands for, such as an integer."""
    return any(isinstance(part, nodes.Symbol) and part.numbers for part in walk(node))


def same_numbers(gold: Node, pred: Node) -> bool:
    """Whether two answers agree on the kinds of numbers for which their letters stand.

    For example, kπ for all integers k is not the same as kπ for positive integers k. If only one answer states a kind,
    this kind has to be a usual kind. In a family of angles, the usual kind is integers. In a formula or an inequality,
    the usual kind is real numbers. A letter such as n may also stand for integers in a formula, unless an inequality
    bounds the letter.
    """
    one, other = _stated_kinds(gold), _stated_kinds(pred)
    common = one.keys() & other.keys()
    rest = sorted(one.keys() - common), sorted(other.keys() - common)
    if len(rest[0]) == len(rest[1]) == 1:
        pairs = [(rest[0][0], one[rest[0][0]], other[rest[1][0]])]
    else:
        pairs = [(name, kinds.get(name, ""), "") for kinds in (one, other) for name in kinds.keys() - common]
    pairs += [(name, one[name], other[name]) for name in common]
    return all(
        a == b or (not (a and b) and (a or b) in _usual_kinds(name, gold, pred)) for name, a, b in pairs
    )


def _stated_kinds(node: Node) -> dict[str, str]:
    """Returns the kind of number that an answer states for each of its letters. The kind of a letter is empty if the
    answer states no kind for it. Names of values, such as x in x = 5, are left out."""
    match node:
        case nodes.Listing(items=items) | nodes.SetOf(items=items) | nodes.Brackets(items=items):
            return {name: kind for item in items for name, kind in _stated_kinds(item).items()}
        case nodes.Relation(sides=(name, *rest), operators=operators) if set(operators) <= EQUALS and is_name(
            name
        ):
            return {name: kind for side in rest for name, kind in _stated_kinds(side).items()}
    return {name: ", ".join(sorted(_kinds_of(name, node) - {""})) for name in variables(node)}


def _kinds_of(letter: str, node: Node) -> set[str]:
    return {part.numbers for part in walk(node) if isinstance(part, nodes.Symbol) and part.name == letter}


def _usual_kinds(letter: str, *answers: Node) -> set[str]:
    """Returns the kinds of numbers that a letter of the answers may stand for if an answer states no kind."""
    if any(_family_letter(answer) == letter for answer in answers):
        return {"integer"}
    bounds = [part for answer in answers for part in walk(answer) if _is_bound(part)]
    if letter in _WHOLE_IN_FORMULAS and not any(letter in variables(bound) for bound in bounds):
        return {"integer", "real", "natural number", "positive integer", "nonnegative integer"}
    return {"real"}


def _is_bound(part: Node) -> bool:
    """Whether a part of an answer is a relation that is not an equation, such as an inequality."""
    return isinstance(part, nodes.Relation) and not set(part.operators) <= EQUALS


def has_condition(node: Node) -> bool:
    """Whether some but not all members of a list are bounds. If so, the list may be a value with a condition, as in
    2^n, n >= 1."""
    bounds = [_is_bound(item) for item in node.items] if isinstance(node, nodes.Listing) else []
    return any(bounds) and not all(bounds)


# --- families of angles ---


def family_letter(gold: Node, pred: Node) -> str | None:
    """Returns the letter that stands for every integer in two families of angles, or None if no letter does.

    A gold answer that is 0 for n = 0, such as nπ, may be a formula in n. It counts as a family only if an answer states
    that n is an integer.
    """
    letter = _family_letter(gold)
    if letter is None or _family_letter(pred) != letter:
        return None
    gold_kinds, pred_kinds = _kinds_of(letter, gold), _kinds_of(letter, pred)
    if not gold_kinds | pred_kinds <= {"", "integer"}:
        return None
    may_be_formula = any(equal(_member(value, letter, number(0)), number(0)) for value in _values(gold))
    return letter if "integer" in gold_kinds or ("integer" in pred_kinds and not may_be_formula) else None


def shift(gold: Node, pred: Node, letter: str) -> dict[str, Node]:
    """Returns a dictionary with an expression that replaces `letter` in the prediction. After the replacement, both
    families have the same members in the same order.

    For example, -π/2 + kπ with k + 1 in place of k is π/2 + kπ. The dictionary is empty if no replacement is needed, or
    if no expression k + n or -k + n is a suitable replacement for k.
    """
    if not (letter in variables(gold) and letter in variables(pred)):
        return {}
    (start, step), (other_start, other_step) = _start_and_step(gold, letter), _start_and_step(pred, letter)
    sign = whole_number(nodes.Quotient(step, other_step))
    steps = whole_number(nodes.Quotient(nodes.Sum((start, negative(other_start))), other_step))
    if sign not in {1, -1} or steps is None or (sign, steps) == (1, 0):
        return {}
    signed_letter = nodes.Symbol(letter) if sign == 1 else negative(nodes.Symbol(letter))
    return {letter: nodes.Sum((signed_letter, number(steps)))}


def _whole_letter(node: Node) -> str | None:
    """Returns the letter that stands for every integer, either because the answer says so or because the answer is a
    family of angles.

    Returns None if no letter or more than one letter stands for every integer.
    """
    whole_letters = {
        part.name
        for part in walk(node)
        if isinstance(part, nodes.Symbol) and part.numbers.endswith(_WHOLE_KINDS)
    }
    if whole_letters:
        return whole_letters.pop() if len(whole_letters) == 1 else None
    return _family_letter(node)


def _family_letter(node: Node) -> str | None:
    """Returns the letter of a family of angles, or of a list of families with the same letter. Returns None for any
    other answer."""
    letters = {part.name for part in walk(node) if isinstance(part, nodes.Symbol)} & _FAMILY_LETTERS
    if len(letters) != 1 or not any(_is_angle_sign(part) for part in walk(node)):
        return None
    (letter,) = letters
    if any(isinstance(part, nodes.Apply) and letter in variables(part) for part in walk(node)):
        return None  # a function of k, as in f(k) = kπ
    values = [value for value in _values(node) if letter in variables(value)]
    return letter if values and all(_is_family(value, letter) for value in values) else None


def _is_angle_sign(part: Node) -> bool:
    return part == nodes.Symbol("pi") or (isinstance(part, nodes.Call) and part.name == "degree")


def _values(node: Node) -> list[Node]:
    """The values of an answer, without their names."""
    match node:
        case nodes.Listing(items=items) | nodes.SetOf(items=items) | nodes.Brackets(items=items):
            return [value for item in items for value in _values(item)]
        case nodes.Relation(sides=(_, *rest), operators=operators) if set(operators) <= EQUALS:
            return [value for side in rest for value in _values(side)]
    return [node]


def _is_family(value: Node, letter: str) -> bool:
    """Whether a value is a family of angles, such as π/4 + kπ. A family grows by the same angle from k to k + 2, for
    every k.

    The value (k - 2)π does not count as a family: the usual form of this family is kπ, so the grader reads (k - 2)π as
    a formula in k.
    """
    if variables(value) != {letter}:
        return False
    try:
        first, second, third = (_member(value, letter, number(place)) for place in (0, 1, 2))
        growth = nodes.Sum((third, negative(first)))
        two_later = _member(value, letter, nodes.Sum((nodes.Symbol(letter), number(2))))
        if not _is_angle(growth) or not equal(two_later, nodes.Sum((value, growth))):
            return False
        steps = whole_number(nodes.Quotient(first, nodes.Sum((second, negative(first)))))
    except NoValue:
        return False
    return steps is None or steps == 0


def _is_angle(node: Node) -> bool:
    """Whether a constant is a rational multiple of π or, with degree signs, a rational number of degrees.

    The constant zero does not count as an angle.
    """
    unit = number(1) if "degree" in functions(node) else nodes.Symbol("pi")
    value = real_value(nodes.Quotient(node, unit))
    multiple = Fraction(str(value)).limit_denominator(_MAX_DENOMINATOR)
    return multiple != 0 and equal(node, nodes.Product((nodes.Number(multiple), unit)))


def _member(family: Node, letter: str, place: Node) -> Node:
    return place if family == nodes.Symbol(letter) else with_letters(family, {letter: place})


def _start_and_step(family: Node, letter: str) -> tuple[Node, Node]:
    """Returns the member of a family for k = 0, and the step from k to k + 1. Raises NoValue if the steps differ, as in
    (-1)^k."""
    start, second = (_member(family, letter, number(place)) for place in (0, 1))
    step = nodes.Sum((second, negative(start)))
    if not equal(family, nodes.Sum((start, nodes.Product((nodes.Symbol(letter), step))))):
        raise NoValue("a family of values without a constant step")
    return start, step
