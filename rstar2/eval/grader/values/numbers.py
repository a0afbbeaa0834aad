"""Compares the values of two expressions at one point.

Rational numbers are exact. Other numbers are computed to 40 and to 80 digits. With more digits, a true difference
between two values keeps its size, but rounding noise becomes smaller.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from rstar2.eval.grader.parse.nodes import Apply, Node, Number, Product, Sum, Symbol, walk
from rstar2.eval.grader.values.evaluate import evaluate
from rstar2.eval.grader.values.guarded_numbers import (
    BUDGET,
    MAX_SPREAD_BITS,
    Budget,
    Notes,
    NoValue,
    Setting,
    SeveralValues,
    Value,
    mpmath_context,
)

ROUNDED_DIGITS = 7
"""A decimal with at least this many significant digits may be the rounded form of a value without a finite decimal
expansion."""
FLOAT_DIGITS = 15
"""A float that is not a short decimal is printed with at least this many significant digits."""
FLOAT_PLACES = 20
"""Upper bound on the difference between the decimal that Python prints for a float and any number that rounds to this
float. The bound is in units of the decimal's last digit."""
MAX_FLOAT = 10**300
LOW_DIGITS, HIGH_DIGITS = 40, 80
"""The number of digits in the first comparison of two values, and in the second comparison, which confirms the
first."""
_SMALL_BITS = 100
"""If no number in a computation has more than this many bits, 80 digits are enough to distinguish two values."""
_FOR_LARGE_VALUES = 0.6
"""After the first points, large values are compared only as long as more than this share of the budget is left."""
_MORE_DIGITS = (0, 150, 300, 600, 1200, 2400)
"""The possible numbers of additional digits for computations that contain numbers with more than `_SMALL_BITS` bits. A
computation needs three times as many additional digits as its largest number has. For example, √(10^100 + 1) differs
from 10^50 in its 101st digit, subtracting one from the other cancels these digits, and cos(10^-100) differs from 1 in
its 201st digit. There are few choices because each number of digits needs its own mpmath context."""


def infinite(node: Node) -> int:
    """Returns 1 for infinity, -1 for minus infinity, and 0 for any other node."""
    if node == Symbol("infinity"):
        return 1
    match node:
        case Product(factors=(Number(value=value), Symbol(name="infinity"))):
            return -1 if value < 0 else int(value > 0)
        case Sum(terms=(*terms, Symbol(name="infinity"))) if all(isinstance(one, Number) for one in terms):
            return 1
    return 0


def real_value(node: Node) -> Any:
    """Returns a constant as a real mpmath number, which may be infinite.

    Raises NoValue if the constant has letters, is complex or is too large.
    """
    value, context = constant_value(node), mpmath_context(LOW_DIGITS)
    if abs(context.im(value)) > context.mpf(10) ** -30:
        raise NoValue("a value that is not real")
    return context.re(value)


def constant_value(node: Node) -> Any:
    """Returns a constant as an mpmath number, which may be infinite.

    Raises NoValue if the constant has letters or cannot be computed.
    """
    context = mpmath_context(LOW_DIGITS)
    sign = infinite(node)
    if sign:
        return sign * context.inf
    if any(isinstance(part, Apply) for part in walk(node)):
        raise NoValue("an expression with unknown parts")
    setting = Setting({}, context)
    return +setting.inexact(evaluate(node, setting))


def whole_number(node: Node) -> int | None:
    """Returns the integer that a constant equals, or None if the constant is not an integer.

    Raises NoValue if the constant has letters, is not real, is infinite or is too large.
    """
    value = real_value(node)
    if not value.context.isfinite(value):
        raise NoValue("a value that is not finite")
    nearest = value.context.nint(value)
    return int(nearest) if abs(value - nearest) <= abs(value) * value.context.mpf(10) ** -30 else None


