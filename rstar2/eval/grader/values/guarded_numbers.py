"""Arithmetic under guards: exact fractions while they can be, mpmath numbers otherwise, and a bound on all work."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

MAX_BITS = 60_000
"""The largest size of an exact number, numerator and denominator together."""
MAX_LOG10 = 60_000
"""No value may leave 10^-MAX_LOG10 .. 10^MAX_LOG10."""
MAX_SPREAD_BITS = 200
"""Inexact numbers that differ more in size are not added: the smaller one would be lost in the noise of 80 digits."""
BUDGET = 40_000
"""The work that one grading may take, in units of about one microsecond of one processor of 2024."""
_STEP = 3
"""The cost of visiting a node."""
_EXACT_BITS = 500
"""Exact numbers up to this size cost no more than a step."""

Value: TypeAlias = Any
"""A Fraction while exact, an mpmath number (mpf or mpc) otherwise."""
Constant: TypeAlias = Fraction | tuple[Fraction, Fraction]
"""What a symbol may stand for: a rational number, or the real and the imaginary part of a complex one."""


class NoValue(Exception):
    """The expression has no value within the guards: too large, undefined, or not a number at all."""


class SeveralValues(NoValue):
    """The expression has several values, and it is not known which one is meant."""


class BeyondGuards(NoValue):
    """The expression may have a value, but one that is too large, or that takes too many terms, to be computed."""


class NotACount(NoValue):
    """A factorial or binomial coefficient of negative numbers: the letters in it do not stand in the right order."""


class TooMuchWork(NoValue):
    """The budget of this grading is used up."""


class Budget:
    """The work that is left for one grading, and what it has computed for good."""

    __slots__ = ("left", "values")

    def __init__(self, units: float = BUDGET) -> None:
        self.left = units
        self.values: dict[Any, Any] = {}
        """The values of sums without free letters, by expression and reading."""

    def spend(self, units: float) -> None:
        """Take some of the work; raises TooMuchWork, now and from then on, if there is not enough left."""
        self.left -= units
        if self.left < 0:
            raise TooMuchWork("too much work")


_thread = threading.local()
_budget: ContextVar[Budget | None] = ContextVar("grading budget", default=None)


@contextlib.contextmanager
def limited_work() -> Iterator[Budget]:
    """All comparisons inside this block share one budget; blocks inside it share it too."""
    budget = _budget.get()
    if budget is not None:
        yield budget
        return
    budget = Budget()
    token = _budget.set(budget)
    try:
        yield budget
    finally:
        _budget.reset(token)


def current_budget() -> Budget:
    """Returns the budget of the grading under way, or a fresh one outside of a grading."""
    return _budget.get() or Budget()


def mpmath_context(digits: int) -> Any:
    """Returns this thread's mpmath context of a precision; the library's own context is shared by all threads."""
    from mpmath.ctx_mp import MPContext  # loaded when the first inexact comparison needs it

    contexts = getattr(_thread, "contexts", None)
    if contexts is None:
        contexts = _thread.contexts = {}
    if digits not in contexts:
        contexts[digits] = MPContext()
        contexts[digits].dps = digits
    return contexts[digits]


@dataclass(slots=True)
class Notes:
    """What was met during the evaluation of two expressions at one point."""

    bits: int = 0
    """The size of the largest number that was not kept exact, or of the inverse of the smallest."""
    largest: int = 0
    """The size of the largest number that was not kept exact, at least 0: rounding noise is of its last digits."""
    several_values: bool = False
    """Whether a negative number was raised to a power that is no whole number."""

    def note(self, bits: int) -> None:
        """Record the size of a number."""
        self.bits = max(self.bits, bits)


@dataclass(frozen=True, slots=True)
class Setting:
    """How to evaluate, and arithmetic under the guards."""

    symbols: Mapping[str, Constant]
    context: Any
    """An mpmath context, which carries the precision."""
    budget: Budget = field(default_factory=current_budget)
    notes: Notes = field(default_factory=Notes)
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

    def step(self) -> None:
        """Pay for visiting a node."""
        self.budget.spend(_STEP)

    def library(self, function: Callable[..., Any], *arguments: Any, cost: float = 10) -> Value:
        """Returns what a function of mpmath returns; NoValue if it has no value there.

        `cost` is in microseconds at 40 digits.
        """
        self.budget.spend(cost * (self.context.dps / 40) ** 1.3)
        try:
            return self.guard(function(*arguments))
        except (ArithmeticError, ValueError) as error:
            raise NoValue(f"undefined: {error}") from None

    def inexact(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            self.notes.note(max(value.numerator.bit_length(), value.denominator.bit_length()))
            return self.context.mpf(value.numerator) / value.denominator
        return value

    def alike(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Both as Fractions, or both as mpmath numbers."""
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return a, b
        return self.inexact(a), self.inexact(b)

    def guard(self, value: Value) -> Value:
        """Returns the value; NoValue if it is too large or not finite."""
        if isinstance(value, Fraction):
            self._pay(value, reduced=value.denominator != 1)
        elif not self.context.isfinite(value):
            raise NoValue("not finite")
        elif value:
            size = self.context.mag(value)
            if abs(size) > MAX_LOG10 * 4:
                raise BeyondGuards("too large")
            self.notes.note(abs(size))
            self.notes.largest = max(self.notes.largest, size)
        return value

    def _pay(self, value: Fraction, *, reduced: bool) -> None:
        """Pay for an exact number by its size: the product of the sizes, as in school, and more to reduce it."""
        bits = value.numerator.bit_length() + value.denominator.bit_length()
        if bits > MAX_BITS:
            raise BeyondGuards("too large")
        if bits > _EXACT_BITS:
            self.budget.spend((bits / 1000) ** 2 * (0.5 if reduced else 0.06))

    def add(self, a: Value, b: Value) -> Value:
        a, b = self.alike(a, b)
        if not isinstance(a, Fraction) and a and b:
            spread = self.context.mag(a) - self.context.mag(b)
            if abs(spread) > MAX_SPREAD_BITS:
                raise BeyondGuards("too far apart to add")
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
            power = _exact_power(base, exponent.numerator)
            self._pay(power, reduced=False)
            return power
        if exponent == 0 and base != 0:
            return Fraction(1)
        a, b = self.inexact(base), self.inexact(exponent)
        if a == 0:
            if self.context.re(b) <= 0:
                raise NoValue("a power of zero")
            return Fraction(0)
        context = self.context
        # Rounded to the digits in use, every large fraction is whole.
        is_whole = exponent.denominator == 1 if isinstance(exponent, Fraction) else context.isint(b)
        if context.im(a) == 0 and context.re(a) < 0 and not is_whole:
            self.notes.several_values = True
        if self.real and context.re(a) < 0 and not is_whole:
            raise NoValue("not real")
        if abs(context.mag(b)) > 64 or float(abs(b)) * abs(float(context.mag(a)) + 1) > MAX_LOG10 * 4:
            raise BeyondGuards("too large")
        return self.library(context.power, a, b, cost=12)

    def as_real(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            return value
        if self.context.im(value) != 0:
            raise NoValue("not real")
        return self.context.re(value)


def remainder(value: Value, modulus: Value) -> Value:
    """Returns the remainder of a division, which is not negative if the modulus is positive."""
    if not isinstance(value, Fraction) or not isinstance(modulus, Fraction) or modulus == 0:
        raise NoValue("a remainder of something else than numbers")
    return value % modulus


def _exact_power(base: Fraction, exponent: int) -> Fraction:
    if base == 0:
        if exponent <= 0:
            raise NoValue("a power of zero")
        return base
    if abs(base) == 1:
        return base if exponent % 2 else Fraction(1)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > MAX_BITS:
        raise BeyondGuards("too large")
    return base**exponent


def whole(values: tuple[Value, ...]) -> list[int]:
    if any(not isinstance(value, Fraction) or value.denominator != 1 for value in values):
        raise NoValue("not whole numbers")
    return [int(value) for value in values]
