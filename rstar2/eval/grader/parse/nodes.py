"""What an answer is once it is read: plain values, nothing that can run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Number:
    """An exact number."""

    value: Fraction
    digits: int = 0
    """Significant digits, where it was written with a decimal point; else 0."""
    places: int = 0
    """Digits after the decimal point."""


@dataclass(frozen=True, slots=True)
class Symbol:
    """A variable, or a named constant where the name is one of `CONSTANTS`."""

    name: str
    bound: bool = field(default=False, compare=False)
    """Whether the answer says that it stands for every whole number."""


CONSTANTS = frozenset({"pi", "e", "i", "infinity"})
UNKNOWN = "\\"
"""What the name of a symbol begins with that is a command nobody knows."""


@dataclass(frozen=True, slots=True)
class Sum:
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Product:
    factors: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Quotient:
    over: Node
    under: Node


@dataclass(frozen=True, slots=True)
class Power:
    base: Node
    exponent: Node


@dataclass(frozen=True, slots=True)
class Call:
    """A function the evaluator knows; also the postfix signs `degree` and `percent`."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """A function or an indexed name nothing is known about, such as f(2), a_3 or an integral."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """A sum or product over an index that `body` uses; an integral; a limit, whose `high` is `none`."""

    kind: str
    """`sum`, `prod`, `int` or `lim`."""
    index: str
    low: Node
    high: Node
    body: Node


@dataclass(frozen=True, slots=True)
class PlusMinus:
    """left ± right, or left ∓ right where `flipped`; two values."""

    left: Node
    right: Node
    flipped: bool


@dataclass(frozen=True, slots=True)
class Matrix:
    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Brackets:
    """(a, b), [a, b), <a, b>: a tuple, a list or an interval; comparison decides which."""

    opening: str
    closing: str
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class SetOf:
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class NumberSet:
    """The reals R, integers Z, naturals N, rationals Q or complex numbers C."""

    name: str


@dataclass(frozen=True, slots=True)
class SetOperation:
    kind: str
    """`union`, `intersection` or `minus`."""
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Listing:
    """Several answers side by side, separated by commas, semicolons, `and` or `or`."""

    items: tuple[Node, ...]
    alternatives: bool = False
    """Whether an `or` stood between them."""


@dataclass(frozen=True, slots=True)
class Relation:
    """A chain such as a < b <= c: n sides and n - 1 operators of = != < <= > >= in notin ~."""

    sides: tuple[Node, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Based:
    """A numeral with its base written, such as 11_2."""

    value: int
    base: int
    digits: str


@dataclass(frozen=True, slots=True)
class Ratio:
    """a : b : c, or a time of day."""

    parts: tuple[Node, ...]
    clock: bool


@dataclass(frozen=True, slots=True)
class Residue:
    """A value modulo another: a class of congruent numbers, or the remainder of a division."""

    value: Node
    modulus: Node
    is_remainder: bool = False
    """Whether it was written as an operation, 17 \\bmod 5, rather than behind a congruence, 2 \\pmod 5."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A value with a unit, in the words that stood there."""

    value: Node
    unit: str


@dataclass(frozen=True, slots=True)
class Text:
    """Words, or what the grammar could not read."""

    words: tuple[str, ...]
    plain: bool
    """Whether it is nothing but words, so that differing from it means being wrong."""


Node: TypeAlias = (
    Number
    | Symbol
    | Sum
    | Product
    | Quotient
    | Power
    | Call
    | Apply
    | Series
    | PlusMinus
    | Matrix
    | Brackets
    | SetOf
    | NumberSet
    | SetOperation
    | Listing
    | Relation
    | Based
    | Ratio
    | Residue
    | Quantity
    | Text
)


def number(value: int) -> Number:
    """An exact integer."""
    return Number(Fraction(value))


def negative(node: Node) -> Node:
    """The node with its sign changed; a number keeps being one."""
    if isinstance(node, Number):
        return Number(-node.value, node.digits, node.places)
    return Product((number(-1), node))


def renamed(node: Any, names: Mapping[str, Symbol]) -> Any:
    """The node, or the tuple of nodes, with symbols replaced, all at once."""
    if isinstance(node, Symbol):
        return names.get(node.name, node)
    if isinstance(node, tuple):
        return tuple(renamed(part, names) for part in node)
    if not hasattr(node, "__dataclass_fields__"):
        return node
    return replace(node, **{part.name: renamed(getattr(node, part.name), names) for part in fields(node)})


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    pending: list[object] = [node]
    while pending:
        here = pending.pop()
        if isinstance(here, tuple):
            pending.extend(here)
        elif hasattr(here, "__dataclass_fields__"):
            yield here  # type: ignore[misc]
            pending.extend(getattr(here, part.name) for part in fields(here))  # type: ignore[arg-type]
