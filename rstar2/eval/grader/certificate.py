"""Certificates: how it was decided that two answers are equal, as data that `verify` checks again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import Any, TypeAlias

from rstar2.eval.grader.parse.nodes import Node
from rstar2.eval.grader.values.equality import Identity

Certificate: TypeAlias = dict[str, Any]
"""A fact as JSON-serialisable data: `rule`, `gold` and `pred`, and `because`, the facts that it follows from.

Values that are equal have `points`, at which they agree, and `reading`: whether degree signs are π/180, percent signs
are hundredths, and `log` is natural.
"""
MAX_POINTS = 8
"""A certificate names no more points at which two expressions agree."""


@dataclass(frozen=True, slots=True)
class Fact:
    """That two answers, or two parts of them, are equal, and why."""

    rule: str
    gold: Node | str
    """What was read, or text that needs no reading."""
    pred: Node | str
    because: tuple[Fact, ...] = ()
    """Facts about parts of the two, or about what they were rewritten as."""
    identity: Identity | None = None
    """How the values of two expressions are known to be equal."""

    def certificate(self) -> Certificate:
        """Returns the fact, with all that it follows from, as plain data."""
        data = {
            "rule": self.rule,
            "gold": plain(self.gold),
            "pred": plain(self.pred),
            "because": [fact.certificate() for fact in self.because],
        }
        if self.identity is not None:
            identity = self.identity
            data["points"] = [_plain_point(point) for point in islice(identity.points, MAX_POINTS)]
            data["reading"] = [identity.degree, identity.percent, identity.natural_log]
        return data


def plain(part: Any) -> Any:
    """Returns a node as a list of its kind and its fields, as ["Number", "1/2", 0, 0]; tuples as lists."""
    if isinstance(part, Node):
        return [type(part).__name__, *[plain(getattr(part, name)) for name in part.__slots__]]
    if isinstance(part, tuple):
        return [plain(one) for one in part]
    return str(part) if isinstance(part, Fraction) else part


def _plain_point(point: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in point.items()}
