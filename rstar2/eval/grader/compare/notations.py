"""Notations that read as something else than what they may be meant as: 3 + 4j for 3 + 4i, A, B, D for ABD.

Nothing here makes an answer correct. What may be meant as the gold answer is only not called wrong.
"""

from __future__ import annotations

from collections.abc import Iterator

from rstar2.eval.grader.compare.listings import Same
from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, renamed, walk

_SAME_LETTERS = frozenset(map(frozenset, ("ij", "iI", "Cc", "CK", "Ck", "cK", "ck")))
"""Letters that are written for each other: for the imaginary unit, and for a constant of integration."""
_UNIT_VECTORS = frozenset({"i", "j", "k"})
_DECORATED = frozenset({"hat", "vec", "widehat", "overline", "overrightarrow"})
_VECTORS = nodes.Matrix | nodes.Brackets
_LISTS = nodes.Listing | nodes.SetOf


def may_be_meant(gold: Node, pred: Node, same: Same) -> bool:
    """Whether a prediction that differs from the gold answer may say the same in a notation read otherwise."""
    pairs = (gold, pred), (pred, gold)
    return any(_are_one_notation(*pair) for pair in pairs) or any(
        same(one, reading) for one, other in pairs for reading in _readings(one, other)
    )


def _are_one_notation(one: Node, other: Node) -> bool:
    """Whether the kinds of two answers alone leave it open that they are the same."""
    match one, other:
        case nodes.NumberSet(name=name), nodes.Symbol(name=letter):
            return name == letter  # a bold R
        case nodes.Product(factors=factors), nodes.Listing(items=items):
            letters = [part.name if isinstance(part, nodes.Symbol) else "" for part in factors + items]
            return "" not in letters and sorted(factors, key=str) == sorted(items, key=str)  # ABD and A, B, D
        case (nodes.Listing(items=points), nodes.Listing(items=(nodes.Relation(), *_) as items)):
            # (2, 3), (4, 5) and x = 2, y = 3 or x = 4, y = 5
            size, rest = divmod(len(items), len(points))
            return all(isinstance(point, _VECTORS) for point in points) and size > 1 and not rest
    if not isinstance(one, _VECTORS) or isinstance(other, _VECTORS | _LISTS | nodes.Relation):
        return False
    return any(_is_unit_vector(part) for part in walk(other))


def _is_unit_vector(part: Node) -> bool:
    if isinstance(part, nodes.Apply):
        return part.name in _DECORATED
    return isinstance(part, nodes.Symbol) and part.name in _UNIT_VECTORS


def _readings(one: Node, other: Node) -> Iterator[Node]:
    """What the second answer may be meant as beside the first."""
    wanted, given = _letters(one), _letters(other)
    missing, new = wanted.keys() - given.keys(), given.keys() - wanted.keys()
    if len(missing) == len(new) == 1:
        (name,), (letter,) = missing, new
        if {name, letter} in _SAME_LETTERS or wanted[name] or given[letter]:
            yield renamed(other, {letter: name})
    match other:
        case nodes.Listing(items=(nodes.Number(), nodes.Quotient(over=nodes.Number(), under=nodes.Number()))):
            yield nodes.Sum(other.items)  # 3 and 1/2


def _letters(node: Node) -> dict[str, str]:
    """The letters of an answer, constants among them, with what it says of them."""
    symbols = [part for part in walk(node) if isinstance(part, nodes.Symbol)]
    return {symbol.name: symbol.numbers for symbol in symbols}
