"""Limits, integrals and long sums, worked out by sympy.

Comparing values at points cannot decide these. Each is built node by node from sympy's own classes, never from
text, and what sympy finds is turned back into nodes, which are compared like any other. Nothing here bounds
sympy's time: call it where a deadline does.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import sympy

from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.values.evaluate import is_unsolved

_MAX_BITS = 2_000
_MAX_EXPONENT = 200
_MAX_ARGUMENT = 1_000
"""Of a factorial or binomial coefficient."""
_CONSTANTS = {"pi": "pi", "e": "E", "i": "I", "infinity": "oo"}
"""The constants of nodes, and what sympy calls them."""
_FUNCTIONS = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "ln": "log", "abs": "Abs",
    "ceil": "ceiling", "sgn": "sign", "Re": "re", "Im": "im", "min": "Min", "max": "Max",
    "sin": "sin", "cos": "cos", "tan": "tan", "cot": "cot", "sec": "sec", "csc": "csc",
    "sinh": "sinh", "cosh": "cosh", "tanh": "tanh", "coth": "coth", "sech": "sech", "csch": "csch",
    "exp": "exp", "factorial": "factorial", "arg": "arg", "floor": "floor",
}  # fmt: skip
"""The functions of nodes, and what sympy calls them."""


class _NoForm(Exception):
    """It cannot be said in the other's terms, or sympy did not work it out."""


def worked_out(node: nodes.Node) -> nodes.Node:
    """The expression with every limit, integral and long sum replaced by its value where sympy finds one."""
    node = nodes.with_parts(node, worked_out)
    if not isinstance(node, nodes.Series) or not is_unsolved(node):
        return node
    try:
        return _to_node(_value(node))
    except Exception:  # noqa: BLE001  sympy raises many kinds of error for what it cannot do
        return node


def _value(node: nodes.Series) -> Any:
    """What sympy makes of a limit, an integral, a sum or a product."""
    whole = node.kind in {"sum", "prod"}
    variable = sympy.Dummy(node.index, integer=True) if whole else sympy.Dummy(node.index, real=True)
    body = _to_sympy(node.body, {node.index: variable})
    low = _to_sympy(node.low, {})
    if node.kind == "lim":
        found = sympy.limit(body, variable, low, "+-" if low.is_finite else "+")
    else:
        bounds = (variable, low, _to_sympy(node.high, {}))
        if node.kind == "int":
            found = sympy.integrate(body, bounds, conds="none")
        else:
            found = (sympy.summation if node.kind == "sum" else sympy.product)(body, bounds)
    if isinstance(found, sympy.Piecewise):
        # The first case is the one in which the sum converges.
        found = found.args[0].expr
    return found


def _to_sympy(node: nodes.Node, bound: dict[str, Any]) -> Any:
    """Raises: _NoForm."""

    def inner(part: nodes.Node) -> Any:
        return _to_sympy(part, bound)

    match node:
        case nodes.Number(value=value):
            if value.numerator.bit_length() + value.denominator.bit_length() > _MAX_BITS:
                raise _NoForm("too large")
            return sympy.Rational(value.numerator, value.denominator)
        case nodes.Based(value=based):
            return sympy.Integer(based)
        case nodes.Symbol(name=name):
            return _symbol(name, bound)
        case nodes.Sum(terms=terms):
            return sympy.Add(*map(inner, terms))
        case nodes.Product(factors=factors):
            return sympy.Mul(*map(inner, factors))
        case nodes.Quotient(over=over, under=under):
            return inner(over) / inner(under)
        case nodes.Power(base=base, exponent=exponent):
            return _power(inner(base), inner(exponent))
        case nodes.Call(name=name, args=args):
            return _call(name, [inner(arg) for arg in args])
    raise _NoForm(type(node).__name__)


def _symbol(name: str, bound: dict[str, Any]) -> Any:
    if name in bound:
        return bound[name]
    if name in {"none", "dots"}:
        raise _NoForm(name)
    return getattr(sympy, _CONSTANTS[name]) if name in _CONSTANTS else sympy.Symbol(name, real=True)


def _power(base: Any, exponent: Any) -> Any:
    if exponent.is_number and not abs(exponent) <= _MAX_EXPONENT and not exponent.is_infinite:
        raise _NoForm("too large an exponent")
    return base**exponent


def _call(name: str, args: list[Any]) -> Any:
    if name in {"factorial", "binom"} and any(arg.is_number and abs(arg) > _MAX_ARGUMENT for arg in args):
        raise _NoForm("too large")
    made: dict[str, Callable[..., Any]] = {
        "root": lambda value, index: value ** (1 / index),
        "log": sympy.log,
        "log10": lambda value: sympy.log(value, 10),
        "logarithm": sympy.log,
        "binom": sympy.binomial,
    }
    if name not in made and name not in _FUNCTIONS:
        raise _NoForm(name)
    function = made[name] if name in made else getattr(sympy, _FUNCTIONS[name])
    return function(*args)


def _to_node(found: Any) -> nodes.Node:
    """Raises: _NoForm."""
    for ours, theirs in _CONSTANTS.items():
        if found == getattr(sympy, theirs):
            return nodes.Symbol(ours)
    if found == -sympy.oo:
        return nodes.Product((nodes.number(-1), nodes.Symbol("infinity")))
    if isinstance(found, sympy.Rational):
        return nodes.Number(Fraction(int(found.p), int(found.q)))
    if isinstance(found, sympy.Symbol) and not isinstance(found, sympy.Dummy):
        return nodes.Symbol(found.name)
    parts = tuple(_to_node(arg) for arg in found.args) if found.is_Add or found.is_Mul or found.is_Pow else ()
    if found.is_Add:
        return nodes.Sum(parts)
    if found.is_Mul:
        return nodes.Product(parts)
    if found.is_Pow:
        return nodes.Power(*parts)
    name = next((ours for ours, theirs in _FUNCTIONS.items() if found.func == getattr(sympy, theirs)), None)
    if name is None:
        raise _NoForm(str(found.func))
    return nodes.Call(name, tuple(_to_node(arg) for arg in found.args))
