"""Nodes, which represent a parsed answer as plain data that cannot be executed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, TypeVar


class Node:
    """A parsed answer or part of an answer.

    Subclasses are frozen dataclasses of nodes, tuples of nodes and plain values.
    """

    __slots__: tuple[str, ...] = ()


AnyNode = TypeVar("AnyNode", bound=Node)


@dataclass(frozen=True, slots=True)
class Number(Node):
    """An exact number."""

    value: Fraction
    digits: int = 0
    """The number of significant digits if the number was written with a decimal point, else 0."""
    places: int = 0
    """The number of digits after the decimal point."""


@dataclass(frozen=True, slots=True)
class Symbol(Node):
    """A variable, or a constant if `CONSTANTS` has its name."""

    name: str
    numbers: str = field(default="", compare=False)
    """The kind of numbers that the answer states for the symbol, such as `integer` or `positive real`; empty if the
    answer states no kind."""


CONSTANTS = frozenset({"pi", "e", "i", "infinity"})
UNKNOWN = "\\"
"""The first character of a symbol's name if the symbol stands for an unknown LaTeX command."""


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
    """A function that the evaluator knows. The postfix signs `degree` and `percent` are functions too."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Apply(Node):
    """An unknown function such as f(2), an indexed name such as a_3, or an integral that is not solved."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Series(Node):
    """A sum, a product, an integral or a limit over an index that `body` uses. In a limit, `high` is the symbol `none`,
    because a limit has no upper end."""

    kind: str
    """`sum`, `prod`, `int` or `lim`."""
    index: str
    low: Node
    high: Node
    body: Node


@dataclass(frozen=True, slots=True)
class PlusMinus(Node):
    """Two values: left ± right, or left ∓ right if `flipped`."""

    left: Node
    right: Node
    flipped: bool


@dataclass(frozen=True, slots=True)
class Matrix(Node):
    rows: tuple[tuple[Node, ...], ...]


@dataclass(frozen=True, slots=True)
class Brackets(Node):
    """(a, b), [a, b) or <a, b>: a tuple, a list or an interval. The code that compares answers decides whether a tuple,
    a list or an interval is meant."""

    opening: str
    closing: str
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class SetOf(Node):
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class NumberSet(Node):
    """The real numbers R, integers Z, natural numbers N, rational numbers Q or complex numbers C."""

    name: str


@dataclass(frozen=True, slots=True)
class SetOperation(Node):
    kind: str
    """`union`, `intersection` or `minus`."""
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Listing(Node):
    """Several answers, separated by commas, semicolons, `and` or `or`."""

    items: tuple[Node, ...]
    alternatives: bool = False
    """Whether an `or` separates two of the items."""
    together: bool = field(default=False, compare=False)
    """Whether an `and` separates two of the items."""


@dataclass(frozen=True, slots=True)
class Relation(Node):
    """A chain such as a < b <= c: n sides, and n - 1 of the operators = != < <= > >= in notin ~."""

    sides: tuple[Node, ...]
    operators: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Based(Node):
    """A numeral with an explicit base, such as 11_2."""

    value: int
    base: int
    digits: str


@dataclass(frozen=True, slots=True)
class Ratio(Node):
    """A ratio such as a : b : c, or a time of day."""

    parts: tuple[Node, ...]
    clock: bool
    worded: bool = field(default=False, compare=False)
    """Whether the ratio was written in words, as in `3 to 2`. A ratio in words may also be a range."""


@dataclass(frozen=True, slots=True)
class Residue(Node):
    """A value modulo another value: a class of congruent numbers, or the remainder of a division."""

    value: Node
    modulus: Node
    is_remainder: bool = False
    """Whether the residue is an operation, as in 17 \\bmod 5, rather than a class, as in x \\equiv 2 \\pmod 5."""


@dataclass(frozen=True, slots=True)
class Quantity(Node):
    """A value with a unit. The unit is written as in the answer."""

    value: Node
    unit: str


@dataclass(frozen=True, slots=True)
class Text(Node):
    """Words, or any other text that the grammar could not read."""

    words: tuple[str, ...]
    plain: bool
    """Whether the text consists of words only. An answer with other words is then wrong."""


def number(value: int) -> Number:
    """An exact integer."""
    return Number(Fraction(value))


def negative(node: Node) -> Node:
    """Returns the node with its sign changed; for a number, the result is a `Number`."""
    if isinstance(node, Number):
        return Number(-node.value, node.digits, node.places)
    return Product((number(-1), node))


def is_unknown(node: Node) -> bool:
    """Whether a node is a variable, an indexed name or an unknown function, rather than a constant."""
    return isinstance(node, Apply) or (isinstance(node, Symbol) and node.name not in CONSTANTS)


def renamed(node: AnyNode, names: Mapping[str, str]) -> AnyNode:
    """Returns the node with symbols renamed. All symbols are renamed at the same time."""
    if isinstance(node, Symbol):
        return replace(node, name=names.get(node.name, node.name))
    return with_parts(node, lambda part: renamed(part, names))


def replaced(node: AnyNode, parts: Mapping[Node, Node]) -> AnyNode:
    """Returns the node with parts below it replaced. All parts are replaced at the same time."""
    return with_parts(node, lambda part: parts[part] if part in parts else replaced(part, parts))


def with_parts(node: AnyNode, changed: Callable[[Node], Node]) -> AnyNode:
    """Returns the node with `changed` applied to each node directly below it, from left to right."""
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
    """Yields the node and all nodes below it, parents before children."""
    pending: list[Any] = [node]
    while pending:
        part = pending.pop()
        if isinstance(part, tuple):
            pending.extend(part)
        elif isinstance(part, Node):
            yield part
            pending.extend([getattr(part, name) for name in part.__slots__])
