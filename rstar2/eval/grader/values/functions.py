"""The functions the grammar knows, on values."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from rstar2.eval.grader.values.guarded_numbers import MAX_LOG10, NoValue, Setting, Value, whole

MAX_ARGUMENT = 10_000
"""The largest argument of an exact factorial or binomial coefficient."""

ANGLES = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})
_EXPONENTIAL = frozenset({"exp", "sinh", "cosh", "tanh", "coth", "sech", "csch"})
_PLAIN = {name: name for name in (*ANGLES, *_EXPONENTIAL, "ln", "log10", "arg")} | {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arccot": "acot",
}
"""Functions of one argument, and what mpmath calls them."""
TRANSCENDENTAL = _PLAIN.keys() - {"log10", "arg"}
"""Functions of calculus, beside which a bare log is the natural one."""


def call(name: str, values: list[Value], setting: Setting) -> Value:
    """The value of a function; NoValue where it is none of those known, or has no value there."""
    if name in _PLAIN and len(values) == 1:
        return _plain(_PLAIN[name], values[0], setting)
    if name in _SPECIAL:
        return setting.guard(_SPECIAL[name](setting, *values))
    raise NoValue(f"{name} of {len(values)} arguments")


def _plain(name: str, value: Value, setting: Setting) -> Value:
    argument = setting.inexact(value)
    if setting.real and name in {"ln", "log10"} and setting.as_real(value) < 0:
        raise NoValue("not real")
    if abs(setting.context.mag(argument)) > (16 if name in _EXPONENTIAL else 4 * MAX_LOG10) and argument:
        raise NoValue("too large")
    if name in _EXPONENTIAL:
        setting.work.note(3 * int(abs(argument)))  # tanh is as near to 1 as e^-2x to 0
    if name in ANGLES and setting.context.mag(argument) > 300:
        raise NoValue("too large")
    return setting.guard(getattr(setting.context, name)(argument))


def _root(setting: Setting, value: Value, index: Value) -> Value:
    """The real root where there is one; exact where it is rational."""
    if not isinstance(index, Fraction) or index.denominator != 1 or not 2 <= abs(index) <= 10_000:
        return setting.power(value, setting.divide(Fraction(1), index))
    order = abs(int(index))
    if setting.real and order % 2 == 0 and setting.as_real(value) < 0:
        raise NoValue("not real")
    if isinstance(value, Fraction):
        over, under = _whole_root(value.numerator, order), _whole_root(value.denominator, order)
        if over is not None and under:
            return Fraction(over, under) if index > 0 else setting.divide(Fraction(under), Fraction(over))
    context, number = setting.context, setting.inexact(value)
    if order % 2 and context.im(number) == 0 and context.re(number) < 0:
        root = -context.root(-number, order)
    else:
        root = context.root(number, order)
    return root if index > 0 else setting.divide(Fraction(1), root)


def _whole_root(value: int, order: int) -> int | None:
    """The integer whose power is `value`, if there is one."""
    if value < 0:
        found = _whole_root(-value, order) if order % 2 else None
        return None if found is None else -found
    if order == 2:
        root = math.isqrt(value)
        return root if root * root == value else None
    if value.bit_length() > 1000:
        return None
    root = round(value ** (1 / order))
    return next((guess for guess in (root - 1, root, root + 1) if guess >= 0 and guess**order == value), None)


def _factorial(setting: Setting, value: Value) -> Value:
    if isinstance(value, Fraction) and value.denominator == 1:
        if not 0 <= value <= MAX_ARGUMENT:
            raise NoValue("too large")
        return Fraction(math.factorial(int(value)))
    argument = setting.inexact(value)
    if abs(argument) > MAX_ARGUMENT:
        raise NoValue("too large")
    return setting.context.factorial(argument)


def _double_factorial(value: Value) -> Value:
    """n (n - 2) (n - 4)…, down to 1 or 2."""
    (number,) = whole((value,))
    if not 0 <= number <= MAX_ARGUMENT:
        raise NoValue("too large")
    return Fraction(math.prod(range(number, 0, -2)))


def _binomial(setting: Setting, top: Value, bottom: Value) -> Value:
    exact = isinstance(top, Fraction) and isinstance(bottom, Fraction)
    if exact and top.denominator == bottom.denominator == 1 and 0 <= top <= MAX_ARGUMENT and bottom >= 0:
        return Fraction(math.comb(int(top), int(bottom)))
    a, b = setting.inexact(top), setting.inexact(bottom)
    if max(abs(a), abs(b)) > MAX_ARGUMENT:
        raise NoValue("too large")
    return setting.context.binomial(a, b)


def _floor(setting: Setting, value: Value) -> Fraction:
    """The floor; of an inexact value that differs from a whole number by noise only, that number."""
    value = setting.as_real(value)
    if isinstance(value, Fraction):
        return Fraction(math.floor(value))
    nearest, noise = setting.context.nint(value), setting.context.mpf(10) ** (10 - setting.context.dps)
    if abs(value) * noise > 1:
        raise NoValue("too large to be rounded")
    is_noise = abs(value - nearest) <= max(abs(value), 1) * noise
    return Fraction(int(nearest if is_noise else setting.context.floor(value)))


def _sign(value: Value, setting: Setting) -> Fraction:
    noise = 0 if isinstance(value, Fraction) else setting.context.mpf(10) ** (10 - setting.context.dps)
    return Fraction((value > noise) - (value < -noise))


_SPECIAL: dict[str, Callable[..., Value]] = {
    "root": _root,
    "abs": lambda setting, value: abs(value),
    "norm": lambda setting, value: abs(value),
    "floor": lambda setting, value: _floor(setting, value),
    "ceil": lambda setting, value: -_floor(setting, -value),
    "factorial": _factorial,
    "double_factorial": lambda setting, value: _double_factorial(value),
    "binom": _binomial,
    "log": lambda setting, value: _plain("ln" if setting.natural_log else "log10", value, setting),
    "logarithm": lambda setting, value, base: setting.divide(
        _plain("ln", value, setting), _plain("ln", base, setting)
    ),
    "degree": lambda setting, value: (
        setting.inexact(value) * setting.context.pi / 180 if setting.degree else value
    ),
    "percent": lambda setting, value: setting.divide(value, Fraction(100)) if setting.percent else value,
    "min": lambda setting, *values: min(setting.as_real(value) for value in values),
    "max": lambda setting, *values: max(setting.as_real(value) for value in values),
    "gcd": lambda setting, *values: Fraction(math.gcd(*whole(values))),
    "lcm": lambda setting, *values: Fraction(math.lcm(*whole(values))),
    "Re": lambda setting, value: setting.context.re(setting.inexact(value)),
    "Im": lambda setting, value: setting.context.im(setting.inexact(value)),
    "sgn": lambda setting, value: _sign(setting.as_real(value), setting),
}
