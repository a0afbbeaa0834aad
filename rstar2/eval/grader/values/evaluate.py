"""Evaluates an expression: exactly if the value is rational, and otherwise to any number of digits.

The caller provides the values of letters. An unknown part, such as f(2), an integral or an infinite sum, gets a value
that depends only on its name, on the values of its parts and on the secret of the run. Therefore equal parts have equal
values, and different parts almost surely have different values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.values.functions import ANGLES, call
from rstar2.eval.grader.values.guarded_numbers import (
    BeyondGuards,
    NotACount,
    Notes,
    NoValue,
    Setting,
    TooMuchWork,
    Value,
    integers,
    remainder,
)
from rstar2.eval.grader.values.letters import variables
from rstar2.eval.grader.values.secret import keyed_number

MAX_TERMS = 2000
"""A sum or product over an index is computed only if it has at most about this many terms."""
_TERM = 10
"""The cost of computing one term of a sum, or the value of an unknown part, in units of `BUDGET`."""
_ENDLESS = frozenset({nodes.Symbol("infinity"), nodes.Symbol("none")})


def unsolved(node: nodes.Node) -> bool:
    """Whether an expression contains a limit, an integral, or a sum or product that is not computed."""
    return any(map(is_unsolved, nodes.walk(node)))


def is_unsolved(node: nodes.Node) -> bool:
    """Whether a node, regardless of its parts, is a limit, an integral, or a sum or product that is infinite or too
    long."""
    match node:
        case nodes.Apply(name=name):
            return name in {"int", "iint", "oint"}
        case nodes.Series(kind="sum" | "prod", low=nodes.Number(value=low), high=nodes.Number(value=high)):
            return high - low > MAX_TERMS
        case nodes.Series(kind="sum" | "prod", low=low_end, high=high_end):
            return any(part in _ENDLESS for end in (low_end, high_end) for part in nodes.walk(end))
    return isinstance(node, nodes.Series)


def evaluate(node: nodes.Node, setting: Setting) -> Value:
    """Returns the value of an expression.

    Raises NoValue if the expression has no value, or if its value cannot be computed within the limits of
    `guarded_numbers`.
    """
    setting.step()
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
            return setting.divide(evaluate(over, setting), evaluate(under, setting))
        case nodes.Power(base=base, exponent=exponent):
            return setting.power(evaluate(base, setting), evaluate(exponent, setting))
        case nodes.Call(name="det", args=(matrix,)):
            return _determinant(matrix, setting)
        case nodes.Call(name=name, args=args):
            inner_setting = replace(setting, degree=True) if name in ANGLES else setting
            return call(name, [evaluate(arg, inner_setting) for arg in args], setting)
        case nodes.Apply(name=name, args=args):
            return _unknown(name, [evaluate(arg, setting) for arg in args], setting)
        case nodes.Series():
            return _remembered(node, setting) if not variables(node) else _series(node, setting)
        case nodes.Based(value=based):
            return Fraction(based)
        case nodes.Residue(value=inner, modulus=modulus, is_remainder=True):
            return remainder(evaluate(inner, setting), evaluate(modulus, setting))
        case nodes.Quantity(value=inner) | nodes.Residue(value=inner):
            return evaluate(inner, setting)
        case nodes.Brackets(items=items, opening="["):
            if len(items) == 1:
                return evaluate(items[0], setting)
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
    total = evaluate(parts[0], setting)
    for part in parts[1:]:
        total = setting.guard(join(total, evaluate(part, setting)))
    return total


def _determinant(matrix: nodes.Node, setting: Setting) -> Value:
    """Computes the determinant of a matrix by elimination. The determinant is exact if the entries are exact."""
    if not isinstance(matrix, nodes.Matrix) or not len(matrix.rows) == len(matrix.rows[0]) <= 12:
        raise NoValue("a determinant of a matrix that is not square or too large")
    rows = [[evaluate(cell, setting) for cell in row] for row in matrix.rows]
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


def _remembered(node: nodes.Series, setting: Setting) -> Value:
    """Returns the value of a sum without free letters. The value is computed only once while an answer is graded,
    because it is the same at every point."""
    reading = (setting.degree, setting.percent, setting.real, setting.natural_log, setting.others)
    key = (node, setting.context.dps, reading)
    cache = setting.budget.values
    if key not in cache:
        notes = Notes()
        try:
            cache[key] = _series(node, replace(setting, symbols={}, notes=notes)), notes
        except TooMuchWork:
            raise
        except NoValue as error:
            cache[key] = error, notes
    value, notes = cache[key]
    setting.notes.note(notes.bits)
    setting.notes.several_values |= notes.several_values
    if isinstance(value, NoValue):
        raise value
    return value


def _series(node: nodes.Series, setting: Setting) -> Value:
    """Returns the value of a series. If the bounds allow it, the series is computed term by term. Otherwise, the series
    counts as an unknown part."""
    if is_unsolved(node):
        return _unknown_series(node, setting)
    low, high = integers((evaluate(node.low, setting), evaluate(node.high, setting)))
    if high < low - 1:
        raise NotACount("a sum whose last term comes before its first")
    if high > low + MAX_TERMS:
        raise BeyondGuards("a sum with too many terms")
    total: Value = Fraction(0 if node.kind == "sum" else 1)
    for i in range(low, high + 1):
        setting.budget.spend(_TERM)
        term = evaluate(node.body, replace(setting, symbols={**setting.symbols, node.index: Fraction(i)}))
        total = setting.guard((setting.add if node.kind == "sum" else setting.multiply)(total, term))
    return total


def _unknown_series(node: nodes.Series, setting: Setting) -> Value:
    """Returns a value for a series that is not computed term by term.

    The value depends on the bounds, and on the terms at one positive and one negative index.
    """
    parts: list[Value] = []
    for sign in (1, -1):
        index = sign * (2 + sign) * _fraction_of("index")
        inner = replace(setting, symbols={**setting.symbols, node.index: index, "none": Fraction(7, 3)})
        if sign > 0:
            parts += [
                _fraction_of(str(part)) if part == nodes.Symbol("infinity") else evaluate(part, inner)
                for part in (node.low, node.high)
            ]
        try:
            parts.append(evaluate(node.body, inner))
        except TooMuchWork:
            raise
        except NoValue:
            if sign > 0:
                raise
            parts.append(Fraction(0))
    return _unknown(node.kind, parts, setting)


def _unknown(name: str, values: list[Value], setting: Setting) -> Value:
    """The value of an unknown part.

    The value depends only on the name, the values of its parts and the secret of the run.
    """
    setting.budget.spend(_TERM)
    value = _fraction_of("|".join([name, *(_as_text(part, setting) for part in values)]))
    value = -value - 7 if setting.others else value
    # With inexact arguments the value is inexact too, so that it is compared again to more digits.
    return value if all(isinstance(part, Fraction) for part in values) else setting.inexact(value)


def _as_text(value: Value, setting: Setting) -> str:
    """Returns a value as text, with half of the digits that are computed. Equal values have equal texts, even if one is
    exact and the other is inexact."""
    digits = setting.context.dps // 2
    if isinstance(value, Fraction) and abs(value.numerator) * value.denominator > 10 ** (digits // 2):
        return f"{value.numerator:x}/{value.denominator:x}"
    return str(setting.context.nstr(setting.inexact(value), digits))


def _fraction_of(text: str) -> Fraction:
    """A pseudo-random number between 1/2 and 3/2 that depends only on the text and the secret of the run."""
    return Fraction(keyed_number("unknown", text) % (1 << 40), 1 << 40) + Fraction(1, 2)
