"""Certificates: how it was decided that two answers are equal, as data that `verify` checks again."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

from rstar2.eval.grader.parse.nodes import Node

Certificate: TypeAlias = dict[str, Any]
"""A fact as JSON-serialisable data: `rule`, `gold` and `pred`, and `because`, the facts that it follows from."""


@dataclass(frozen=True, slots=True)
class Fact:
    """That two answers, or two parts of them, are equal, and why."""

    rule: str
    gold: Node
    pred: Node
    because: tuple[Fact, ...] = ()
    """Facts about parts of the two, or about what they were rewritten as."""

    def certificate(self) -> Certificate:
        """Returns the fact, with all that it follows from, as plain data."""
        return {
            "rule": self.rule,
            "gold": plain(self.gold),
            "pred": plain(self.pred),
            "because": [fact.certificate() for fact in self.because],
        }


def plain(part: Any) -> Any:
    """Returns a node as a list of its kind and its fields, as ["Number", "1/2", 0, 0]; tuples as lists."""
    if isinstance(part, Node):
        return [type(part).__name__, *(plain(getattr(part, name)) for name in part.__slots__)]
    if isinstance(part, tuple):
        return [plain(one) for one in part]
    return str(part) if isinstance(part, Fraction) else part
