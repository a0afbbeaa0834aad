"""Numbers under guards: exact fractions while they can be, mpmath numbers otherwise, and never too large."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

MAX_BITS = 60_000
"""Exact numbers stay below this size."""
MAX_LOG10 = 60_000
"""No value may leave 10^-MAX_LOG10 .. 10^MAX_LOG10."""
MAX_STEPS = 30_000
"""The longest evaluation, in nodes visited; sums within sums are what could take more."""
MAX_SPREAD_BITS = 200
"""Inexact numbers that differ more in size are not added: the smaller one would be lost in the noise of 80 digits."""

Value: TypeAlias = Any
"""A Fraction while exact, an mpmath number (mpf or mpc) otherwise."""
Constant: TypeAlias = Fraction | tuple[Fraction, Fraction]
"""What a symbol may stand for: a rational number, or the real and the imaginary part of a complex one."""


class Work:
    """How many steps an evaluation may still take, and what was met on the way."""

    __slots__ = ("bits", "left", "several_values")

    def __init__(self) -> None:
        self.left = MAX_STEPS
        self.bits = 0
        """The size of the largest number met that was not kept exact."""
        self.several_values = False
        """Whether a negative number was raised to a power that is no whole number."""

    def note(self, bits: int) -> None:
        """Take note of the size of a number."""
        self.bits = max(self.bits, bits)

    def spend(self) -> None:
        """Take one step; NoValue where none is left."""
        self.left -= 1
        if self.left < 0:
            raise NoValue("too much work")


class NoValue(Exception):
    """The expression has no value within the guards: too large, undefined, or not a number at all."""


class SeveralValues(NoValue):
    """The expression has several values, and it is not known which one is meant."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How to evaluate, and arithmetic under the guards."""

    symbols: Mapping[str, Constant]
    context: Any
    """An mpmath context, which carries the precision."""
    work: Work = field(default_factory=Work)
    degree: bool = False
    """Read a degree sign as π/180 rather than as a unit to leave out; always so inside sin, cos, tan…"""
    percent: bool = False
    """Read a percent sign as 1/100 rather than as a unit to leave out."""
    real: bool = False
    """Refuse even roots, logarithms and broken powers of negative numbers."""
    natural_log: bool = True
    """Read `log` without a base as ln rather than as log10."""
    others: bool = False
    """Give functions that are not known other values, so that nothing hinges on those they get."""

    def inexact(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            self.work.note(max(value.numerator.bit_length(), value.denominator.bit_length()))
            return self.context.mpf(value.numerator) / value.denominator
        return value

    def alike(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Both as Fractions, or both as mpmath numbers."""
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return a, b
        return self.inexact(a), self.inexact(b)

    def guard(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
                raise NoValue("too large")
        elif not self.context.isfinite(value):
            raise NoValue("not finite")
        elif value:
            size = abs(self.context.mag(value))
            if size > MAX_LOG10 * 4:
                raise NoValue("too large")
            self.work.note(size)
        return value

    def add(self, a: Value, b: Value) -> Value:
        a, b = self.alike(a, b)
        if not isinstance(a, Fraction) and a and b:
            spread = self.context.mag(a) - self.context.mag(b)
            if abs(spread) > MAX_SPREAD_BITS:
                raise NoValue("too far apart to add")
        return a + b

    def multiply(self, a: Value, b: Value) -> Value:
        a, b = self.alike(a, b)
        return a * b

    def divide(self, over: Value, under: Value) -> Value:
        over, under = self.alike(over, under)
        if under == 0:
            raise NoValue("division by zero")
        return self.guard(over / under)

    def power(self, base: Value, exponent: Value) -> Value:
        if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
            return _exact_power(base, exponent.numerator)
        a, b = self.alike(base, exponent)
        if a == 0:
            if self.context.re(b) <= 0:
                raise NoValue("a power of zero")
            return Fraction(0)
        context = self.context
        is_whole = context.isint(b)
        if context.im(a) == 0 and context.re(a) < 0 and not is_whole:
            self.work.several_values = True
        if self.real and context.re(a) < 0 and not is_whole:
            raise NoValue("not real")
        if abs(context.mag(b)) > 64 or float(abs(b)) * abs(float(context.mag(a)) + 1) > MAX_LOG10 * 4:
            raise NoValue("too large")
        return self.guard(context.power(a, b))

    def as_real(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            return value
        if self.context.im(value) != 0:
            raise NoValue("not real")
        return self.context.re(value)


def remainder(value: Value, modulus: Value) -> Value:
    """The remainder of a division; not negative where the modulus is positive."""
    if not isinstance(value, Fraction) or not isinstance(modulus, Fraction) or modulus == 0:
        raise NoValue("a remainder of something else than numbers")
    return value % modulus


def _exact_power(base: Fraction, exponent: int) -> Fraction:
    if base == 0:
        if exponent <= 0:
            raise NoValue("a power of zero")
        return base
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(base) != 1 and bits * abs(exponent) > MAX_BITS:
        raise NoValue("too large")
    if abs(base) == 1:
        return base if exponent % 2 else Fraction(1)
    return base**exponent


def whole(values: tuple[Value, ...]) -> list[int]:
    if any(not isinstance(value, Fraction) or value.denominator != 1 for value in values):
        raise NoValue("not whole numbers")
    return [int(value) for value in values]
