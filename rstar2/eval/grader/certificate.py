"""Certificates: how it was decided that two answers are equal, as data that `verify` checks again."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any, TypeAlias

from rstar2.eval.grader.parse.nodes import (
    Brackets,
    Call,
    Listing,
    Node,
    Quantity,
    Ratio,
    Relation,
    Symbol,
    walk,
)
from rstar2.eval.grader.parse.units import measure, no_unit
from rstar2.eval.grader.values.equality import Identity
from rstar2.eval.grader.values.points import Point

Certificate: TypeAlias = dict[str, Any]
"""A fact as JSON-serialisable data: `rule`, `gold` and `pred`, and `because`, the facts that it follows from.

Values that are equal have `points`, at which they agree, and `reading`: whether degree signs are π/180, percent signs
are hundredths, and `log` is natural. If letters were replaced, `replaced` says by what. The first fact has `letters`:
what each answer says that its letters stand for.
"""
_TURNED = {">": "<", ">=": "<="}
_SYMPY_NAMES = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "norm": "Abs", "abs": "Abs", "max": "Max",
    "min": "Min", "ceil": "ceiling", "binom": "binomial", "double_factorial": "factorial2", "Re": "re", "Im": "im",
    "sgn": "sign", "gcd": "igcd", "lcm": "ilcm", "root": "real_root",
}  # fmt: skip
_UNIT_LETTERS = {"metre": "m", "second": "s", "gram": "g", "litre": "l"}
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

    def certificate(self) -> Certificate:
        """Returns the fact about whole answers, with all that it follows from, as plain data."""
        return self._data() | {"letters": [said_of_letters(self.gold), said_of_letters(self.pred)]}

    def _data(self) -> Certificate:
        data: Certificate = {
            "rule": self.rule,
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
        return data


def plain(part: Any) -> Any:
    """Returns a node as a list of its kind and its fields, as ["Number", "1/2", 0, 0]; tuples as lists.

    A relation that says what is greater is turned round; brackets are one field behind their items; a quantity has the
    size of its unit and the powers of the basic units in it, as letters; functions are called as in sympy.
    """
    match part:
        case Symbol(name=name):
            return ["Symbol", name]
        case Listing(items=items, alternatives=alternatives):
            return ["Listing", plain(items), alternatives]
        case Ratio(parts=parts, clock=clock):
            return ["Ratio", plain(parts), clock]
        case Brackets(opening=opening, closing=closing, items=items):
            return ["Brackets", plain(items), opening + closing]
        case Call(name=name, args=args):
            return ["Call", _SYMPY_NAMES.get(name, name), plain(args)]
        case Quantity(value=value, unit=unit):
            if no_unit(unit):
                return ["Quantity", plain(value), "", "1", []]
            unknown = " ".join(word.removesuffix("s") for word in unit.lower().split())
            size, basic = measure(unit) or (1, ((unknown, 1),))
            powers = [[_UNIT_LETTERS.get(name, name), power] for name, power in basic if name != "radian"]
            return ["Quantity", plain(value), unit, str(size), powers]
        case Relation(sides=sides, operators=operators) if set(operators) <= _TURNED.keys():
            return ["Relation", plain(sides[::-1]), [_TURNED[operator] for operator in operators[::-1]]]
        case Node():
            return [type(part).__name__, *[plain(getattr(part, name)) for name in part.__slots__]]
        case tuple():
            return [plain(one) for one in part]
    return str(part) if isinstance(part, Fraction) else part


def said_of_letters(answer: Node | str) -> dict[str, str]:
    """Returns what an answer says that its letters stand for, as {"k": "integer"}."""
    parts = walk(answer) if isinstance(answer, Node) else ()
    return {part.name: part.numbers for part in parts if isinstance(part, Symbol) and part.numbers}


def _plain_point(point: Point) -> dict[str, list[str]]:
    """The values of letters, each with its real and its imaginary part."""
    parts = {name: value if isinstance(value, tuple) else (value, 0) for name, value in point.items()}
    return {name: [str(real), str(imaginary)] for name, (real, imaginary) in parts.items()}
