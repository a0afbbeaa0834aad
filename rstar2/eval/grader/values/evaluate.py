"""The value of an expression: exact while it is rational, to any number of digits otherwise.

Symbols get values from the caller. What is unknown (f(2), an integral, an endless sum) gets a value that depends only
on its name and on the values of its parts, so that equal things stay equal and others almost surely differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache

from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.values.functions import ANGLES, call
from rstar2.eval.grader.values.guarded_numbers import NoValue, Setting, Value, remainder, whole

MAX_TERMS = 2000
"""The longest sum or product written with an index that is added up."""
_SHORT = 10**9
"""Fractions whose numerator times denominator is below this differ within twenty digits."""


def unsolved(node: nodes.Node) -> bool:
    """Whether a limit, an integral or a sum too long to add up is part of an expression."""
    return any(map(is_unsolved, nodes.walk(node)))


def is_unsolved(node: nodes.Node) -> bool:
    """Whether it is itself a limit, an integral or a sum too long to add up."""
    match node:
        case nodes.Apply(name=name):
            return name in {"int", "iint", "oint"}
        case nodes.Series(kind="sum" | "prod", low=nodes.Number(value=low), high=nodes.Number(value=high)):
            return high - low > MAX_TERMS
    return isinstance(node, nodes.Series)


def evaluate(node: nodes.Node, setting: Setting) -> Value:
    """The value of an expression; NoValue where it has none, or the guards do not let it be computed."""
    try:
        return _value(node, setting)
    except (ArithmeticError, ValueError, TypeError, MemoryError) as error:
        raise NoValue(type(error).__name__) from None


def _value(node: nodes.Node, setting: Setting) -> Value:
    setting.work.spend()
    match node:
        case nodes.Number(value=value):
            return value
        case nodes.Symbol(name=name):
            return _symbol(name, setting)
        case nodes.Sum(terms=terms):
            return _fold(terms, setting, setting.add)
        case nodes.Product(factors=factors):
            return _fold(factors, setting, setting.multiply)
        case nodes.Quotient(over=over, under=under):
            return setting.divide(_value(over, setting), _value(under, setting))
        case nodes.Power(base=base, exponent=exponent):
            return setting.power(_value(base, setting), _value(exponent, setting))
        case nodes.Call(name="det", args=(matrix,)):
            return _determinant(matrix, setting)
        case nodes.Call(name=name, args=args):
            inner_setting = replace(setting, degree=True) if name in ANGLES else setting
            return call(name, [_value(arg, inner_setting) for arg in args], setting)
        case nodes.Apply(name=name, args=args):
            return _unknown(name, [_value(arg, setting) for arg in args], setting)
        case nodes.Series():
            return _series(node, setting)
        case nodes.Based(value=based):
            return Fraction(based)
        case nodes.Residue(value=inner, modulus=modulus, is_remainder=True):
            return remainder(_value(inner, setting), _value(modulus, setting))
        case nodes.Quantity(value=inner) | nodes.Residue(value=inner):
            return _value(inner, setting)
        case nodes.Brackets(items=items, opening="["):
            if len(items) == 1:
                return _value(items[0], setting)
    raise NoValue(f"{type(node).__name__} is not an expression")


def _symbol(name: str, setting: Setting) -> Value:
    if name in setting.symbols:
        value = setting.symbols[name]
        return setting.context.mpc(*map(setting.inexact, value)) if isinstance(value, tuple) else value
    if name in {"pi", "e"}:
        return +getattr(setting.context, name)
    if name == "i":
        return setting.context.mpc(0, 1)
    raise NoValue(f"{name} has no value")


def _fold(parts: tuple[nodes.Node, ...], setting: Setting, join: Callable[[Value, Value], Value]) -> Value:
    total = _value(parts[0], setting)
    for part in parts[1:]:
        total = setting.guard(join(total, _value(part, setting)))
    return total


def _determinant(matrix: nodes.Node, setting: Setting) -> Value:
    """By elimination, exact where the entries are."""
    if not isinstance(matrix, nodes.Matrix) or not len(matrix.rows) == len(matrix.rows[0]) <= 12:
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
        total = setting.guard(setting.multiply(total, head[column]))
        for row in rows[column + 1 :]:
            scale = setting.divide(row[column], head[column])
            for i in range(column, len(rows)):
                row[i] = setting.add(row[i], -setting.multiply(scale, head[i]))
    return total


def _series(node: nodes.Series, setting: Setting) -> Value:
    """Added up between whole numbers that are near each other; otherwise a value of its own."""
    if node.kind in {"lim", "int"}:
        return _unknown_series(node, setting)
    try:
        low, high = whole((_value(node.low, setting), _value(node.high, setting)))
    except NoValue:
        return _unknown_series(node, setting)
    if high - low > MAX_TERMS:
        return _unknown_series(node, setting)
    total: Value = Fraction(0 if node.kind == "sum" else 1)
    for i in range(low, high + 1):
        term = _value(node.body, replace(setting, symbols={**setting.symbols, node.index: Fraction(i)}))
        total = setting.guard((setting.add if node.kind == "sum" else setting.multiply)(total, term))
    return total


def _unknown_series(node: nodes.Series, setting: Setting) -> Value:
    symbols = {**setting.symbols, node.index: Fraction(1009, 733), "none": Fraction(7, 3)}
    inner = replace(setting, symbols=symbols)
    bounds = [
        _fraction_of(str(part)) if part == nodes.Symbol("infinity") else _value(part, inner)
        for part in (node.low, node.high)
    ]
    return _unknown(node.kind, [*bounds, _value(node.body, inner)], setting)


def _unknown(name: str, values: list[Value], setting: Setting) -> Value:
    """A value that only the name and the values of the parts decide."""
    found = _fraction_of("|".join([name, *(_written(value, setting) for value in values)]))
    return -found - 7 if setting.others else found


def _written(value: Value, setting: Setting) -> str:
    """A value as text, the same for an exact and an inexact one where twenty digits tell fractions apart."""
    if isinstance(value, Fraction) and abs(value.numerator) * value.denominator > _SHORT:
        return str(value)
    return str(setting.context.nstr(setting.inexact(value), 20))


@lru_cache(maxsize=4096)
def _fraction_of(text: str) -> Fraction:
    """A pseudo-random number between 1/2 and 3/2."""
    digest = int.from_bytes(hashlib.sha256(text.encode()).digest()[:5], "big")
    return Fraction(digest, 1 << 40) + Fraction(1, 2)
