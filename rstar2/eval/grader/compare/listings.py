"""Answers with several values: writes out ± and nested lists, and compares members in order or in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import TypeAlias

from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, negative, number, walk, with_parts
from rstar2.eval.grader.values.guarded_numbers import NoValue

MAX_ITEMS = 50
"""Maximum number of differing members for which lists are compared in any order. If more members differ, the lists are
compared only in the same order."""
MAX_SIGNS = 4
"""Maximum number of independent ± in an answer. An answer with more independent ± is not verified."""

Same: TypeAlias = Callable[[Node, Node], bool]
"""A function that says whether two answers are equal. The function raises NoValue if equality cannot be verified."""


def in_order(one: Sequence[Node], other: Sequence[Node], same: Same) -> bool:
    """Whether both sequences have equal members in the same order.

    If one pair of members differs, the result is False, even if other pairs cannot be verified. Raises NoValue if no
    pair is known to differ and some pair cannot be verified.
    """
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
    """Whether both sequences have the same members, in any order. Repetitions of a member are ignored.

    Raises NoValue if it cannot be verified whether the members are the same.
    """
    unmatched, other_unmatched = (
        _without(members, others) for members, others in ((one, other), (other, one))
    )
    if max(len(unmatched), len(other_unmatched)) > MAX_ITEMS:
        if in_order(one, other, same):
            return True
        raise NoValue("lists that are too long to compare in any order")
    return _all_among(unmatched, other, same) and _all_among(other_unmatched, one, same)


def _without(members: Sequence[Node], others: Sequence[Node]) -> list[Node]:
    """Returns the members that `others` does not contain in the same form."""
    other_forms = set(others)
    return [member for member in members if member not in other_forms]


def _all_among(members: Sequence[Node], others: Sequence[Node], same: Same) -> bool:
    """Whether each member equals a member of `others`."""
    doubt: NoValue | None = None
    for member in members:
        matched = False
        for candidate in others:
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
    """Returns the answer with ± written out, nested lists flattened, and (x, y) = (1, 2) as x = 1, y = 2."""
    match node:
        case nodes.Relation(
            sides=(nodes.Brackets(items=names), nodes.Brackets(items=values)), operators=("=",)
        ) if len(names) == len(values) and not any(isinstance(part, nodes.PlusMinus) for part in walk(node)):
            pairs = zip(names, values, strict=True)
            node = nodes.Listing(tuple(nodes.Relation(pair, ("=",)) for pair in pairs))
    if isinstance(node, nodes.SetOf):
        return nodes.SetOf(tuple(part for item in node.items for part in _flat_parts(item)))
    items = node.items if isinstance(node, nodes.Listing) else (node,)
    parts = [part for item in items for part in _flat_parts(item)]
    if len(parts) == 1:
        return parts[0]
    flat_items = tuple(parts)
    return replace(node, items=flat_items) if isinstance(node, nodes.Listing) else nodes.Listing(flat_items)


def has_open_signs(node: Node) -> bool:
    """Whether an answer has a tuple with several ±, which may stand for the same sign or for independent signs."""
    return any(
        isinstance(part, nodes.Brackets) and sum(isinstance(one, nodes.PlusMinus) for one in walk(part)) > 1
        for part in walk(node)
    )


def _flat_parts(node: Node) -> list[Node]:
    match node:
        case nodes.Listing(items=items):
            return [part for item in items for part in _flat_parts(item)]
        case nodes.Relation(sides=(name, nodes.Listing(items=values)), operators=("=",)):
            return [part for value in values for part in _flat_parts(nodes.Relation((name, value), ("=",)))]
        case nodes.SetOf():
            return [flattened(node)]
        case nodes.SetOperation(kind="union"):
            left, right = flattened(node.left), flattened(node.right)
            if isinstance(left, nodes.SetOf) and isinstance(right, nodes.SetOf):
                return [nodes.SetOf((*left.items, *right.items))]
    return _with_each_sign(node)


def _with_each_sign(node: Node) -> list[Node]:
    """Returns one node for each choice of signs for the ± in a node.

    All ± of a node stand for the same sign if one of them is ∓, or if the node is a tuple such as (1 ± √2, 3 ± √2). The
    result then has two nodes. In any other node, the signs are independent: (±1, ±2) are four points.
    """
    signed = [part for part in walk(node) if isinstance(part, nodes.PlusMinus)]
    if not signed:
        return [node]
    same_sign = len(signed) == 1 or any(part.flipped for part in signed)
    if isinstance(node, nodes.Brackets):
        same_sign = same_sign or any(part.left != number(0) for part in signed)
    if not same_sign and len(signed) > MAX_SIGNS:
        raise NoValue("too many ± in one answer")
    # A single sign is repeated for all ±. Signs beyond the number of ± are not used.
    choices = product((1, -1), repeat=1 if same_sign else len(signed))
    return [_with_signs(node, list(choice) * len(signed)) for choice in choices]


def _with_signs(node: Node, signs: list[int]) -> Node:
    """Replaces the ± in a node, from left to right, by the signs in `signs`."""
    if not isinstance(node, nodes.PlusMinus):
        return with_parts(node, lambda part: _with_signs(part, signs))
    left = _with_signs(node.left, signs)
    sign = signs.pop(0) * (-1 if node.flipped else 1)
    right = _with_signs(node.right, signs)
    return nodes.Sum((left, right if sign > 0 else negative(right)))
