"""Certificates: why two answers are equal, as data that `verify` can check independently."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any, TypeAlias

from rstar2.eval.grader.parse.nodes import (
    Based,
    Brackets,
    Call,
    Listing,
    Node,
    Number,
    Quantity,
    Ratio,
    Relation,
    Series,
    SetOf,
    Sum,
    Symbol,
    Text,
    number,
    renamed,
    walk,
    with_parts,
)
from rstar2.eval.grader.parse.units import measure, no_unit
from rstar2.eval.grader.values.equality import Identity
from rstar2.eval.grader.values.functions import ANGLES
from rstar2.eval.grader.values.points import Point

Certificate: TypeAlias = dict[str, Any]
"""A fact as JSON-serialisable data, with these keys:

- `rule`, `gold` and `pred`: the rule and the two answers, or parts of them, that the rule finds equal.
- `because`: the facts that this fact follows from.
- `points`: for equal values, points at which the two values agree.
- `reading`: for equal values, whether a degree sign is π/180, a percent sign is 1/100, and a `logarithm` without a base
  is natural.
- `replaced`: the expressions that replaced letters of the prediction, if any.
- `name`: the name before a value, if the comparison dropped that name. If the name has dots, the numbers for which the
  dots stand are filled in.
- `letters`, only in the first fact: the kinds of numbers that each answer states for its letters.
"""
_INFINITY = Symbol("infinity")
_MIRRORED = {">": "<", ">=": "<="}
_SYMPY_NAMES = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "norm": "Abs", "abs": "Abs", "max": "Max",
    "min": "Min", "ceil": "ceiling", "binom": "binomial", "double_factorial": "factorial2", "Re": "re", "Im": "im",
    "sgn": "sign", "gcd": "igcd", "lcm": "ilcm", "root": "real_root", "ln": "log", "logarithm": "log",
    "log": "logarithm",
}  # fmt: skip
_UNIT_LETTERS = {"metre": "m", "second": "s", "gram": "g", "litre": "l", "am": "am", "pm": "pm"}
"""Dict from a unit to its letters in products such as 5m and 9pm. Such products are not parsed as quantities."""
MAX_POINTS = 8
"""Maximum number of points that a certificate lists for two equal expressions."""


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement that two answers, or parts of them, are equal, with the reason."""

    rule: str
    gold: Node | str
    """The parsed answer, a parsed part of it, or a text that needs no parsing."""
    pred: Node | str
    because: tuple[Fact, ...] = ()
    """The facts that this fact follows from: about parts of the two answers, or about rewritten forms of the
    answers."""
    identity: Identity | None = None
    """The evidence that the values of two expressions are equal."""
    letters: tuple[tuple[str, Node], ...] = ()
    """The letters of the prediction that were replaced, each with its replacement. The fact in `because` is about the
    answers after the replacement."""
    name: Node | None = None
    """The name before a value, if the comparison dropped that name."""

    def certificate(self) -> Certificate:
        """Returns this fact, which is about whole answers, as plain data. The data contain all facts from which this
        fact follows."""
        return self._data() | {"letters": [letter_kinds(self.gold), letter_kinds(self.pred)]}

    def _data(self) -> Certificate:
        data: Certificate = {
            "rule": "relation" if isinstance(self.gold, Relation) and self.rule == "residue" else self.rule,
            "gold": plain(self.gold),
            "pred": plain(self.pred),
            "because": [fact._data() for fact in self.because],
        }
        if self.identity is not None:
            identity = self.identity
            data["points"] = [_plain_point(point) for point in islice(identity.points, MAX_POINTS)]
            data["reading"] = [identity.degree, identity.percent, identity.natural_log]
        if self.letters:
            data["replaced"] = plain(self.letters)
        if self.name is not None:
            data["name"] = plain(self.name)
        return data


