"""Letters in an answer that may be renamed, and the numbers that an answer says its letters stand for."""

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
"""Letters that stand for every whole number in a family of angles, even if the answer does not say so."""
_WHOLE_IN_FORMULAS = _FAMILY_LETTERS | {"j"}
"""Letters that are whole numbers in many formulas."""
_WHOLE_NUMBERS = ("integer", "natural number", "whole number")
"""How the names of the kinds of whole numbers end."""
_MAX_DENOMINATOR = 10_000
"""A multiple of π with a larger denominator is no angle of a family."""


def other_letter(gold: Node, pred: Node) -> dict[str, str]:
    """Returns which letter for every whole number has another name in the gold answer, if each has just one."""
    name, other = _whole_letter(gold), _whole_letter(pred)
    if not name or not other or other in variables(gold) or name in variables(pred):
        return {}
    return {other: name}


def other_arguments(gold: Node, pred: Node) -> dict[str, Node]:
    """Returns which arguments of a function have other names in the gold answer: z is x beside f(x) = x."""
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
    # A letter that was free and is called like an argument now stays another one.
    free = {name: f"{name} outside" for name in variables(pred).intersection(new).difference(old)}
    return {name: nodes.Symbol(other) for name, other in (free | dict(zip(old, new, strict=True))).items()}


def with_letters(node: AnyNode, letters: Mapping[str, Node]) -> AnyNode:
    """The node with expressions in place of letters, all at once."""
    return with_parts(
        node,
        lambda part: (
            letters[part.name]
            if isinstance(part, nodes.Symbol) and part.name in letters
            else with_letters(part, letters)
        ),
    )


def _letters(args: tuple[Node, ...]) -> list[str]:
    """The names of arguments that are different letters; none for other arguments."""
    names = [arg.name for arg in args if isinstance(arg, nodes.Symbol) and arg.name not in CONSTANTS]
    return names if len(set(names)) == len(args) else []


# --- what an answer says of its letters ---


def says_numbers(node: Node) -> bool:
    """Whether an answer says which numbers one of its letters stands for."""
    return any(isinstance(part, nodes.Symbol) and part.numbers for part in walk(node))


def same_numbers(gold: Node, pred: Node) -> bool:
    """Whether two answers agree on what their letters stand for: kπ for integers k is not kπ for positive ones.

    If only one answer says something, it has to be the usual: integers in a family of angles; real numbers, or whole
    ones for a letter such as n, in a formula; real numbers in an inequality.
    """
    one, other = _said(gold), _said(pred)
    names = one.keys() & other.keys()
    rest = sorted(one.keys() - names), sorted(other.keys() - names)
    if len(rest[0]) == len(rest[1]) == 1:
        pairs = [(rest[0][0], one[rest[0][0]], other[rest[1][0]])]
    else:
        pairs = [(name, said.get(name, ""), "") for said in (one, other) for name in said.keys() - names]
    pairs += [(name, one[name], other[name]) for name in names]
    return all(
        a == b or (not (a and b) and (a or b) in _usual_numbers(name, gold, pred)) for name, a, b in pairs
    )


def _said(node: Node) -> dict[str, str]:
    """What is said of each letter that is not just the name of a value, as x in x = 5 is."""
    match node:
        case nodes.Listing(items=items) | nodes.SetOf(items=items) | nodes.Brackets(items=items):
            return {name: said for item in items for name, said in _said(item).items()}
        case nodes.Relation(sides=(name, *rest), operators=operators) if set(operators) <= EQUALS and is_name(
            name
        ):
            return {name: said for side in rest for name, said in _said(side).items()}
    return {name: ", ".join(sorted(_said_of(name, node) - {""})) for name in variables(node)}


def _said_of(letter: str, node: Node) -> set[str]:
    return {part.numbers for part in walk(node) if isinstance(part, nodes.Symbol) and part.name == letter}


def _usual_numbers(letter: str, *answers: Node) -> set[str]:
    """What a letter of some answers may stand for if nothing is said of it."""
    if any(_family_letter(answer) == letter for answer in answers):
        return {"integer"}
    bounds = [part for answer in answers for part in walk(answer) if _is_bound(part)]
    if letter in _WHOLE_IN_FORMULAS and not any(letter in variables(bound) for bound in bounds):
        return {"integer", "real", "natural number", "positive integer", "nonnegative integer"}
    return {"real"}


def _is_bound(part: Node) -> bool:
    """Whether it says where a letter lies, rather than what it is equal to."""
    return isinstance(part, nodes.Relation) and not set(part.operators) <= EQUALS


def has_condition(node: Node) -> bool:
    """Whether a list holds bounds beside something else, and so a value with its condition: 2^n, n >= 1."""
    bounds = [_is_bound(item) for item in node.items] if isinstance(node, nodes.Listing) else []
    return any(bounds) and not all(bounds)


# --- families of angles ---


