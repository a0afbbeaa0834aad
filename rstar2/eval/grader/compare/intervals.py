"""Sets of real numbers that consist of intervals and points, and the answers that describe such sets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise
from typing import Any

from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, is_unknown, negative, number
from rstar2.eval.grader.values.guarded_numbers import NoValue, current_budget
from rstar2.eval.grader.values.numbers import infinite, real_value

_LARGEST_END = 10**30
_PIECE = 5
"""The cost of sorting one piece of a set of numbers, in units of `guarded_numbers.BUDGET`."""
FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}
INFINITY = nodes.Symbol("infinity")


@dataclass(frozen=True, slots=True)
class Piece:
    """An interval of real numbers, or a single point if both ends are the same."""

    low: Any
    high: Any
    has_low: bool
    has_high: bool

    @property
    def empty(self) -> bool:
        """Whether the interval contains no number."""
        return bool(self.low > self.high) or (self.low == self.high and not (self.has_low and self.has_high))


Region = tuple[Piece, ...]
"""Disjoint pieces in increasing order, with gaps between them."""


def same_region(a: Region, b: Region) -> bool:
    """Whether two regions have the same ends."""
    if len(a) != len(b):
        return False
    return all(
        (one.has_low, one.has_high) == (other.has_low, other.has_high)
        and _close(one.low, other.low)
        and _close(one.high, other.high)
        for one, other in zip(a, b, strict=True)
    )


def is_region(node: Node) -> bool:
    """Whether a node is certainly a set of numbers, so that it cannot be a point or a list."""
    match node:
        case nodes.Brackets(opening=opening, closing=closing, items=items):
            return len(items) == 2 and (opening, closing) in {("(", "]"), ("[", ")")}
        case nodes.SetOperation() | nodes.NumberSet():
            return True
        case nodes.Relation(sides=sides, operators=("in",)):
            return is_region(sides[1]) or isinstance(sides[1], nodes.Brackets)
        case nodes.Relation(operators=operators):
            return any(operator in FLIPPED and operator != "=" for operator in operators)
        case nodes.Listing(items=items):
            return all(is_region(item) for item in items)
    return False


def is_backwards(node: Node) -> bool:
    """Whether a node is a pair such as (5, 2) or (2, 2): a point or a list, since the interval would be empty."""
    if not isinstance(node, nodes.Brackets) or len(node.items) != 2:
        return False
    try:
        return _between(node).empty
    except NoValue:
        return False


def may_be_point(node: Node) -> bool:
    """Whether a node is a pair such as (3, 5), which may be a point or an interval."""
    return (
        isinstance(node, nodes.Brackets)
        and (node.opening, node.closing) == ("(", ")")
        and not any(infinite(end) for end in node.items)
    )


def region_of(node: Node) -> tuple[Node | None, Region]:
    """Returns the variable, if the node names one, and the set of numbers that the node describes.

    Raises NoValue if the node does not describe a set, or has ends that are not numbers.
    """
    match node:
        case nodes.Brackets(opening="(" | "[", closing=")" | "]", items=(_, _)):
            piece = _between(node)
            if piece.empty:
                raise NoValue("a pair that is not an interval")
            return None, _normal([piece])
        case nodes.NumberSet(name="R"):
            return None, _normal([_piece(negative(INFINITY), INFINITY, False, False)])
        case nodes.SetOf(items=items):
            return None, _normal([_piece(item, item, True, True) for item in items])
        case nodes.SetOperation(kind=kind, left=left, right=right):
            name, first = region_of(left)
            _, second = region_of(right)
            return name, _combined(kind, first, second)
        case nodes.Listing(items=items, alternatives=alternatives):
            return _several([region_of(item) for item in items], alternatives, node.together)
        case nodes.Relation():
            return _inequality(node)
    raise NoValue(f"{type(node).__name__} is not a set of numbers")


def _several(
    sets: list[tuple[Node | None, Region]], alternatives: bool, together: bool
) -> tuple[Node | None, Region]:
    """Combines several sets of numbers into one set: the intersection of bounds on a variable, or the union of
    intervals.

    Raises NoValue if the meaning is not clear, as in x < 3 and x > 5, or (0, 2) and (1, 3).
    """
    names = {name for name, _ in sets}
    if len(names) != 1:
        raise NoValue("several variables")
    (name,), regions = names, [region for _, region in sets]
    union, intersection = (reduce(partial(_combined, kind), regions) for kind in ("union", "intersection"))
    if alternatives or len(regions) == 1:
        return name, union
    if name is None and intersection and intersection != union:
        raise NoValue("intervals that overlap")
    if name is not None and together and not intersection:
        raise NoValue("bounds that exclude each other")
    return name, intersection or union


def _inequality(node: nodes.Relation) -> tuple[Node | None, Region]:
    sides, operators = node.sides, node.operators
    if operators == ("in",):
        return sides[0], region_of(sides[1])[1]
    if len(sides) == 2:
        left, right = sides
        if _is_name(left):
            return _solved(left, operators[0], right)
        if _is_name(right):
            return _solved(right, FLIPPED.get(operators[0], "?"), left)
    if len(sides) == 3 and _is_name(sides[1]):
        name, first = _solved(sides[1], FLIPPED.get(operators[0], "?"), sides[0])
        _, second = _solved(sides[1], operators[1], sides[2])
        return name, _combined("intersection", first, second)
    raise NoValue("an inequality that does not bound one variable")


def as_interval(node: Node) -> nodes.Brackets | None:
    """Returns the interval that a node describes. The node is an interval, or an inequality that bounds one variable.

    The ends of the interval may be expressions. Returns None for any other node.
    """
    match node:
        case nodes.Brackets(items=(_, _)):
            return node
        case nodes.Relation(
            sides=(low, name, high), operators=(("<" | "<=") as first, ("<" | "<=") as second)
        ) if _is_name(name):
            return nodes.Brackets("[" if first == "<=" else "(", "]" if second == "<=" else ")", (low, high))
        case nodes.Relation(sides=(left, right), operators=(operator,)) if operator in {"<", "<=", ">", ">="}:
            if not _is_name(left):
                left, right, operator = right, left, FLIPPED[operator]
            if _is_name(left) and operator.startswith("<"):
                return nodes.Brackets("(", "]" if operator == "<=" else ")", (negative(INFINITY), right))
            if _is_name(left):
                return nodes.Brackets("[" if operator == ">=" else "(", ")", (right, INFINITY))
    return None


def _is_name(node: Node) -> bool:
    return is_unknown(node.args[0] if isinstance(node, nodes.Call) and node.name == "abs" else node)


def _solved(name: Node, operator: str, bound: Node) -> tuple[Node, Region]:
    """Returns the variable, and the set of its values that satisfy `name operator bound`.

    If the name is |x|, the relation is solved for x.
    """
    ends = {
        "<": (negative(INFINITY), bound, False, False),
        "<=": (negative(INFINITY), bound, False, True),
        ">": (bound, INFINITY, False, False),
        ">=": (bound, INFINITY, True, False),
        "=": (bound, bound, True, True),
    }
    if operator == "!=":
        region = _normal([_piece(*ends["<"]), _piece(*ends[">"])])
    elif operator in ends:
        region = _normal([_piece(*ends[operator])])
    else:
        raise NoValue(f"{operator} does not bound")
    if isinstance(name, nodes.Call):
        positive = _combined("intersection", region, (_piece(number(0), INFINITY, True, False),))
        mirrored = tuple(Piece(-one.high, -one.low, one.has_high, one.has_low) for one in positive)
        return name.args[0], _normal([*positive, *mirrored])
    return name, region


def _between(pair: nodes.Brackets) -> Piece:
    low, high = pair.items
    return _piece(low, high, pair.opening == "[", pair.closing == "]")


def _piece(low: Node, high: Node, has_low: bool, has_high: bool) -> Piece:
    bottom, top = real_value(low), real_value(high)
    return Piece(bottom, top, has_low and not infinite(low), has_high and not infinite(high))


def _normal(pieces: list[Piece]) -> Region:
    """Returns the pieces in increasing order. Empty pieces are left out, and pieces that touch are joined."""
    joined: list[Piece] = []
    current_budget().spend(_PIECE * len(pieces))
    for piece in sorted((one for one in pieces if not one.empty), key=lambda one: (one.low, not one.has_low)):
        last = joined[-1] if joined else None
        if last and (piece.low < last.high or (piece.low == last.high and (piece.has_low or last.has_high))):
            top = max(last.high, piece.high)
            has_top = any(one.has_high for one in (last, piece) if one.high == top)
            joined[-1] = Piece(last.low, top, last.has_low, has_top)
        else:
            joined.append(piece)
    return tuple(joined)


def _combined(kind: str, a: Region, b: Region) -> Region:
    if kind == "union":
        return _normal([*a, *b])
    other = _complement(b) if kind == "minus" else b
    return _normal([_overlap(one, two) for one in a for two in other])


def _overlap(a: Piece, b: Piece) -> Piece:
    low, high = max(a.low, b.low), min(a.high, b.high)
    has_low = all(one.has_low for one in (a, b) if one.low == low)
    return Piece(low, high, has_low, all(one.has_high for one in (a, b) if one.high == high))


def _complement(region: Region) -> Region:
    everything = _piece(negative(INFINITY), INFINITY, False, False)
    if not region:
        return (everything,)
    pieces = [Piece(everything.low, region[0].low, False, not region[0].has_low)]
    pieces += [Piece(a.high, b.low, not a.has_high, not b.has_low) for a, b in pairwise(region)]
    pieces.append(Piece(region[-1].high, everything.high, not region[-1].has_high, False))
    return _normal(pieces)


def _close(a: Any, b: Any) -> bool:
    """Whether two ends, computed to 40 digits, are the same.

    Raises NoValue if the two ends are too large to be distinguished.
    """
    size = max(abs(a), abs(b))
    if size < a.context.inf and size > _LARGEST_END:
        raise NoValue("ends of intervals that are too large to compare")
    return bool(a == b or (size < a.context.inf and abs(a - b) <= size * a.context.mpf(10) ** -36))
