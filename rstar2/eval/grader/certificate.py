"""Certificates: how it was decided that two answers are equal, as data that `verify` checks again."""

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
"""A fact as JSON-serialisable data: `rule`, `gold` and `pred`, and `because`, the facts that it follows from.

Values that are equal have `points`, at which they agree, and `reading`: whether degree signs are π/180, percent signs
are hundredths, and a `logarithm` without a base is natural. If letters were replaced, `replaced` says by what. If the
name before a value was dropped, `name` is that name, with the numbers that dots in it leave out. The first fact has
`letters`: what each answer says that its letters stand for.
"""
_INFINITY = Symbol("infinity")
_TURNED = {">": "<", ">=": "<="}
_SYMPY_NAMES = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "norm": "Abs", "abs": "Abs", "max": "Max",
    "min": "Min", "ceil": "ceiling", "binom": "binomial", "double_factorial": "factorial2", "Re": "re", "Im": "im",
    "sgn": "sign", "gcd": "igcd", "lcm": "ilcm", "root": "real_root", "ln": "log", "logarithm": "log",
    "log": "logarithm",
}  # fmt: skip
_UNIT_LETTERS = {"metre": "m", "second": "s", "gram": "g", "litre": "l", "am": "am", "pm": "pm"}
"""What units are called in products of letters such as 5m and 9pm, which are not read as quantities."""
MAX_POINTS = 8
"""A certificate names no more points at which two expressions agree."""


@dataclass(frozen=True, slots=True)
class Fact:
    """That two answers, or two parts of them, are equal, and why."""

    rule: str
    gold: Node | str
    """What was read, or text that needs no reading."""
    pred: Node | str
    because: tuple[Fact, ...] = ()
    """Facts about parts of the two, or about what they were rewritten as."""
    identity: Identity | None = None
    """How the values of two expressions are known to be equal."""
    letters: tuple[tuple[str, Node], ...] = ()
    """What stands for letters of the prediction in the fact that this one follows from."""
    name: Node | None = None
    """The name before a value, if it was dropped."""

    def certificate(self) -> Certificate:
        """Returns the fact about whole answers, with all that it follows from, as plain data."""
        return self._data() | {"letters": [said_of_letters(self.gold), said_of_letters(self.pred)]}

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
    """Returns a node as a list of its kind and its fields, as ["Number", "1/2", 0, 0]; tuples as lists.

    What is the same to the checker is written alike. A relation that says what is greater is turned round. Brackets are
    one field behind their items. Vectors in angle brackets, and lists of three or more, are tuples; the only tuple in a
    set is a point. A quantity has the size of its unit and the powers of the basic units in it, as letters. A time of
    day is a quantity of hours. Functions are called as in sympy. Series that cannot be added up are `Unsolved`.
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
        case Relation(sides=sides, operators=operators) if set(operators) <= _TURNED.keys():
            return ["Relation", plain(sides[::-1]), [_TURNED[operator] for operator in operators[::-1]]]
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
    """A time of day; 15:30 is 3:30 pm."""
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
    """The argument of a sine or the like, in which degree signs have one reading."""
    changed = with_parts(node, _in_radians)
    return (
        Call("radians", changed.args) if isinstance(changed, Call) and changed.name == "degree" else changed
    )


def said_of_letters(answer: Node | str) -> dict[str, str]:
    """Returns what an answer says that its letters stand for, as {"k": "integer"}."""
    parts = walk(answer) if isinstance(answer, Node) else ()
    return {part.name: part.numbers for part in parts if isinstance(part, Symbol) and part.numbers}


def _plain_point(point: Point) -> dict[str, list[str]]:
    """The values of letters, each with its real and its imaginary part."""
    parts = {name: value if isinstance(value, tuple) else (value, 0) for name, value in point.items()}
    return {name: [str(real), str(imaginary)] for name, (real, imaginary) in parts.items()}