def family_letter(gold: Node, pred: Node) -> str | None:
    """Returns the letter that stands for every integer in two families of angles; None if there is none.

    A gold answer such as nπ, which does not say that n is every integer, may be a formula in n.
    """
    letter = _family_letter(gold)
    if letter is None or _family_letter(pred) != letter:
        return None
    said = [_said_of(letter, node) for node in (gold, pred)]
    if not all(kinds <= {"", "integer"} for kinds in said):
        return None
    formula = any(equal(_member(value, letter, number(0)), number(0)) for value in _values(gold))
    return letter if "integer" in said[0] or ("integer" in said[1] and not formula) else None


def shift(gold: Node, pred: Node, letter: str) -> dict[str, Node]:
    """Returns what stands for a letter that goes through all integers if two families have the same members.

    The members of -π/2 + kπ are those of π/2 + kπ, with k + 1 in place of k.
    """
    if not (letter in variables(gold) and letter in variables(pred)):
        return {}
    (start, step), (other_start, other_step) = _start_and_step(gold, letter), _start_and_step(pred, letter)
    sign = whole_number(nodes.Quotient(step, other_step))
    steps = whole_number(nodes.Quotient(nodes.Sum((start, negative(other_start))), other_step))
    if sign not in {1, -1} or steps is None or (sign, steps) == (1, 0):
        return {}
    turned = nodes.Symbol(letter) if sign == 1 else negative(nodes.Symbol(letter))
    return {letter: nodes.Sum((turned, number(steps)))}


def _whole_letter(node: Node) -> str | None:
    """The letter of an answer that stands for every whole number: it says so, or it is a family of angles."""
    said = {
        part.name
        for part in walk(node)
        if isinstance(part, nodes.Symbol) and part.numbers.endswith(_WHOLE_NUMBERS)
    }
    if said:
        return said.pop() if len(said) == 1 else None
    return _family_letter(node)


def _family_letter(node: Node) -> str | None:
    """The letter of a family of angles, or of a list of such."""
    letters = {part.name for part in walk(node) if isinstance(part, nodes.Symbol)} & _FAMILY_LETTERS
    if len(letters) != 1 or not any(_is_angle_sign(part) for part in walk(node)):
        return None
    (letter,) = letters
    if any(isinstance(part, nodes.Apply) and letter in variables(part) for part in walk(node)):
        return None  # a function of k, as f(k) = kπ
    values = [value for value in _values(node) if letter in variables(value)]
    return letter if values and all(_is_family(value, letter) for value in values) else None


def _is_angle_sign(part: Node) -> bool:
    return part == nodes.Symbol("pi") or (isinstance(part, nodes.Call) and part.name == "degree")


def _values(node: Node) -> list[Node]:
    """The values an answer gives, without the names it gives them."""
    match node:
        case nodes.Listing(items=items) | nodes.SetOf(items=items) | nodes.Brackets(items=items):
            return [value for item in items for value in _values(item)]
        case nodes.Relation(sides=(_, *rest), operators=operators) if set(operators) <= EQUALS:
            return [value for side in rest for value in _values(side)]
    return [node]


def _is_family(value: Node, letter: str) -> bool:
    """Whether a value grows by the same angle from k to k + 2, as π/4 + kπ and (-1)^k π/6 + kπ do.

    A family that is only shifted by its own steps, as (k - 2)π is, would be written kπ; it is a formula in k.
    """
    if variables(value) != {letter}:
        return False
    try:
        first, second, third = (_member(value, letter, number(place)) for place in (0, 1, 2))
        growth = nodes.Sum((third, negative(first)))
        later = _member(value, letter, nodes.Sum((nodes.Symbol(letter), number(2))))
        if not _is_angle(growth) or not equal(later, nodes.Sum((value, growth))):
            return False
        steps = whole_number(nodes.Quotient(first, nodes.Sum((second, negative(first)))))
    except NoValue:
        return False
    return steps is None or steps == 0


def _is_angle(node: Node) -> bool:
    """Whether a constant is a rational multiple of π or, with degree signs, of a degree, and not zero."""
    unit = number(1) if "degree" in functions(node) else nodes.Symbol("pi")
    value = real_value(nodes.Quotient(node, unit))
    multiple = Fraction(str(value)).limit_denominator(_MAX_DENOMINATOR)
    return multiple != 0 and equal(node, nodes.Product((nodes.Number(multiple), unit)))


def _member(family: Node, letter: str, place: Node) -> Node:
    return place if family == nodes.Symbol(letter) else with_letters(family, {letter: place})


def _start_and_step(family: Node, letter: str) -> tuple[Node, Node]:
    """The member for k = 0, and what is added for each further k; NoValue if that differs, as with (-1)^k."""
    start, second = (_member(family, letter, number(place)) for place in (0, 1))
    step = nodes.Sum((second, negative(start)))
    if not equal(family, nodes.Sum((start, nodes.Product((nodes.Symbol(letter), step))))):
        raise NoValue("a family without a step")
    return start, step
