"""Evaluates the functions that the grammar knows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import reduce

from rstar2.eval.grader.values.guarded_numbers import (
    MAX_BITS,
    MAX_LOG10,
    BeyondGuards,
    NotACount,
    NoValue,
    Setting,
    Value,
    integers,
)

MAX_ARGUMENT = 10_000
"""Maximum argument of a factorial or a binomial coefficient."""
MAX_DEGREE = 60
"""A binomial coefficient is computed as a polynomial only if its lower number is at most this number."""
MAX_GAMMA_DIGITS = 230
"""Maximum number of digits to which factorials of fractions are computed. For 1,000 digits, mpmath would take a
second."""

ANGLES = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})
_EXPONENTIAL = frozenset({"exp", "sinh", "cosh", "tanh", "coth", "sech", "csch"})
_PLAIN = {name: name for name in (*ANGLES, *_EXPONENTIAL, "ln", "log10", "arg")} | {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arccot": "acot",
}
"""Dict from each function of one argument to its name in mpmath."""
TRANSCENDENTAL = _PLAIN.keys() - {"log10", "arg"}
"""Functions of calculus. In an expression with a function of calculus, `log` without a base is the natural
logarithm."""


def call(name: str, values: list[Value], setting: Setting) -> Value:
    """Returns the value of a function. Raises NoValue if the function is not known, or has no value at these
    arguments."""
    if name in _PLAIN and len(values) == 1:
        return _plain(_PLAIN[name], values[0], setting)
    function, arity = _SPECIAL.get(name, (None, None))
    if function is None or len(values) != (arity or max(1, len(values))):
        raise NoValue(f"{name} of {len(values)} arguments")
    return setting.guard(function(setting, *values))


def _plain(name: str, value: Value, setting: Setting) -> Value:
    argument = setting.inexact(value)
    if setting.real and name in {"ln", "log10"} and setting.as_real(value) < 0:
        raise NoValue("a value that is not real")
    if abs(setting.context.mag(argument)) > (16 if name in _EXPONENTIAL else 4 * MAX_LOG10) and argument:
        raise BeyondGuards("a number that is too large")
    if name in _EXPONENTIAL:
        setting.notes.note(3 * int(abs(argument)))  # tanh x differs from 1 by about 2e^-2x
    if name in ANGLES and setting.context.mag(argument) > 300:
        raise BeyondGuards("a number that is too large")
    result = setting.library(getattr(setting.context, name), argument, cost=12)
    if name in ANGLES and abs(argument) > 0.1 and not setting.context.im(argument):
        noise = setting.context.mpf(10) ** (8 - setting.context.dps) * max(1, abs(argument))
        if abs(result) < noise:
            return Fraction(0)  # as sin π, which is not exactly zero because π is rounded
        if abs(result) * noise > 1:
            raise NoValue("a value that is infinite")
    return result


def _root(setting: Setting, value: Value, index: Value) -> Value:
    """Returns the real root if there is one. A rational root is exact."""
    if not isinstance(index, Fraction) or index.denominator != 1 or not 2 <= abs(index) <= 10_000:
        return setting.power(value, setting.divide(Fraction(1), index))
    order = abs(int(index))
    if setting.real and order % 2 == 0 and setting.as_real(value) < 0:
        raise NoValue("a value that is not real")
    if isinstance(value, Fraction):
        over, under = _whole_root(value.numerator, order), _whole_root(value.denominator, order)
        if over is not None and under:
            return Fraction(over, under) if index > 0 else setting.divide(Fraction(under), Fraction(over))
    context, number = setting.context, setting.inexact(value)
    if order % 2 and context.im(number) == 0 and context.re(number) < 0:
        root = -setting.library(context.root, -number, order, cost=8)
    else:
        root = setting.library(context.root, number, order, cost=8)
    return root if index > 0 else setting.divide(Fraction(1), root)


def _whole_root(value: int, order: int) -> int | None:
    """Returns the integer root of `value`, such as the cube root for `order` 3. Returns None if the root is not an
    integer."""
    if value < 0:
        positive = _whole_root(-value, order) if order % 2 else None
        return None if positive is None else -positive
    if order == 2:
        root = math.isqrt(value)
        return root if root * root == value else None
    if value.bit_length() > 1000:
        return None
    root = round(value ** (1 / order))
    return next((guess for guess in (root - 1, root, root + 1) if guess >= 0 and guess**order == value), None)


def _factorial(setting: Setting, value: Value) -> Value:
    if isinstance(value, Fraction) and value.denominator == 1:
        if value < 0:
            raise NotACount("a factorial of a negative number")
        if value > MAX_ARGUMENT or math.lgamma(int(value) + 1) > MAX_BITS * math.log(2):
            raise BeyondGuards("a number that is too large")
        setting.budget.spend(float(value / 10))
        return Fraction(math.factorial(int(value)))
    return _gamma(setting, setting.context.factorial, value)


def _gamma(setting: Setting, function: Callable[..., Value], *values: Value) -> Value:
    """A factorial or binomial coefficient of numbers that are not integers."""
    arguments = [setting.inexact(value) for value in values]
    if any(abs(argument) > MAX_ARGUMENT for argument in arguments):
        raise BeyondGuards("a number that is too large")
    if setting.context.dps > MAX_GAMMA_DIGITS:
        raise BeyondGuards("a factorial of a fraction to too many digits")
    return setting.library(function, *arguments, cost=40 * len(arguments))


def _double_factorial(setting: Setting, value: Value) -> Value:
    """Returns the product n (n - 2) (n - 4) …, whose last factor is 1 or 2."""
    (number,) = integers((value,))
    if number < 0:
        raise NotACount("a factorial of a negative number")
    if number > MAX_ARGUMENT:
        raise BeyondGuards("a number that is too large")
    setting.budget.spend(number)
    return Fraction(math.prod(range(number, 0, -2)))


def _binomial(setting: Setting, top: Value, bottom: Value) -> Value:
    """Returns a binomial coefficient: the number of subsets if both numbers are integers, or the value of a polynomial
    in `top` if `bottom` is a small integer."""
    if not (isinstance(top, Fraction) and isinstance(bottom, Fraction)):
        return _gamma(setting, setting.context.binomial, top, bottom)
    if top.denominator == bottom.denominator == 1 and (top < 0 or bottom < 0):
        raise NotACount("a binomial coefficient of negative numbers")
    if top.denominator == bottom.denominator == 1 and top <= MAX_ARGUMENT:
        setting.budget.spend(min(int(bottom), int(top)) / 5)
        return Fraction(math.comb(int(top), int(bottom)))
    if bottom.denominator == 1 and 0 <= bottom <= MAX_DEGREE:
        product = Fraction(1)
        for factor in range(int(bottom)):
            product = setting.guard(product * (top - factor))
        return product / math.factorial(int(bottom))
    return _gamma(setting, setting.context.binomial, top, bottom)


def _floor(setting: Setting, value: Value) -> Fraction:
    """Returns the floor of a value. An inexact value that differs from an integer only by rounding noise counts as this
    integer."""
    value = setting.as_real(value)
    if isinstance(value, Fraction):
        return Fraction(math.floor(value))
    nearest, noise = setting.context.nint(value), setting.context.mpf(10) ** (10 - setting.context.dps)
    if abs(value) * noise > 1:
        raise NoValue("a number that is too large to round")
    is_noise = abs(value - nearest) <= max(abs(value), 1) * noise
    return Fraction(int(nearest if is_noise else setting.context.floor(value)))


def _sign(setting: Setting, value: Value) -> Fraction:
    value = setting.as_real(value)
    noise = 0 if isinstance(value, Fraction) else setting.context.mpf(10) ** (10 - setting.context.dps)
    return Fraction((value > noise) - (value < -noise))


def _largest(setting: Setting, values: Iterable[Value], sign: int) -> Value:
    """Returns the maximum of real values, or the minimum if `sign` is -1. The values may be exact or inexact."""

    def larger(one: Value, other: Value) -> Value:
        left, right = setting.alike(one, other)
        return one if (left - right) * sign >= 0 else other

    return reduce(larger, [setting.as_real(value) for value in values])


_SPECIAL: dict[str, tuple[Callable[..., Value], int | None]] = {
    "root": (_root, 2),
    "abs": (lambda setting, value: abs(value), 1),
    "norm": (lambda setting, value: abs(value), 1),
    "floor": (_floor, 1),
    "ceil": (lambda setting, value: -_floor(setting, -value), 1),
    "factorial": (_factorial, 1),
    "double_factorial": (_double_factorial, 1),
    "binom": (_binomial, 2),
    "log": (lambda setting, value: _plain("ln" if setting.natural_log else "log10", value, setting), 1),
    "logarithm": (
        lambda setting, value, base: setting.divide(
            _plain("ln", value, setting), _plain("ln", base, setting)
        ),
        2,
    ),
    "degree": (
        lambda setting, value: setting.inexact(value) * setting.context.pi / 180 if setting.degree else value,
        1,
    ),
    "percent": (
        lambda setting, value: setting.divide(value, Fraction(100)) if setting.percent else value,
        1,
    ),
    "min": (lambda setting, *values: _largest(setting, values, -1), None),
    "max": (lambda setting, *values: _largest(setting, values, 1), None),
    "gcd": (lambda setting, *values: Fraction(math.gcd(*integers(values))), None),
    "lcm": (lambda setting, *values: Fraction(math.lcm(*integers(values))), None),
    "Re": (lambda setting, value: setting.context.re(setting.inexact(value)), 1),
    "Im": (lambda setting, value: setting.context.im(setting.inexact(value)), 1),
    "sgn": (_sign, 1),
}
"""Dict from the name of a function to its implementation and its number of arguments, or None if the function is
variadic."""
