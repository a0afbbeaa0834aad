"""Compares two quotients of polynomials at random points. If the two quotients agree at all points, they are equal,
with a known probability of error.

Two different polynomials of degree d in n letters agree at a random point of S^n with a probability of at most d / |S|
(Schwartz 1980, Zippel 1979).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rstar2.eval.grader.parse.nodes import Based, Call, Node, Number, Power, Product, Quotient, Sum, Symbol
from rstar2.eval.grader.values.functions import MAX_DEGREE

ERROR = 1e-12
"""Maximum probability that two different formulas are found equal."""
_LARGEST_BITS, _SMALLEST_BITS = 60, 12
"""Maximum and minimum size, in bits, of the integers that are the values of letters."""
_VALUE_BITS = 20_000
"""A formula of high degree is computed exactly only if its value has at most about this many bits."""
_MAX_POINTS = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """The test that decides whether two formulas are equal."""

    bits: int
    """The size, in bits, of the integers that are the values of letters."""
    points: int
    """The number of points at which the formulas are compared."""


def degree(node: Node) -> int | None:
    """Returns an upper bound on the degrees of the numerator and of the denominator if an expression is written as one
    fraction. π and e count as letters: π is transcendental, and no rational relation between π and e is known.

    Returns None if the expression is not a quotient of polynomials.
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
    rational = [one for one in degrees if one is not None]
    return sum(rational) if len(rational) == len(degrees) else None


def plan(a: Node, b: Node) -> Plan | None:
    """Returns a test that distinguishes two formulas. The probability of an error is below `ERROR`.

    With n points of b bits, and a difference of degree d, the probability of an error is at most (d / 2^b)^n. Returns
    None if a formula is not a quotient of polynomials, or if the degrees are too high.
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
