"""The letters and the functions in an expression."""

from __future__ import annotations

from rstar2.eval.grader.parse.nodes import CONSTANTS, Call, Node, Series, Symbol, walk


def variables(node: Node) -> set[str]:
    """Returns the names of the free variables of an expression."""
    parts = [part for part in walk(node) if isinstance(part, Symbol | Series)]
    bound = {part.index for part in parts if isinstance(part, Series)} | {"none"}
    return {part.name for part in parts if isinstance(part, Symbol)} - CONSTANTS - bound


def functions(node: Node) -> set[str]:
    """Returns the names of the known functions and postfix signs in an expression."""
    return {part.name for part in walk(node) if isinstance(part, Call)}
