"""What an answer is once it is read: plain values, nothing that can run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeVar


class Node:
    """Part of an answer; each kind is a frozen dataclass whose fields are nodes, tuples of them, or plain values."""

    __slots__: tuple[str, ...] = ()


AnyNode = TypeVar("AnyNode", bound=Node)


@dataclass(frozen=True, slots=True)
class Number(Node):
    """An exact number."""

    value: Fraction
    digits: int = 0
    """Significant digits if it was written with a decimal point, else 0."""
    places: int = 0
    """Digits after the decimal point."""


@dataclass(frozen=True, slots=True)
class Symbol(Node):
    """A variable, or a constant if the name is one of `CONSTANTS`."""

    name: str
    numbers: str = field(default="", compare=False)
    """What the answer says that it is: `integer`, `positive integer`, `real`…; empty if it says nothing."""


CONSTANTS = frozenset({"pi", "e", "i", "infinity"})
UNKNOWN = "\\"
"""What the name of a symbol begins with that is a command nobody knows."""


@dataclass(frozen=True, slots=True)
class Sum(Node):
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Product(Node):
    factors: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Quotient(Node):
    over: Node
    under: Node


@dataclass(frozen=True, slots=True)
class Power(Node):
    base: Node
    exponent: Node


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function the evaluator knows; also the postfix signs `degree` and `percent`."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Apply(Node):
    """A function or an indexed name nothing is known about, such as f(2), a_3 or an integral."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Series(Node):
    """A sum or product over an index that `body` uses; an integral; a limit, whose `high` is `none`."""

    kind: str
    """`sum`, `prod`, `int` or `lim`."""
    index: str
    low: Node
    high: Node
    body: Node


@dataclass(frozen=True, slots=True)
class PlusMinus(Node):
    """left ± right, or left ∓ right where `flipped`; two values."""

    left: Node
    right: Node
    flipped: bool


@dataclass(frozen=True, slots=True)
class Matrix(Node):
    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Brackets(Node):
    """(a, b), [a, b), <a, b>: a tuple, a list or an interval; comparison decides which."""

    opening: str
    closing: str
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class SetOf(Node):
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class NumberSet(Node):
    """The reals R, integers Z, naturals N, rationals Q or complex numbers C."""

    name: str


@dataclass(frozen=True, slots=True)
class SetOperation(Node):
    kind: str
    """`union`, `intersection` or `minus`."""
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Listing(Node):
    """Several answers side by side, separated by commas, semicolons, `and` or `or`."""

    items: tuple[Node, ...]
    alternatives: bool = False
    """Whether an `or` stood between them."""
    together: bool = field(default=False, compare=False)
    """Whether an `and` stood between them."""


@dataclass(frozen=True, slots=True)
class Relation(Node):
    """A chain such as a < b <= c: n sides and n - 1 operators of = != < <= > >= in notin ~."""

    sides: tuple[Node, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Based(Node):
    """A numeral with its base written, such as 11_2."""

    value: int
    base: int
    digits: str


@dataclass(frozen=True, slots=True)
class Ratio(Node):
    """a : b : c, or a time of day."""

    parts: tuple[Node, ...]
    clock: bool
    worded: bool = field(default=False, compare=False)
    """Whether it was written as 3 to 2, which may also be a range."""


@dataclass(frozen=True, slots=True)
class Residue(Node):
    """A value modulo another: a class of congruent numbers, or the remainder of a division."""

    value: Node
    modulus: Node
    is_remainder: bool = False
    """Whether it was written as an operation, 17 \\bmod 5, rather than behind a congruence, 2 \\pmod 5."""


@dataclass(frozen=True, slots=True)
class Quantity(Node):
    """A value with a unit, in the words that stood there."""

    value: Node
    unit: str


@dataclass(frozen=True, slots=True)
class Text(Node):
    """Words, or what the grammar could not read."""

    words: tuple[str, ...]
    plain: bool
    """Whether it is nothing but words, so that differing from it means being wrong."""


def number(value: int) -> Number:
    """An exact integer."""
    return Number(Fraction(value))


def negative(node: Node) -> Node:
    """The node with its sign changed; a number keeps being one."""
    if isinstance(node, Number):
        return Number(-node.value, node.digits, node.places)
    return Product((number(-1), node))


def is_unknown(node: Node) -> bool:
    """Whether it is a variable, an indexed name or an unknown function, and no constant."""
    return isinstance(node, Apply) or (isinstance(node, Symbol) and node.name not in CONSTANTS)


def renamed(node: AnyNode, names: Mapping[str, str]) -> AnyNode:
    """The node with symbols renamed, all at once."""
    if isinstance(node, Symbol):
        return replace(node, name=names.get(node.name, node.name))
    return with_parts(node, lambda part: renamed(part, names))


def replaced(node: AnyNode, parts: Mapping[Node, Node]) -> AnyNode:
    """The node with parts below it replaced, all at once."""
    return with_parts(node, lambda part: parts[part] if part in parts else replaced(part, parts))


def with_parts(node: AnyNode, changed: Callable[[Node], Node]) -> AnyNode:
    """The node with each node directly below it replaced, in the order in which they stand."""
    parts = {name: getattr(node, name) for name in node.__slots__}
    new = {name: _changed(part, changed) for name, part in parts.items()}
    return node if all(new[name] is part for name, part in parts.items()) else replace(node, **new)  # type: ignore[type-var]


def _changed(part: Any, changed: Callable[[Node], Node]) -> Any:
    if isinstance(part, Node):
        return changed(part)
    if not isinstance(part, tuple):
        return part
    new = tuple(_changed(one, changed) for one in part)
    return part if all(one is other for one, other in zip(part, new, strict=True)) else new


def walk(node: Node) -> Iterator[Node]:
    """The node and everything below it."""
    pending: list[Any] = [node]
    while pending:
        here = pending.pop()
        if isinstance(here, tuple):
            pending.extend(here)
        elif isinstance(here, Node):
            yield here
            pending.extend([getattr(here, name) for name in here.__slots__])