def agree(a: Node, b: Node, setting: Setting, *, briefly: bool = False) -> bool:
    """Whether two expressions have the same value at a point.

    Args:
        a: The first expression.
        b: The second expression.
        setting: The point, and how to evaluate expressions at it.
        briefly: Whether agreement to 25 digits is enough, because all digits were compared at other points.

    Raises:
        SeveralValues: If the values differ, but one of them depends on a choice, such as the choice of a complex root.
        NoValue: If an expression has no value at the point, or a value that is not real although only real values
            count.
    """
    setting = replace(setting, notes=Notes())
    first = _difference(a, b, setting)
    context, notes = setting.context, setting.notes
    if first is True and notes.bits:
        # An exact value may come from rounded parts: with 40 digits, ⌊3 - π/10^40⌋ is 3.
        first = context.zero, context.one, True
    if isinstance(first, bool):
        return first
    low, scale, is_real = first
    if setting.real and not is_real:
        raise NoValue("a value that is not real")
    if briefly and notes.bits <= _SMALL_BITS and low <= scale * context.mpf(10) ** -25:
        return True
    noise_of_largest = context.mpf(2) ** notes.largest * context.mpf(10) ** (15 - LOW_DIGITS)
    same = bool(low <= max(context.mpf(10) ** -15 * max(scale, 1), noise_of_largest))
    if same and briefly and not affords_large_values(setting.budget):
        raise NoValue("too much work to compare large values")
    if same:
        lost = notes.bits * 3 // 10 if notes.bits > _SMALL_BITS else 0
        more = _more_digits(3 * lost)
        finer = replace(setting, context=mpmath_context(HIGH_DIGITS + more), notes=Notes())
        second = _difference(a, b, finer)
        if isinstance(second, bool):
            return second
        # The values agree if their difference shrinks with the precision, or is rounding noise of the largest number.
        noise = max(low, scale * context.mpf(10) ** -LOW_DIGITS)
        shrinks = second[0] <= noise * context.mpf(10) ** (lost - more - 25)
        last_digits = context.mpf(2) ** finer.notes.largest * context.mpf(10) ** (15 - HIGH_DIGITS - more)
        same = bool(shrinks or second[0] <= last_digits)
    if not same and notes.several_values:
        raise SeveralValues("a power of a negative number that is not real")
    return same


def affords_large_values(budget: Budget) -> bool:
    """Whether the budget still allows large values. Large values take up to 200 times as long as small values."""
    return budget.left >= BUDGET * _FOR_LARGE_VALUES


def _more_digits(needed: int) -> int:
    """Returns the smallest number in `_MORE_DIGITS` that is at least `needed`. Raises NoValue if `needed` is larger
    than all these numbers."""
    if needed > _MORE_DIGITS[-1]:
        raise NoValue("numbers that are too large to compare")
    return next(more for more in _MORE_DIGITS if more >= needed)


def _difference(a: Node, b: Node, setting: Setting) -> bool | tuple[Any, Any, bool]:
    """Returns whether two values are equal, if both values are exact.

    Returns True if one value is a rounded form of the other. For other values, returns |a - b|, the larger of |a| and
    |b|, and whether both values are real.
    """
    context = setting.context
    left, right = evaluate(a, setting), evaluate(b, setting)
    is_exact = isinstance(left, Fraction), isinstance(right, Fraction)
    exact = all(is_exact)
    if (exact and left == right) or _rounds(a, right, setting) or _rounds(b, left, setting):
        return True
    if exact:
        return False
    left, right = setting.inexact(left), setting.inexact(right)
    scale = max(abs(left), abs(right))
    if any(is_exact) and context.mag(scale) > MAX_SPREAD_BITS:
        raise NoValue("a number that is too large to compare with an inexact value")
    imaginary = max(abs(context.im(left)), abs(context.im(right)))
    return abs(left - right), scale, imaginary <= scale * context.mpf(10) ** (5 - context.dps)


def _rounds(node: Node, value: Value, setting: Setting) -> bool:
    """Whether `node` is a long decimal to which `value` was rounded or truncated. `value` has no finite decimal
    expansion."""
    if not isinstance(node, Number) or node.digits < ROUNDED_DIGITS:
        return False
    decimal: Value = node.value
    if isinstance(value, Fraction):
        if pow(10, value.denominator.bit_length(), value.denominator) == 0:  # it has an exact decimal
            return False
        difference = abs(value) - abs(decimal)
    else:
        if setting.context.im(value) != 0:
            return False
        value, decimal = setting.context.re(value), setting.inexact(decimal)
        shift = 10 ** (node.places + 20)
        difference = Fraction(int((abs(value) - abs(decimal)) * shift), shift)
    last_place = Fraction(1, 10**node.places)
    if not node.places:  # as in 1.4142135623730951e20, whose last digit is not the units digit
        return _is_printed_float(node, value)
    if (value < 0) != (decimal < 0) or not abs(difference) < last_place * FLOAT_PLACES:
        return False
    return -last_place / 2 <= difference < last_place or _is_printed_float(node, value)


def _is_printed_float(node: Number, value: Value) -> bool:
    """Whether a decimal is the text that Python prints for the float nearest to a value.

    The last digits of the decimal may differ from the digits of the value.
    """
    if node.digits < FLOAT_DIGITS or abs(node.value) > MAX_FLOAT:
        return False
    nearest = float(node.value)
    return Fraction(repr(nearest)) == node.value and float(value) == nearest
