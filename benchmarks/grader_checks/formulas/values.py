"""Evaluates formulas at points, and decides whether two are equal: with fractions, or with mpmath at two precisions.

It is independent of the grader: nothing here is imported from the package.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Any, Literal, TypeAlias

from mpmath.ctx_mp import MPContext

from formulas.trees import Letter, Number, Op, Tree

Value: TypeAlias = Any
"""An exact Fraction, or else a real mpmath number."""
Point: TypeAlias = Mapping[str, Fraction]
Comparison: TypeAlias = Literal["same", "different", "one-sided", "unknown"]
Decision: TypeAlias = Literal["equal", "differs", "undecided"]

MAX_BITS = 20_000
"""Exact numbers with more bits than this are not computed."""
MAX_FACTORIAL = 2_000
LEAST_SAME = 8
"""Formulas count as equal if they agree at this number of points or more, and differ at none."""
LEAST_DIFFERENT = 2
"""Formulas count as different if they differ at this number of points or more."""
LOW_DIGITS, HIGH_DIGITS = 60, 140


class Undefined(Exception):
    """Raised if the formula has no value at the point."""


class Undecided(Exception):
    """Raised if the value is too large, or too close to a discontinuity, to be computed."""


def context(digits: int) -> Any:
    """Return a new mpmath context with this number of decimal digits."""
    context = MPContext()
    context.dps = digits
    return context


_LOW, _HIGH = context(LOW_DIGITS), context(HIGH_DIGITS)


def value(tree: Tree, point: Point, ctx: Any) -> Value:
    """Return the value of a formula. Raises Undefined if there is none, and Undecided if it cannot be computed."""
    match tree:
        case Number(value=exact):
            return exact
        case Letter(name=name):
            return point[name]
        case Op(name=name, args=args):
            return _checked(_operation(name, [value(arg, point, ctx) for arg in args], ctx), ctx)
    raise AssertionError(tree)


def _checked(result: Value, ctx: Any) -> Value:
    if isinstance(result, Fraction):
        if result.numerator.bit_length() + result.denominator.bit_length() > MAX_BITS:
            raise Undecided("too large")
    elif not ctx.isfinite(result) or abs(ctx.mag(result)) > MAX_BITS:
        raise Undecided("too large")
    return result


def _inexact(number: Value, ctx: Any) -> Any:
    return ctx.mpf(number.numerator) / number.denominator if isinstance(number, Fraction) else number


def _operation(name: str, args: list[Value], ctx: Any) -> Value:
    exact = all(isinstance(arg, Fraction) for arg in args)
    match name, args:
        case "pi", []:
            return +ctx.pi
        case "add", _:
            return sum(args, Fraction(0)) if exact else ctx.fsum(_inexact(arg, ctx) for arg in args)
        case "mul", _:
            return (
                math.prod(args, start=Fraction(1)) if exact else ctx.fprod(_inexact(arg, ctx) for arg in args)
            )
        case "neg", [one]:
            return -one
        case "div", [over, under]:
            if under == 0:
                raise Undefined("division by zero")
            return over / under if exact else _inexact(over, ctx) / _inexact(under, ctx)
        case "pow", [base, exponent]:
            return _power(base, exponent, ctx)
        case "abs", [one]:
            return abs(one)
        case "min", _:
            return min(args, key=lambda arg: _inexact(arg, ctx))
        case "max", _:
            return max(args, key=lambda arg: _inexact(arg, ctx))
        case "floor", [one]:
            return _floor(one, ctx)
        case "ceil", [one]:
            return -_floor(-one, ctx)
        case "mod", [one, modulus]:
            return _remainder(one, modulus)
        case "gcd", _:
            return Fraction(math.gcd(*_whole(args)))
        case "lcm", _:
            return Fraction(math.lcm(*_whole(args)))
        case "factorial", [one]:
            return _factorial(one)
        case "binom", [top, bottom]:
            return _binomial(top, bottom)
        case "sqrt", [one]:
            return _root(one, 2, ctx)
        case "cbrt", [one]:
            return _root(one, 3, ctx)
        case "log", [base, one]:
            return _operation("div", [_logarithm(one, ctx), _logarithm(base, ctx)], ctx)
        case "ln", [one]:
            return _logarithm(one, ctx)
    return _elementary(name, args[0], ctx)


def _elementary(name: str, argument: Value, ctx: Any) -> Value:
    inexact = _inexact(argument, ctx)
    if name == "exp":
        if abs(inexact) > MAX_BITS // 2:
            raise Undecided("too large")
        return ctx.exp(inexact)
    if abs(inexact) > 10**30:
        raise Undecided("too large")
    if name in {"sin", "cos", "tan", "arctan"}:
        return {"sin": ctx.sin, "cos": ctx.cos, "tan": ctx.tan, "arctan": ctx.atan}[name](inexact)
    if name == "sec":
        return 1 / ctx.cos(inexact)
    under = ctx.sin(inexact)
    if under == 0:
        raise Undefined(name)
    return (ctx.cos(inexact) if name == "cot" else ctx.one) / under


def _power(base: Value, exponent: Value, ctx: Any) -> Value:
    whole = isinstance(exponent, Fraction) and exponent.denominator == 1
    if base == 0:
        if exponent <= 0:
            raise Undefined("a power of zero")
        return Fraction(0)
    if whole:
        times = exponent.numerator
        if not isinstance(base, Fraction):
            if abs(ctx.mag(base) * times) > MAX_BITS:
                raise Undecided("too large")
            return base**times
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(base) != 1 and bits * abs(times) > MAX_BITS:
            raise Undecided("too large")
        return base ** (times % 2 if abs(base) == 1 else times)
    if base < 0:
        raise Undefined("a power of a negative number")
    a, b = _inexact(base, ctx), _inexact(exponent, ctx)
    if abs(b) * abs(ctx.mag(a)) > MAX_BITS:
        raise Undecided("too large")
    return ctx.power(a, b)


def _root(argument: Value, order: int, ctx: Any) -> Value:
    if argument < 0:
        if order % 2 == 0:
            raise Undefined("a root of a negative number")
        return -_root(-argument, order, ctx)
    if isinstance(argument, Fraction) and order == 2:
        over, under = math.isqrt(argument.numerator), math.isqrt(argument.denominator)
        if over * over == argument.numerator and under * under == argument.denominator:
            return Fraction(over, under)
    return ctx.root(_inexact(argument, ctx), order)


def _logarithm(argument: Value, ctx: Any) -> Value:
    if argument <= 0:
        raise Undefined("a logarithm")
    if argument == 1:
        return Fraction(0)
    return ctx.ln(_inexact(argument, ctx))


def _floor(argument: Value, ctx: Any) -> Fraction:
    if isinstance(argument, Fraction):
        return Fraction(math.floor(argument))
    nearest = ctx.nint(argument)
    if abs(argument - nearest) < ctx.mpf(10) ** -25 or ctx.mag(argument) > 80:
        raise Undecided("near a jump")
    return Fraction(int(ctx.floor(argument)))


def _remainder(argument: Value, modulus: Value) -> Value:
    if not isinstance(argument, Fraction) or not isinstance(modulus, Fraction):
        raise Undecided("a remainder of a number that is not exact")
    if modulus <= 0:
        raise Undefined("a modulus that is not positive")
    return argument % modulus


def _whole(args: Iterable[Value]) -> list[int]:
    numbers = list(args)
    if any(not isinstance(arg, Fraction) or arg.denominator != 1 for arg in numbers):
        raise Undefined("not whole numbers")
    return [int(arg) for arg in numbers]


def _factorial(argument: Value) -> Fraction:
    (n,) = _whole([argument])
    if n < 0:
        raise Undefined("a factorial of a negative number")
    if n > MAX_FACTORIAL:
        raise Undecided("too large")
    return Fraction(math.factorial(n))


def _binomial(top: Value, bottom: Value) -> Fraction:
    n, k = _whole([top, bottom])
    if n < 0 or k < 0:
        raise Undefined("a binomial coefficient of a negative number")
    if n > MAX_FACTORIAL and min(k, n - k) > 60:
        raise Undecided("too large")
    return Fraction(math.comb(n, k))


def _is_defined(tree: Tree, point: Point) -> bool:
    try:
        value(tree, point, _LOW)
    except Undefined:
        return False
    return True


def compared(a: Tree, b: Tree, point: Point) -> Comparison:
    """Decide whether two formulas have the same value at a point.

    Returns `one-sided` if only one of them has a value, and `unknown` if a value cannot be computed.
    """
    try:
        defined = _is_defined(a, point), _is_defined(b, point)
        if not all(defined):
            return "one-sided" if any(defined) else "unknown"
        low = value(a, point, _LOW), value(b, point, _LOW)
        if all(isinstance(each, Fraction) for each in low):
            return "same" if low[0] == low[1] else "different"
        high = value(a, point, _HIGH), value(b, point, _HIGH)
    except (Undecided, ZeroDivisionError, OverflowError):
        return "unknown"
    scale = max(*(abs(_inexact(each, _HIGH)) for each in high))
    rough = abs(_HIGH.mpf(_inexact(low[0], _LOW) - _inexact(low[1], _LOW)))
    fine = abs(_inexact(high[0], _HIGH) - _inexact(high[1], _HIGH))
    if fine > scale * _HIGH.mpf(10) ** -20 and abs(fine - rough) < fine / 1000:
        return "different"
    if fine <= max(scale, _HIGH.mpf(10) ** -40) * _HIGH.mpf(10) ** -70:
        return "same"
    return "unknown"


def decision(a: Tree, b: Tree, points: Iterable[Point]) -> Decision:
    """Decide whether two formulas are equal at all points at which both have values, or differ at several.

    If at many points only one of them has a value, they do not count as equal.
    """
    same = different = one_sided = 0
    for point in points:
        match compared(a, b, point):
            case "same":
                same += 1
            case "one-sided":
                one_sided += 1
            case "different":
                different += 1
                if different >= LEAST_DIFFERENT:
                    return "differs"
    return "equal" if not different and same >= max(LEAST_SAME, 4 * one_sided) else "undecided"
