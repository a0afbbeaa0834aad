"""Letters that may be chosen freely: k in kπ for every whole number k, x in f(x) = 2x."""

from __future__ import annotations

from rstar2.eval.grader.compare.equality import variables
from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, renamed, walk

_WHOLE = frozenset("klmn")
"""Letters that stand for every whole number in a family of angles, even where nothing says so."""


def with_letter_of(gold: Node, pred: Node, *, certain: bool = True) -> Node:
    """The answer with the letter for a whole number named as in the gold answer, where each has just one.

    With `certain` both letters are known to stand for every whole number; otherwise it is enough that one is.
    """
    wanted, given = _whole_letter(gold), _whole_letter(pred)
    if not certain and (wanted or given):
        wanted, given = wanted or _only_letter(gold), given or _only_letter(pred)
    if not wanted or not given or given in variables(gold) or wanted in variables(pred):
        return pred
    return renamed(pred, {given: nodes.Symbol(wanted)})


def _only_letter(node: Node) -> str | None:
    letters = {part.name for part in walk(node) if isinstance(part, nodes.Symbol)} & _WHOLE
    return letters.pop() if len(letters) == 1 else None


def with_arguments_of(gold: nodes.Relation, pred: nodes.Relation) -> nodes.Relation:
    """f(z) = z as f(x) = x where the gold answer names the argument x."""
    wanted, given = gold.sides[0], pred.sides[0]
    if not (isinstance(wanted, nodes.Apply) and isinstance(given, nodes.Apply) and wanted.name == given.name):
        return pred
    old, new = _letters(given.args), _letters(wanted.args)
    if old == new or not old or len(old) != len(new):
        return pred
    # A letter that was free and is called like an argument now stays another one.
    free = {name: nodes.Symbol(f"{name} outside") for name in new if name not in old}
    arguments = {name: nodes.Symbol(other) for name, other in zip(old, new, strict=True)}
    return renamed(pred, free | arguments)


def _letters(args: tuple[Node, ...]) -> list[str]:
    """The names of arguments that are different letters; none of other arguments."""
    names = [arg.name for arg in args if isinstance(arg, nodes.Symbol)]
    return names if len(set(names)) == len(args) else []


def _whole_letter(node: Node) -> str | None:
    """The letter of an answer that stands for every whole number: it says so, or it is a family of angles."""
    said = {part.name for part in walk(node) if isinstance(part, nodes.Symbol) and part.bound}
    if said:
        return said.pop() if len(said) == 1 else None
    letter = _only_letter(node)
    if letter is None:
        return None
    values = [value for value in _values(node) if letter in variables(value)]
    return letter if values and all(_is_family(value, nodes.Symbol(letter)) for value in values) else None


def _values(node: Node) -> list[Node]:
    """The values an answer gives, without the names it gives them."""
    match node:
        case nodes.Listing(items=items) | nodes.SetOf(items=items) | nodes.Brackets(items=items):
            return [value for item in items for value in _values(item)]
        case nodes.Relation(sides=(_, *rest), operators=operators) if set(operators) <= {"=", "~"}:
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
