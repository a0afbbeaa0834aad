"""Formulas that are quotients of polynomials, for which random points prove equality up to a stated error.

Two polynomials of degree d that differ agree at a point drawn from S^n with a probability of at most d / |S|
(Schwartz 1980, Zippel 1979).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rstar2.eval.grader.parse.nodes import Based, Call, Node, Number, Power, Product, Quotient, Sum, Symbol
from rstar2.eval.grader.values.functions import MAX_DEGREE

ERROR = 1e-12
"""The largest probability of calling two different formulas equal."""
_LARGEST_BITS, _SMALLEST_BITS = 60, 12
"""The size of the whole numbers that letters are set to."""
_VALUE_BITS = 20_000
"""About the size up to which a formula of high degree is computed exactly."""
_MAX_POINTS = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """How many points of which size decide between two formulas."""

    bits: int
    points: int


def degree(node: Node) -> int | None:
    """Returns a bound on the degrees of numerator and denominator of one fraction; None if it is not rational.

    π and e count as letters: π is transcendental, and no rational relation between π and e is known.
    """
    match node:
        case Number() | Based():
            return 0
        case Symbol(name=name):
            return None if name in {"i", "infinity", "dots", "none"} else 1
        case Sum(terms=parts) | Product(factors=parts):
            return _total(parts)
        case Quotient(over=over, under=under):
            return _total((over, under))
        case Power(base=base, exponent=Number(value=exponent)) if exponent.denominator == 1:
            inner = degree(base)
            return None if inner is None else inner * abs(int(exponent))
        case Call(name="binom", args=(top, Number(value=bottom))) if bottom.denominator == 1:
            inner = degree(top)
            return None if inner is None or not 0 <= bottom <= MAX_DEGREE else inner * int(bottom)
    return None


def _total(parts: tuple[Node, ...]) -> int | None:
    degrees = [degree(part) for part in parts]
    known = [one for one in degrees if one is not None]
    return sum(known) if len(known) == len(degrees) else None


def plan(a: Node, b: Node) -> Plan | None:
    """Returns how to tell two formulas apart with an error below `ERROR`; None if they are not rational, or too large.

    With n points of b bits and a difference of degree d the error is at most (d / 2^b)^n.
    """
    one, other = degree(a), degree(b)
    if one is None or other is None:
        return None
    total = max(1, one + other)
    bits = min(_LARGEST_BITS, _VALUE_BITS // total)
    if bits < _SMALLEST_BITS or bits <= math.log2(total) + 1:
        return None
    points = math.ceil(math.log(1 / ERROR, 2) / (bits - math.log2(total)))
    return Plan(bits, max(2, points)) if points <= _MAX_POINTS else None
