"""The value of an expression: exact while it is rational, to any number of digits otherwise.

Symbols get values from the caller. What is unknown (f(2), an integral, an endless sum) gets a value that depends
only on its name and on the values of its parts, so that equal things stay equal and others almost surely differ.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

from rstar2.eval.grader.nodes import (
    Apply,
    Based,
    Brackets,
    Call,
    Matrix,
    Node,
    Number,
    Power,
    Product,
    Quantity,
    Quotient,
    Residue,
    Series,
    Sum,
    Symbol,
)

MAX_BITS = 60_000
"""Exact numbers stay below this size."""
MAX_LOG10 = 60_000
"""No value may leave 10^-MAX_LOG10 .. 10^MAX_LOG10."""
MAX_SPREAD_BITS = 250
"""Inexact numbers that differ more in size are not added: the smaller one would be lost at 80 digits."""
MAX_ARGUMENT = 10_000
"""The largest argument of an exact factorial or binomial coefficient."""
MAX_TERMS = 2000
"""The longest sum or product written with an index that is added up."""

Value: TypeAlias = Any
"""A Fraction while exact, an mpmath number (mpf or mpc) otherwise."""


class NoValue(Exception):
    """The expression has no value within the guards: too large, undefined, or not a number at all."""


@dataclass(frozen=True, slots=True)
class Setting:
    """How to evaluate."""

    symbols: Mapping[str, Fraction]
    context: Any
    """An mpmath context, which carries the precision."""
    degree: bool = False
    """Read a degree sign as π/180 rather than as a unit to leave out; always so inside sin, cos, tan…"""
    percent: bool = False
    """Read a percent sign as 1/100 rather than as a unit to leave out."""
    real: bool = False
    """Refuse even roots, logarithms and broken powers of negative numbers."""
    natural_log: bool = True
    """Read `log` without a base as ln rather than as log10."""


def evaluate(node: Node, setting: Setting) -> Value:
    """The value of an expression.

    Raises:
        NoValue: it has none, or the guards do not let it be computed.
    """
    try:
        return _value(node, setting)
    except (ArithmeticError, ValueError, TypeError, MemoryError) as error:
        raise NoValue(type(error).__name__) from None


def _value(node: Node, setting: Setting) -> Value:
    match node:
        case Number(value=value):
            return value
        case Symbol(name=name):
            return _symbol(name, setting)
        case Sum(terms=terms):
            return _fold(terms, setting, _add)
        case Product(factors=factors):
            return _fold(factors, setting, _multiply)
        case Quotient(over=over, under=under):
            return _divide(_value(over, setting), _value(under, setting), setting)
        case Power(base=base, exponent=exponent):
            return _power(_value(base, setting), _value(exponent, setting), setting)
        case Call(name=name, args=args):
            return _call(name, args, setting)
        case Apply(name=name, args=args):
            return _unknown(name, [_value(arg, setting) for arg in args], setting)
        case Series():
            return _series(node, setting)
        case Based(value=based):
            return Fraction(based)
        case Quantity(value=inner) | Residue(value=inner):
            return _value(inner, setting)
        case Brackets(items=items, opening="["):
            if len(items) == 1:
                return _value(items[0], setting)
    raise NoValue(f"{type(node).__name__} is not an expression")


def _symbol(name: str, setting: Setting) -> Value:
    if name in setting.symbols:
        return setting.symbols[name]
    constants: dict[str, Callable[[], Value]] = {
        "pi": lambda: +setting.context.pi,
        "e": lambda: +setting.context.e,
        "i": lambda: setting.context.mpc(0, 1),
    }
    if name in constants:
        return constants[name]()
    raise NoValue(f"{name} has no value")


def _fold(parts: tuple[Node, ...], setting: Setting, join: Callable[[Value, Value, Setting], Value]) -> Value:
    total = _value(parts[0], setting)
    for part in parts[1:]:
        total = _guard(join(total, _value(part, setting), setting), setting)
    return total


def _add(a: Value, b: Value, setting: Setting) -> Value:
    a, b = _alike(a, b, setting)
    if not isinstance(a, Fraction) and a and b:
        spread = setting.context.mag(a) - setting.context.mag(b)
        if abs(spread) > MAX_SPREAD_BITS:
            raise NoValue("too far apart to add")
    return a + b


def _alike(a: Value, b: Value, setting: Setting) -> tuple[Value, Value]:
    """Both as Fractions, or both as mpmath numbers."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a, b
    return _inexact(a, setting), _inexact(b, setting)


def _inexact(value: Value, setting: Setting) -> Value:
    if isinstance(value, Fraction):
        return setting.context.mpf(value.numerator) / value.denominator
    return value


def _guard(value: Value, setting: Setting) -> Value:
    if isinstance(value, Fraction):
        if value.numerator.bit_length() + value.denominator.bit_length() > MAX_BITS:
            raise NoValue("too large")
    elif not setting.context.isfinite(value):
        raise NoValue("not finite")
    elif value and abs(setting.context.mag(value)) > MAX_LOG10 * 4:
        raise NoValue("too large")
    return value


