"""Letters that an answer may choose freely: k in kπ for every integer k, x in f(x) = 2x; and what it says of them."""

from __future__ import annotations

from rstar2.eval.grader.compare.assignments import EQUALS, is_name, named
from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import CONSTANTS, Node, negative, number, renamed, walk, with_parts
from rstar2.eval.grader.values.equality import equal, whole_number
from rstar2.eval.grader.values.guarded_numbers import NoValue
from rstar2.eval.grader.values.letters import functions, variables

_WHOLE = frozenset("klmn")
"""Letters that stand for every whole number in a family of angles, even where nothing says so."""
_WHOLE_IN_FORMULAS = _WHOLE | {"j"}
"""Letters that are whole numbers in many formulas."""
_WHOLE_NUMBERS = ("integer", "natural number", "whole number")
"""How the names of the kinds of whole numbers end."""
_LISTS = nodes.Listing | nodes.SetOf
_MAY_BE_THE_SAME = "families that may have the same members"


def with_letter_of(gold: Node, pred: Node, *, certain: bool = True) -> Node:
    """The answer with the letter for a whole number named as in the gold answer, where each has just one.

    With `certain` both letters are known to stand for every whole number; otherwise it is enough that one is.
    """
    wanted, given = _whole_letter(gold), _whole_letter(pred)
    if not certain and (wanted or given):
        wanted, given = wanted or _only_letter(gold), given or _only_letter(pred)
    if not wanted or not given or given in variables(gold) or wanted in variables(pred):
        return pred
    return renamed(pred, {given: wanted})


def with_arguments_of(gold: nodes.Relation, pred: nodes.Relation) -> nodes.Relation:
    """f(z) = z as f(x) = x where the gold answer names the argument x."""
    wanted, given = gold.sides[0], pred.sides[0]
    if not (isinstance(wanted, nodes.Apply) and isinstance(given, nodes.Apply) and wanted.name == given.name):
        return pred
    old, new = _letters(given.args), _letters(wanted.args)
    if old == new or not old or len(old) != len(new):
        return pred
    if "".join(old + new).isupper() and variables(gold.sides[-1]).isdisjoint(new):
        return pred  # the probabilities P(A) and P(B), not a function
    # A letter that was free and is called like an argument now stays another one.
    free = {name: f"{name} outside" for name in new if name not in old}
    return renamed(pred, free | dict(zip(old, new, strict=True)))


