"""Comparing several answers with several: in order, or in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from rstar2.eval.grader.compare.guarded_numbers import NoValue
from rstar2.eval.grader.parse.nodes import Node

MAX_ITEMS = 50
"""Lists with more members that are written differently are compared in order only, or not verified."""

Same: TypeAlias = Callable[[Node, Node], bool]
"""Whether two answers are equal; raises NoValue where that cannot be verified."""


def in_order(one: Sequence[Node], other: Sequence[Node], same: Same) -> bool:
    if len(one) != len(other):
        return False
    return all_same(one, other, same)


def all_same(one: Sequence[Node], other: Sequence[Node], same: Same) -> bool:
    """Whether all pairs are equal; one certain difference decides even where another pair is uncertain."""
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
        found = False
        for candidate in by:
            try:
                found = found or same(member, candidate)
            except NoValue as error:
                doubt = error
        if not found:
            if doubt:
                raise doubt
            return False
    return True