def _divide(over: Value, under: Value, setting: Setting) -> Value:
    over, under = _alike(over, under, setting)
    if under == 0:
        raise NoValue("division by zero")
    return _guard(over / under, setting)


def _power(base: Value, exponent: Value, setting: Setting) -> Value:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        return _exact_power(base, exponent.numerator)
    a, b = _alike(base, exponent, setting)
    if a == 0:
        if setting.context.re(b) <= 0:
            raise NoValue("a power of zero")
        return Fraction(0)
    context = setting.context
    if setting.real and context.re(a) < 0:
        raise NoValue("not real")
    if abs(context.mag(b)) > 64 or float(abs(b)) * abs(float(context.mag(a)) + 1) > MAX_LOG10 * 4:
        raise NoValue("too large")
    return _guard(context.power(a, b), setting)


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


_ANGLES = frozenset({"sin", "cos", "tan", "cot", "sec", "csc"})
_EXPONENTIAL = frozenset({"exp", "sinh", "cosh", "tanh", "coth", "sech", "csch"})
_PLAIN = {name: name for name in (*_ANGLES, *_EXPONENTIAL, "ln", "log10", "arg")} | {
    "arcsin": "asin",
    "arccos": "acos",
    "arctan": "atan",
    "arccot": "acot",
}
"""Functions of one argument, and what mpmath calls them."""


def _call(name: str, args: tuple[Node, ...], setting: Setting) -> Value:
    if name == "det":
        return _determinant(args, setting)
    inner = replace(setting, degree=True) if name in _ANGLES else setting
    values = [_value(arg, inner) for arg in args]
    if name in _PLAIN and len(values) == 1:
        return _plain(_PLAIN[name], values[0], setting)
    if name in _SPECIAL:
        return _guard(_SPECIAL[name](setting, *values), setting)
    raise NoValue(f"{name} of {len(values)} arguments")


def _plain(name: str, value: Value, setting: Setting) -> Value:
    argument = _inexact(value, setting)
    if setting.real and name in {"ln", "log10"} and _real(value, setting) < 0:
        raise NoValue("not real")
    if abs(setting.context.mag(argument)) > (16 if name in _EXPONENTIAL else 4 * MAX_LOG10) and argument:
        raise NoValue("too large")
    if name in _ANGLES and setting.context.mag(argument) > 300:
        raise NoValue("too large")
    return _guard(getattr(setting.context, name)(argument), setting)


def _root(setting: Setting, value: Value, index: Value) -> Value:
    """The real root where there is one; exact where it is rational."""
    if not isinstance(index, Fraction) or index.denominator != 1 or not 2 <= abs(index) <= 10_000:
        return _power(value, _divide(Fraction(1), index, setting), setting)
    order = abs(int(index))
    if setting.real and order % 2 == 0 and _real(value, setting) < 0:
        raise NoValue("not real")
    if isinstance(value, Fraction):
        over, under = _whole_root(value.numerator, order), _whole_root(value.denominator, order)
        if over is not None and under:
            return Fraction(over, under) if index > 0 else _divide(Fraction(under), Fraction(over), setting)
    context, number = setting.context, _inexact(value, setting)
    if order % 2 and context.im(number) == 0 and context.re(number) < 0:
        root = -context.root(-number, order)
    else:
        root = context.root(number, order)
    return root if index > 0 else _divide(Fraction(1), root, setting)


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


def _absolute(setting: Setting, value: Value) -> Value:
    return abs(value)


def _floor(setting: Setting, value: Value) -> Value:
    return Fraction(math.floor(_real(value, setting)))


def _ceiling(setting: Setting, value: Value) -> Value:
    return Fraction(math.ceil(_real(value, setting)))


def _real(value: Value, setting: Setting) -> Value:
    if isinstance(value, Fraction):
        return value
    if setting.context.im(value) != 0:
        raise NoValue("not real")
    return setting.context.re(value)


def _factorial(setting: Setting, value: Value) -> Value:
    if isinstance(value, Fraction) and value.denominator == 1:
        if not 0 <= value <= MAX_ARGUMENT:
            raise NoValue("too large")
        return Fraction(math.factorial(int(value)))
    argument = _inexact(value, setting)
    if abs(argument) > MAX_ARGUMENT:
        raise NoValue("too large")
    return setting.context.factorial(argument)


def _binomial(setting: Setting, top: Value, bottom: Value) -> Value:
    exact = isinstance(top, Fraction) and isinstance(bottom, Fraction)
    if exact and top.denominator == bottom.denominator == 1 and 0 <= top <= MAX_ARGUMENT and bottom >= 0:
        return Fraction(math.comb(int(top), int(bottom)))
    a, b = _inexact(top, setting), _inexact(bottom, setting)
    if max(abs(a), abs(b)) > MAX_ARGUMENT:
        raise NoValue("too large")
    return setting.context.binomial(a, b)


