"""Arithmetic with limits on the size of numbers and on the work. Numbers are exact fractions if possible, and otherwise
mpmath numbers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeAlias

MAX_BITS = 60_000
"""Maximum size of an exact number, in bits of its numerator and denominator together."""
MAX_LOG10 = 60_000
"""Values are limited to about 10^-MAX_LOG10 to 10^MAX_LOG10."""
MAX_SPREAD_BITS = 200
"""Inexact numbers whose sizes differ by more than this many bits are not added, because the smaller number would be
lost in rounding noise."""
BUDGET = 40_000
"""Maximum work for grading one answer. A unit of work is about one microsecond on a 2024 processor."""
_STEP = 3
"""The cost of visiting a node, in units of `BUDGET`."""
_EXACT_BITS = 500
"""Arithmetic on exact numbers of up to this many bits costs nothing more than visiting the node."""

Value: TypeAlias = Any
"""A Fraction if the value is exact, otherwise an mpmath number (mpf or mpc)."""
Constant: TypeAlias = Fraction | tuple[Fraction, Fraction]
"""The value of a letter: a rational number, or the real and the imaginary part of a complex number."""


class NoValue(Exception):
    """The expression has no value that can be computed: it is too large, undefined or not a number."""


class SeveralValues(NoValue):
    """The expression has several values, and it is not clear which value is meant."""


class BeyondGuards(NoValue):
    """The expression may have a value, but computing it needs numbers that are too large, or too many terms."""


class NotACount(NoValue):
    """The expression is a factorial or binomial coefficient of negative numbers, or a sum whose last index is smaller
    than its first."""


class TooMuchWork(NoValue):
    """The work that is allowed for grading this answer is used up."""


class Budget:
    """The work that is left for grading one answer, and the values that were cached while it is graded."""

    __slots__ = ("left", "values")

    def __init__(self, units: float = BUDGET) -> None:
        self.left = units
        self.values: dict[Any, Any] = {}
        """The cached values of sums without free letters, keyed by expression, number of digits and reading of signs.
        """

    def spend(self, units: float) -> None:
        """Uses up some of the work. If not enough work is left, this call and all later calls raise TooMuchWork."""
        self.left -= units
        if self.left < 0:
            raise TooMuchWork("too much work")


_thread = threading.local()
_budget: ContextVar[Budget | None] = ContextVar("grading budget", default=None)


@contextlib.contextmanager
def limited_work() -> Iterator[Budget]:
    """Context manager for a block in which all comparisons share one budget.

    Nested blocks share the budget of the outer block.
    """
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
    """Returns the budget for the answer that is being graded, or a new budget if no answer is being graded."""
    return _budget.get() or Budget()


def mpmath_context(digits: int) -> Any:
    """Returns this thread's mpmath context with a precision of `digits`.

    The default context of mpmath is shared by all threads, so the default context is not used.
    """
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
    """Observations from the evaluation of two expressions at one point."""

    bits: int = 0
    """The size in bits of the largest inexact number or of the inverse of the smallest inexact number, whichever is
    larger."""
    largest: int = 0
    """The size in bits of the largest inexact number, at least 0. The last digits of the largest inexact number are
    rounding noise."""
    several_values: bool = False
    """Whether a negative number was raised to a power that is not an integer."""

    def note(self, bits: int) -> None:
        """Records the size of a number in bits."""
        self.bits = max(self.bits, bits)


@dataclass(frozen=True, slots=True)
class Setting:
    """A point and the settings for evaluating expressions at it. The methods do arithmetic within the limits of this
    module."""

    symbols: Mapping[str, Constant]
    """The values of the letters."""
    context: Any
    """An mpmath context, which sets the precision."""
    budget: Budget = field(default_factory=current_budget)
    notes: Notes = field(default_factory=Notes)
    degree: bool = False
    """Whether a degree sign is read as π/180. If False, the degree sign is dropped like a unit. Inside sin, cos and
    tan, a degree sign is always π/180."""
    percent: bool = False
    """Whether a percent sign is read as 1/100. If False, the percent sign is dropped like a unit."""
    real: bool = False
    """Whether only real values count. If True, an even root, a logarithm or a fractional power of a negative number has
    no value."""
    natural_log: bool = True
    """Whether `log` without a base is read as ln. If False, `log` is read as log10."""
    others: bool = False
    """Whether unknown functions get a second set of values, to test that the result does not depend on the first
    set."""

    def step(self) -> None:
        """Charges the cost of visiting a node to the budget."""
        self.budget.spend(_STEP)

    def library(self, function: Callable[..., Any], *arguments: Any, cost: float = 10) -> Value:
        """Returns the result of an mpmath function. Raises NoValue if the function has no value at these arguments.

        `cost` is the cost of the call with 40 digits, in units of `BUDGET`.
        """
        self.budget.spend(cost * (self.context.dps / 40) ** 1.3)
        try:
            return self.guard(function(*arguments))
        except (ArithmeticError, ValueError) as error:
            raise NoValue(f"undefined: {error}") from None

    def inexact(self, value: Value) -> Value:
        """Returns a value as an mpmath number."""
        if isinstance(value, Fraction):
            self.notes.note(max(value.numerator.bit_length(), value.denominator.bit_length()))
            return self.context.mpf(value.numerator) / value.denominator
        return value

    def alike(self, a: Value, b: Value) -> tuple[Value, Value]:
        """Returns two values as Fractions if both are exact, and otherwise as mpmath numbers."""
        if isinstance(a, Fraction) and isinstance(b, Fraction):
            return a, b
        return self.inexact(a), self.inexact(b)

    def guard(self, value: Value) -> Value:
        """Returns the value unchanged. Raises NoValue if the value is too large or not finite."""
        if isinstance(value, Fraction):
            self._pay(value, reduced=value.denominator != 1)
        elif not self.context.isfinite(value):
            raise NoValue("a value that is not finite")
        elif value:
            size = self.context.mag(value)
            if abs(size) > MAX_LOG10 * 4:
                raise BeyondGuards("a number that is too large")
            self.notes.note(abs(size))
            self.notes.largest = max(self.notes.largest, size)
        return value

    def _pay(self, value: Fraction, *, reduced: bool) -> None:
        """Charges the cost of computing an exact number to the budget. The cost grows with the square of the number's
        size, and is higher if the fraction has to be reduced."""
        bits = value.numerator.bit_length() + value.denominator.bit_length()
        if bits > MAX_BITS:
            raise BeyondGuards("a number that is too large")
        if bits > _EXACT_BITS:
            self.budget.spend((bits / 1000) ** 2 * (0.5 if reduced else 0.06))

    def add(self, a: Value, b: Value) -> Value:
        a, b = self.alike(a, b)
        if not isinstance(a, Fraction) and a and b:
            spread = self.context.mag(a) - self.context.mag(b)
            if abs(spread) > MAX_SPREAD_BITS:
                raise BeyondGuards("numbers whose sizes differ too much to add")
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
                raise NoValue("a negative or zero power of zero")
            return Fraction(0)
        context = self.context
        # A large fraction would be an integer after rounding to the digits in use.
        is_whole = exponent.denominator == 1 if isinstance(exponent, Fraction) else context.isint(b)
        if context.im(a) == 0 and context.re(a) < 0 and not is_whole:
            self.notes.several_values = True
        if self.real and context.re(a) < 0 and not is_whole:
            raise NoValue("a value that is not real")
        if abs(context.mag(b)) > 64 or float(abs(b)) * abs(float(context.mag(a)) + 1) > MAX_LOG10 * 4:
            raise BeyondGuards("a number that is too large")
        return self.library(context.power, a, b, cost=12)

    def as_real(self, value: Value) -> Value:
        """Returns the value as a real number. Raises NoValue if the value is not real."""
        if isinstance(value, Fraction):
            return value
        if self.context.im(value) != 0:
            raise NoValue("a value that is not real")
        return self.context.re(value)


def remainder(value: Value, modulus: Value) -> Value:
    """Returns the remainder of a division. The remainder is not negative if the modulus is positive.

    Raises NoValue if a value is inexact or the modulus is 0.
    """
    if not isinstance(value, Fraction) or not isinstance(modulus, Fraction) or modulus == 0:
        raise NoValue("a remainder of values that are not rational")
    return value % modulus


def _exact_power(base: Fraction, exponent: int) -> Fraction:
    if base == 0:
        if exponent <= 0:
            raise NoValue("a negative or zero power of zero")
        return base
    if abs(base) == 1:
        return base if exponent % 2 else Fraction(1)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > MAX_BITS:
        raise BeyondGuards("a number that is too large")
    return base**exponent


def integers(values: tuple[Value, ...]) -> list[int]:
    """Returns the values converted to integers. Raises NoValue if a value is not an integer."""
    if any(not isinstance(value, Fraction) or value.denominator != 1 for value in values):
        raise NoValue("values that are not integers")
    return [int(value) for value in values]
