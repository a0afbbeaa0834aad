"""Several answers at once: ± and nested lists written out, members compared in order or in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeAlias

from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, negative, number, walk, with_parts
from rstar2.eval.grader.values.guarded_numbers import NoValue

MAX_ITEMS = 50
"""Lists with more members that are written differently are compared in order only, or not verified."""
MAX_SIGNS = 4
"""Answers with more independent ± are not verified."""

Same: TypeAlias = Callable[[Node, Node], bool]
"""Whether two answers are equal; raises NoValue if that cannot be verified."""


def in_order(one: Sequence[Node], other: Sequence[Node], same: Same) -> bool:
    """Whether all pairs are equal; one certain difference decides even if another pair is uncertain."""
    if len(one) != len(other):
        return False
    doubt: NoValue | None = None
    for left, right in zip(one, other, strict=True):
        try:
            if not same(left, right):
                return False
        except NoValue as error:
            doubt = error
    if doubt:
        raise doubt
    return True


def unordered(one: Sequence[Node], other: Sequence[Node], same: Same) -> bool:
    """Whether both have the same members, however often and in whatever order they stand there."""
    rest, other_rest = (_without(members, by) for members, by in ((one, other), (other, one)))
    if max(len(rest), len(other_rest)) > MAX_ITEMS:
        if in_order(one, other, same):
            return True
        raise NoValue("lists too long to compare in any order")
    return _covered(rest, other, same) and _covered(other_rest, one, same)


def _without(members: Sequence[Node], by: Sequence[Node]) -> list[Node]:
    """The members that are not written alike on the other side."""
    known = set(by)
    return [member for member in members if member not in known]


def _covered(members: Sequence[Node], by: Sequence[Node], same: Same) -> bool:
    doubt: NoValue | None = None
    for member in members:
        matched = False
        for candidate in by:
            try:
                matched = matched or same(member, candidate)
            except NoValue as error:
                doubt = error
        if not matched:
            if doubt:
                raise doubt
            return False
    return True


def flattened(node: Node) -> Node:
    """The answer with ± written out, lists in lists opened, and (x, y) = (1, 2) as x = 1, y = 2."""
    match node:
        case nodes.Relation(
            sides=(nodes.Brackets(items=names), nodes.Brackets(items=values)), operators=("=",)
        ) if len(names) == len(values) and not any(isinstance(part, nodes.PlusMinus) for part in walk(node)):
            pairs = zip(names, values, strict=True)
            node = nodes.Listing(tuple(nodes.Relation(pair, ("=",)) for pair in pairs))
    if isinstance(node, nodes.SetOf):
        return nodes.SetOf(tuple(part for item in node.items for part in _opened(item)))
    items = node.items if isinstance(node, nodes.Listing) else (node,)
    parts = [part for item in items for part in _opened(item)]
    if len(parts) == 1:
        return parts[0]
    opened = tuple(parts)
    return replace(node, items=opened) if isinstance(node, nodes.Listing) else nodes.Listing(opened)


def has_open_signs(node: Node) -> bool:
    """Whether it has a tuple with several ±, of which readers may think that they belong together or do not."""
    return any(
        isinstance(part, nodes.Brackets) and sum(isinstance(one, nodes.PlusMinus) for one in walk(part)) > 1
        for part in walk(node)
    )


def _opened(node: Node) -> list[Node]:
    match node:
        case nodes.Listing(items=items):
            return [part for item in items for part in _opened(item)]
        case nodes.Relation(sides=(name, nodes.Listing(items=values)), operators=("=",)):
            return [part for value in values for part in _opened(nodes.Relation((name, value), ("=",)))]
        case nodes.SetOf():
            return [flattened(node)]
        case nodes.SetOperation(kind="union"):
            left, right = flattened(node.left), flattened(node.right)
            if isinstance(left, nodes.SetOf) and isinstance(right, nodes.SetOf):
                return [nodes.SetOf((*left.items, *right.items))]
    return _with_each_sign(node)


def _with_each_sign(node: Node) -> list[Node]:
    """One node for every choice of signs; one for each of the two signs if they belong together.

    They do if a ∓ says so, and in (1 ± √2, 3 ± √2), whose coordinates are computed from one another; but (±1, ±2) are
    four points.
    """
    signed = [part for part in walk(node) if isinstance(part, nodes.PlusMinus)]
    if not signed:
        return [node]
    together = len(signed) == 1 or any(part.flipped for part in signed)
    if isinstance(node, nodes.Brackets):
        together = together or any(part.left != number(0) for part in signed)
    if not together and len(signed) > MAX_SIGNS:
        raise NoValue("too many signs")
    # One sign for all is repeated; what is left over is not used.
    choices = product((1, -1), repeat=1 if together else len(signed))
    return [_with_signs(node, list(choice) * len(signed)) for choice in choices]


def _with_signs(node: Node, signs: list[int]) -> Node:
    """The node with its ± replaced, in the order in which they stand, by the signs."""
    if not isinstance(node, nodes.PlusMinus):
        return with_parts(node, lambda part: _with_signs(part, signs))
    left = _with_signs(node.left, signs)
    sign = signs.pop(0) * (-1 if node.flipped else 1)
    right = _with_signs(node.right, signs)
    return nodes.Sum((left, right if sign > 0 else negative(right)))