def _log(setting: Setting, value: Value) -> Value:
    return _plain("ln" if setting.natural_log else "log10", value, setting)


def _logarithm(setting: Setting, value: Value, base: Value) -> Value:
    return _divide(_plain("ln", value, setting), _plain("ln", base, setting), setting)


def _degree(setting: Setting, value: Value) -> Value:
    return _inexact(value, setting) * setting.context.pi / 180 if setting.degree else value


def _percent(setting: Setting, value: Value) -> Value:
    return _divide(value, Fraction(100), setting) if setting.percent else value


def _whole(values: tuple[Value, ...]) -> list[int]:
    if any(not isinstance(value, Fraction) or value.denominator != 1 for value in values):
        raise NoValue("not whole numbers")
    return [int(value) for value in values]


_SPECIAL: dict[str, Callable[..., Value]] = {
    "root": _root,
    "abs": _absolute,
    "norm": _absolute,
    "floor": _floor,
    "ceil": _ceiling,
    "factorial": _factorial,
    "binom": _binomial,
    "log": _log,
    "logarithm": _logarithm,
    "degree": _degree,
    "percent": _percent,
    "min": lambda setting, *values: min(_real(value, setting) for value in values),
    "max": lambda setting, *values: max(_real(value, setting) for value in values),
    "gcd": lambda setting, *values: Fraction(math.gcd(*_whole(values))),
    "lcm": lambda setting, *values: Fraction(math.lcm(*_whole(values))),
    "Re": lambda setting, value: setting.context.re(_inexact(value, setting)),
    "Im": lambda setting, value: setting.context.im(_inexact(value, setting)),
    "sgn": lambda setting, value: Fraction((_real(value, setting) > 0) - (_real(value, setting) < 0)),
}


def _determinant(args: tuple[Node, ...], setting: Setting) -> Value:
    """By elimination, exact where the entries are."""
    (matrix,) = args
    if not isinstance(matrix, Matrix) or len(matrix.rows) != len(matrix.rows[0]) or len(matrix.rows) > 12:
        raise NoValue("not a square matrix")
    rows = [[_value(cell, setting) for cell in row] for row in matrix.rows]
    total: Value = Fraction(1)
    for column in range(len(rows)):
        pivot = next((i for i in range(column, len(rows)) if rows[i][column] != 0), None)
        if pivot is None:
            return Fraction(0)
        if pivot != column:
            rows[column], rows[pivot] = rows[pivot], rows[column]
            total = -total
        head = rows[column]
        total = _guard(_multiply(total, head[column], setting), setting)
        for row in rows[column + 1 :]:
            scale = _divide(row[column], head[column], setting)
            for i in range(column, len(rows)):
                row[i] = _subtract(row[i], _multiply(scale, head[i], setting), setting)
    return total


def _multiply(a: Value, b: Value, setting: Setting) -> Value:
    a, b = _alike(a, b, setting)
    return a * b


def _subtract(a: Value, b: Value, setting: Setting) -> Value:
    return _add(a, -b, setting)


def _series(node: Series, setting: Setting) -> Value:
    """Added up between whole numbers that are near each other; otherwise a value of its own."""
    if node.kind == "lim":
        return _unknown_series(node, setting)
    try:
        low, high = _whole((_value(node.low, setting), _value(node.high, setting)))
    except NoValue:
        return _unknown_series(node, setting)
    if high - low > MAX_TERMS:
        return _unknown_series(node, setting)
    total: Value = Fraction(0 if node.kind == "sum" else 1)
    for i in range(low, high + 1):
        term = _value(node.body, replace(setting, symbols={**setting.symbols, node.index: Fraction(i)}))
        total = _guard((_add if node.kind == "sum" else _multiply)(total, term, setting), setting)
    return total


def _unknown_series(node: Series, setting: Setting) -> Value:
    inner = replace(
        setting, symbols={**setting.symbols, node.index: Fraction(1009, 733), "none": Fraction(7, 3)}
    )
    bounds = [
        _fraction_of(str(part)) if part == Symbol("infinity") else _value(part, inner)
        for part in (node.low, node.high)
    ]
    return _unknown(node.kind, [*bounds, _value(node.body, inner)], setting)


def _unknown(name: str, values: list[Value], setting: Setting) -> Value:
    """A value that only the name and the values of the parts decide."""
    return _fraction_of(name + "|" + "|".join(_rounded(value, setting) for value in values))


def _rounded(value: Value, setting: Setting) -> str:
    number = _inexact(value, setting)
    return str(setting.context.nstr(number, 20))


@lru_cache(maxsize=4096)
def _fraction_of(text: str) -> Fraction:
    """A pseudo-random number between 1/2 and 3/2."""
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:5], "big")
    return Fraction(digest, 1 << 40) + Fraction(1, 2)