def same_numbers(gold: Node, pred: Node) -> bool:
    """Whether what two answers say of their letters agrees: kπ for integers k is not kπ for positive ones.

    Where only one says something, it has to be the usual: integers in a family of angles; real numbers, or whole ones
    for a letter such as n, in a formula; real numbers in an inequality.
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
    free = variables(node)
    said = {name: set[str]() for name in free}
    for part in walk(node):
        if isinstance(part, nodes.Symbol) and part.name in free:
            said[part.name].add(part.numbers)
    return {name: ", ".join(sorted(kinds - {""})) for name, kinds in said.items()}


def _usual_numbers(letter: str, *answers: Node) -> set[str]:
    """What a letter of some answers may be where nothing is said of it."""
    if any(_family_letter(answer) == letter for answer in answers):
        return {"integer"}
    bounds = [part for answer in answers for part in walk(answer) if _is_bound(part)]
    if letter in _WHOLE_IN_FORMULAS and not any(letter in variables(bound) for bound in bounds):
        return {"integer", "real", "natural number", "positive integer", "nonnegative integer"}
    return {"real"}


def _is_bound(part: Node) -> bool:
    """Whether it says where a letter lies, rather than what it is equal to."""
    return isinstance(part, nodes.Relation) and not set(part.operators) <= EQUALS


def may_be_other_parameters(gold: Node, pred: Node) -> bool:
    """Whether both have a letter that they say is real and that may be chosen otherwise, as t in (t, 2t)."""
    one, other = (
        {part.name for part in walk(node) if isinstance(part, nodes.Symbol) and part.numbers == "real"}
        for node in (gold, pred)
    )
    points = any(isinstance(part, nodes.Brackets) for node in (gold, pred) for part in walk(node))
    return bool(one and other) and (one != other or points)


def has_condition(node: Node) -> bool:
    """Whether a list is a value and a condition on a letter in it, as 2^n, n >= 1 or a_n = 2^n, n = 1, 2, ..."""
    if not isinstance(node, nodes.Listing):
        return False
    relations = [item for item in node.items if isinstance(item, nodes.Relation)]
    valued = {name for item in node.items if item not in relations for name in variables(item)}
    given = {name for item in relations if not _is_bound(item) for name in variables(item.sides[-1])}
    bound = {name for item in relations if _is_bound(item) for name in variables(item)}
    named = {name for item in relations if not _is_bound(item) for name in variables(item.sides[0])}
    if any(item.operators == ("in",) and isinstance(item.sides[1], nodes.NumberSet) for item in relations):
        return True
    return bool((valued | given) & bound or valued & named or given & named)


def depends_on_whole_numbers(node: Node) -> bool:
    """Whether it says of a whole number where it lies: x > 3 and x >= 4 are the same for those."""
    return any(
        isinstance(symbol, nodes.Symbol) and _says_whole(symbol.numbers)
        for part in walk(node)
        if _is_bound(part)
        for symbol in walk(part)
    )


def _letters(args: tuple[Node, ...]) -> list[str]:
    """The names of arguments that are different letters; none of other arguments."""
    names = [arg.name for arg in args if isinstance(arg, nodes.Symbol) and arg.name not in CONSTANTS]
    return names if len(set(names)) == len(args) else []


# --- families of angles ---


def _whole_letter(node: Node) -> str | None:
    """The letter of an answer that stands for every whole number: it says so, or it is a family of angles."""
    said = {part.name for part in walk(node) if isinstance(part, nodes.Symbol) and _says_whole(part.numbers)}
    if said:
        return said.pop() if len(said) == 1 else None
    return _family_letter(node)


def _says_whole(numbers: str) -> bool:
    """Whether what is said of a letter makes it a whole number."""
    return numbers.endswith(_WHOLE_NUMBERS)


def _family_letter(node: Node) -> str | None:
    """The letter of a family of angles, or of a list of such."""
    letter = _only_letter(node)
    if letter is None:
        return None
    values = [value for value in _values(node) if letter in variables(value)]
    return letter if values and all(_is_family(value, nodes.Symbol(letter)) for value in values) else None


def _only_letter(node: Node) -> str | None:
    """The one letter of an answer that may stand for every whole number; None where there are more or none."""
    letters = {part.name for part in walk(node) if isinstance(part, nodes.Symbol)} & _WHOLE
    return letters.pop() if len(letters) == 1 else None


def same_families(gold: Node, pred: Node) -> bool | None:
    """Whether families with the same letter, which are not written alike, have the same members.

    They have where one is the other shifted, as -π/2 + kπ is π/2 + kπ, if the gold answer says that k is every
    integer: else it may be a formula in k. None where neither is a family. NoValue where they may have the same
    members in another way, and where they are no angles: n + 1 and n - 1 may be two formulas.
    """
    letters = _whole_letter(gold), _whole_letter(pred)
    letter = letters[0] or letters[1]
    if letter is None or not all(letter in variables(node) for node in (gold, pred)):
        return None
    if _is_argument(letter, gold) or _is_argument(letter, pred):
        return None
    if letters[0] != letters[1]:
        raise NoValue(_MAY_BE_THE_SAME)
    one, other = _families(gold, letter), _families(pred, letter)
    names = {name for name, _ in (*one, *other)} - {None}
    if len(names) > 1 or ("degree" in functions(gold)) != ("degree" in functions(pred)):
        raise NoValue(_MAY_BE_THE_SAME)
    steps, other_steps = ([_start_and_step(value, letter) for _, value in side] for side in (one, other))
    if _covered(steps, other_steps) and _covered(other_steps, steps):
        if _said_of(letter, gold) == {"integer"} and _family_letter(gold) == _family_letter(pred) == letter:
            return True
        raise NoValue(_MAY_BE_THE_SAME)
    if len(one) == len(other) == 1:
        return False
    raise NoValue(_MAY_BE_THE_SAME)


def _is_argument(letter: str, node: Node) -> bool:
    """Whether a function or sequence is defined, as in f(k) = kπ, whose letter goes through nothing."""
    return any(isinstance(part, nodes.Apply) and letter in variables(part) for part in walk(node))


def _said_of(letter: str, node: Node) -> set[str]:
    return {part.numbers for part in walk(node) if isinstance(part, nodes.Symbol) and part.name == letter}


def _families(node: Node, letter: str) -> list[tuple[Node | None, Node]]:
    """The families that an answer lists, each with its name; NoValue where that is not all that it is."""
    found: list[tuple[Node | None, Node]] = []
    for item in node.items if isinstance(node, _LISTS) else (node,):
        name, value = named(item)
        said = _said_of(letter, value)
        if not said or not said <= {"", "integer"} or isinstance(value, _LISTS | nodes.Brackets):
            raise NoValue(_MAY_BE_THE_SAME)
        found.append((name, value))
    return found


def _start_and_step(family: Node, letter: str) -> tuple[Node, Node]:
    """The member for k = 0, and what is added for each further k; NoValue where that differs, as with (-1)^k."""
    start, second = (_with_value(family, letter, value) for value in (0, 1))
    step = nodes.Sum((second, negative(start)))
    if not equal(family, nodes.Sum((start, nodes.Product((nodes.Symbol(letter), step))))):
        raise NoValue(_MAY_BE_THE_SAME)
    return start, step


def _with_value(node: Node, letter: str, value: int) -> Node:
    if node == nodes.Symbol(letter):
        return number(value)
    return with_parts(node, lambda part: _with_value(part, letter, value))


def _covered(families: list[tuple[Node, Node]], by: list[tuple[Node, Node]]) -> bool:
    return all(any(_has_same_members(one, other) for other in by) for one in families)


def _has_same_members(one: tuple[Node, Node], other: tuple[Node, Node]) -> bool:
    (start, step), (other_start, other_step) = one, other
    if whole_number(nodes.Quotient(other_step, step)) not in {1, -1}:
        return False
    return whole_number(nodes.Quotient(nodes.Sum((other_start, negative(start))), step)) is not None


def _values(node: Node) -> list[Node]:
    """The values an answer gives, without the names it gives them."""
    match node:
        case nodes.Listing(items=items) | nodes.SetOf(items=items) | nodes.Brackets(items=items):
            return [value for item in items for value in _values(item)]
        case nodes.Relation(sides=(_, *rest), operators=operators) if set(operators) <= EQUALS:
            return [value for side in rest for value in _values(side)]
    return [node]


def _is_family(value: Node, letter: nodes.Symbol) -> bool:
    """Whether a value is an angle plus the letter times an angle, as in π/4 + kπ or (2k+1)π/2 or (-1)^k π/6 + kπ."""
    terms = value.terms if isinstance(value, nodes.Sum) else (value,)
    steps = [term for term in terms if _is_step(term, letter)]
    others = [term for term in terms if term not in steps]
    return bool(steps) and all(
        part != letter
        for term in others
        for factor in _factors(term)
        if not _is_sign(factor)
        for part in walk(factor)
    )


def _is_sign(factor: Node) -> bool:
    """Whether a factor is (-1)^k."""
    return (
        isinstance(factor, nodes.Power) and isinstance(factor.base, nodes.Number) and factor.base.value == -1
    )


def _is_step(term: Node, letter: nodes.Symbol) -> bool:
    """Whether a term is the letter, or 2k + 1, times π or degrees and a number."""
    if isinstance(term, nodes.Call) and term.name == "degree":
        factors = [*_factors(term.args[0]), nodes.Symbol("pi")]
    else:
        factors = _factors(term)
    degrees = any(isinstance(one, nodes.Call) and one.name == "degree" for one in factors)
    angle = degrees or nodes.Symbol("pi") in factors
    left = [one for one in factors if one != nodes.Symbol("pi") and letter.name in variables(one)]
    rest = [one for one in factors if one not in left]
    constant = all(isinstance(one, nodes.Number | nodes.Call) or one == nodes.Symbol("pi") for one in rest)
    return angle and constant and len(left) == 1 and (left[0] == letter or _is_odd_number(left[0], letter))


def _is_odd_number(node: Node, letter: nodes.Symbol) -> bool:
    """2k + 1 and the like: k + 1 would count something, not go through all whole numbers."""
    if not isinstance(node, nodes.Sum):
        return False
    steps = [term for term in node.terms if letter.name in variables(term)]
    if len(steps) != 1 or not all(isinstance(term, nodes.Number) for term in node.terms if term not in steps):
        return False
    factors = _factors(steps[0])
    sizes = [abs(one.value) for one in factors if isinstance(one, nodes.Number)]
    return factors.count(letter) == 1 and len(factors) == len(sizes) + 1 and max(sizes, default=0) > 1


def _factors(node: Node) -> list[Node]:
    """The factors of a product, and of the numerator over a number."""
    match node:
        case nodes.Product(factors=factors):
            return [one for factor in factors for one in _factors(factor)]
        case nodes.Quotient(over=over, under=nodes.Number()):
            return _factors(over)
    return [node]
