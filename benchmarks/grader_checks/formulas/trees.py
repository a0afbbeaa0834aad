"""Formulas as trees, with constructors that simplify terms such as `1·x` and `x + 0`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Number:
    """An exact rational number."""

    value: Fraction


@dataclass(frozen=True, slots=True)
class Letter:
    """A letter with its name, such as `n` or `theta`."""

    name: str


@dataclass(frozen=True, slots=True)
class Op:
    """An operation or function with its arguments. `values.value` handles all names."""

    name: str
    args: tuple[Tree, ...] = ()


Tree: TypeAlias = Number | Letter | Op
Path: TypeAlias = tuple[int, ...]
"""The place of a part in a tree: the index of the argument at each level."""

PI = Op("pi")


def number(value: int | Fraction) -> Number:
    return Number(Fraction(value))


ZERO, ONE, TWO = number(0), number(1), number(2)


def as_tree(value: Tree | int | Fraction) -> Tree:
    """Convert a number to a tree. A tree is returned unchanged."""
    return number(value) if isinstance(value, int | Fraction) else value


def add(*terms: Tree | int) -> Tree:
    """Return a sum. Sums inside it are merged, and zeros are left out."""
    flat: list[Tree] = []
    for term in map(as_tree, terms):
        flat += term.args if isinstance(term, Op) and term.name == "add" else (term,)
    flat = [term for term in flat if term != ZERO]
    if not flat:
        return ZERO
    return flat[0] if len(flat) == 1 else Op("add", tuple(flat))


def mul(*factors: Tree | int) -> Tree:
    """Return a product. Products inside it are merged, and ones are left out."""
    flat: list[Tree] = []
    for factor in map(as_tree, factors):
        flat += factor.args if isinstance(factor, Op) and factor.name == "mul" else (factor,)
    if ZERO in flat:
        return ZERO
    flat = [factor for factor in flat if factor != ONE]
    if not flat:
        return ONE
    return flat[0] if len(flat) == 1 else Op("mul", tuple(flat))


def neg(tree: Tree | int) -> Tree:
    tree = as_tree(tree)
    if isinstance(tree, Number):
        return Number(-tree.value)
    return tree.args[0] if isinstance(tree, Op) and tree.name == "neg" else Op("neg", (tree,))


def sub(a: Tree | int, b: Tree | int) -> Tree:
    return add(a, neg(b))


def div(over: Tree | int, under: Tree | int) -> Tree:
    over, under = as_tree(over), as_tree(under)
    return over if under == ONE else Op("div", (over, under))


def power(base: Tree | int, exponent: Tree | int) -> Tree:
    base, exponent = as_tree(base), as_tree(exponent)
    return base if exponent == ONE else Op("pow", (base, exponent))


def call(name: str, *args: Tree | int) -> Tree:
    """Return a call of a function, such as `sin`, `floor`, `binom` or `factorial`."""
    return Op(name, tuple(map(as_tree, args)))


def is_op(tree: Tree, *names: str) -> bool:
    return isinstance(tree, Op) and tree.name in names


def parts(tree: Tree, path: Path = ()) -> Iterator[tuple[Path, Tree]]:
    """Yield all parts of a tree with their places, the tree itself first."""
    yield path, tree
    if isinstance(tree, Op):
        for index, arg in enumerate(tree.args):
            yield from parts(arg, (*path, index))


def replaced(tree: Tree, path: Path, part: Tree) -> Tree:
    """Return the tree with the part at one place replaced."""
    if not path:
        return part
    assert isinstance(tree, Op)
    args = list(tree.args)
    args[path[0]] = replaced(args[path[0]], path[1:], part)
    return rebuilt(tree.name, args)


def rebuilt(name: str, args: list[Tree]) -> Tree:
    """Return an operation by its name, simplified by its constructor."""
    match name:
        case "add":
            return add(*args)
        case "mul":
            return mul(*args)
        case "neg":
            return neg(args[0])
        case "div":
            return div(*args)
        case "pow":
            return power(*args)
    return Op(name, tuple(args))


def with_letter(tree: Tree, name: str, new: Tree) -> Tree:
    """Return the formula with a letter replaced everywhere."""
    if isinstance(tree, Op):
        return rebuilt(tree.name, [with_letter(arg, name, new) for arg in tree.args])
    return new if tree == Letter(name) else tree


def letters_of(tree: Tree) -> set[str]:
    """Return the names of the letters in a tree."""
    return {part.name for _, part in parts(tree) if isinstance(part, Letter)}


def size(tree: Tree) -> int:
    """Return the number of numbers, letters and operations in a tree."""
    return sum(1 for _ in parts(tree))