def plain(part: Any) -> Any:
    """Returns a node as a list such as ["Number", "1/2", 0, 0], with the node's kind and then its fields. Returns a
    tuple as a list.

    Nodes that the checker treats as equal get the same form:

    - A relation with > or >= is reversed, so that it has < or <=.
    - The opening and the closing bracket are one field, which comes after the items.
    - Vectors in angle brackets, and lists of three or more items in square brackets, are tuples. A set whose only
      member is a tuple is replaced by this tuple.
    - The unit of a quantity is described by its size, and by the letters of its basic units with their powers.
    - A time of day becomes a quantity in hours.
    - A function has the name that it has in sympy.
    - A series that cannot be added up becomes the node `Unsolved`.
    """
    match part:
        case Symbol(name=name):
            return ["Symbol", name]
        case Text(words=words):
            return ["Text", list(words)]
        case Based(value=value):
            return ["Based", value]
        case Listing(items=items, alternatives=alternatives):
            return ["Listing", plain(items), alternatives]
        case Ratio(clock=True):
            return _plain_time(part)
        case Ratio(parts=parts):
            return ["Ratio", plain(parts)]
        case Brackets(opening=opening, closing=closing, items=items):
            kind = opening + closing
            return [
                "Brackets",
                plain(items),
                "()" if kind == "<>" or (kind == "[]" and len(items) > 2) else kind,
            ]
        case Call(name="log10", args=args):
            return ["Call", "log", plain((*args, number(10)))]
        case Call(name=name, args=args):
            args = tuple(map(_in_radians, args)) if name in ANGLES else args
            return ["Call", _SYMPY_NAMES.get(name, name), plain(args)]
        case Series(kind=kind, low=low, high=high) if kind not in {"sum", "prod"} or _INFINITY in walk(
            Sum((low, high))
        ):
            body = renamed(part.body, {part.index: "none"})
            return ["Unsolved", kind, [plain(low), plain(high), plain(body)]]
        case SetOf(items=(Brackets() as point,)):
            return plain(point)
        case Quantity(value=value, unit=unit):
            return _plain_quantity(value, unit)
        case Relation(sides=sides, operators=operators) if set(operators) <= _MIRRORED.keys():
            return ["Relation", plain(sides[::-1]), [_MIRRORED[operator] for operator in operators[::-1]]]
        case Node():
            return [type(part).__name__, *[plain(getattr(part, name)) for name in part.__slots__]]
        case tuple():
            return [plain(one) for one in part]
    return str(part) if isinstance(part, Fraction) else part


def _plain_quantity(value: Node, unit: str) -> list[Any]:
    if isinstance(value, Ratio) and value.clock:
        value = Number(_hours(value))
    if not unit or no_unit(unit):
        return ["Quantity", plain(value), "", "1", []]
    words = " ".join(word.removesuffix("s") if len(word) > 2 else word for word in unit.lower().split())
    size, basic = measure(unit) or (1, ((words, 1),))
    powers = [
        [letter, power]
        for name, power in basic
        if name != "radian"
        for letter in _UNIT_LETTERS.get(name, [name])
    ]
    return ["Quantity", plain(value), words, str(size), powers]


def _plain_time(time: Ratio) -> list[Any]:
    """Returns a time of day as a quantity. 15:30 and 3:30 pm give the same quantity."""
    hours = _hours(time)
    if 1 <= hours < 13:
        return ["Quantity", plain(Number(hours)), "", "1", [["clock", 1]]]
    past_twelve = hours % 12
    return _plain_quantity(
        Number(past_twelve + 12 if past_twelve < 1 else past_twelve), "pm" if hours % 24 >= 12 else "am"
    )


def _hours(time: Ratio) -> Fraction:
    numbers = [part.value for part in time.parts if isinstance(part, Number)]
    return sum((value / 60**place for place, value in enumerate(numbers)), Fraction(0))


def _in_radians(node: Node) -> Node:
    """Returns an argument of a trigonometric function with its degree signs converted to radians: in such an argument,
    a degree sign always means π/180."""
    changed = with_parts(node, _in_radians)
    return (
        Call("radians", changed.args) if isinstance(changed, Call) and changed.name == "degree" else changed
    )


def letter_kinds(answer: Node | str) -> dict[str, str]:
    """Returns the kinds of numbers that an answer states for its letters, such as {"k": "integer"}."""
    parts = walk(answer) if isinstance(answer, Node) else ()
    return {part.name: part.numbers for part in parts if isinstance(part, Symbol) and part.numbers}


def _plain_point(point: Point) -> dict[str, list[str]]:
    """Returns the values of letters. Each value becomes a list of two texts: the real part and the imaginary part."""
    parts = {name: value if isinstance(value, tuple) else (value, 0) for name, value in point.items()}
    return {name: [str(real), str(imaginary)] for name, (real, imaginary) in parts.items()}
