"""Limits, integrals and long sums, worked out by sympy.

Comparing values at points cannot decide these. Each is built node by node from sympy's own classes, never from
text, and what sympy finds is turned back into nodes, which are compared like any other. Nothing here bounds
sympy's time: call it where a deadline does.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from rstar2.eval.grader.compare.evaluate import MAX_TERMS
from rstar2.eval.grader.parse.nodes import (
    Apply,
    Based,
    Call,
    Node,
    Number,
    Power,
    Product,
    Quotient,
    Series,
    Sum,
    Symbol,
    number,
    walk,
    with_parts,
)

_MAX_BITS = 2_000
_MAX_EXPONENT = 200
_MAX_ARGUMENT = 1_000
"""Of a factorial or binomial coefficient."""
_UNSOLVED = frozenset({"int", "iint", "oint"})


class _NoForm(Exception):
    """It cannot be said in the other's terms, or sympy did not work it out."""


def unsolved(node: Node) -> bool:
    """Whether a limit, an integral or a sum too long to add up is part of an expression."""
    return any(_is_unsolved(part) for part in walk(node))


def _is_unsolved(node: Node) -> bool:
    if isinstance(node, Apply):
        return node.name in _UNSOLVED
    if not isinstance(node, Series):
        return False
    if node.kind in {"lim", "int"}:
        return True
    low, high = node.low, node.high
    short = isinstance(low, Number) and isinstance(high, Number) and high.value - low.value <= MAX_TERMS
    return not short


def worked_out(node: Node) -> Node:
    """The expression with every limit, integral and long sum replaced by its value where sympy finds one."""
    node = with_parts(node, worked_out)
    if not isinstance(node, Series) or not _is_unsolved(node):
        return node
    try:
        return _to_node(_value(node))
    except Exception:  # noqa: BLE001  sympy raises many kinds of error for what it cannot do
        return node


def _value(node: Series) -> Any:
    """What sympy makes of a limit, an integral, a sum or a product.

    Raises:
        _NoForm: nothing.
    """
    import sympy

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


def _to_sympy(node: Node, bound: dict[str, Any]) -> Any:
    """Raises: _NoForm."""
    import sympy

    def inner(part: Node) -> Any:
        return _to_sympy(part, bound)

    match node:
        case Number(value=value):
            if value.numerator.bit_length() + value.denominator.bit_length() > _MAX_BITS:
                raise _NoForm("too large")
            return sympy.Rational(value.numerator, value.denominator)
        case Based(value=based):
            return sympy.Integer(based)
        case Symbol(name=name):
            return _symbol(name, bound)
        case Sum(terms=terms):
            return sympy.Add(*map(inner, terms))
        case Product(factors=factors):
            return sympy.Mul(*map(inner, factors))
        case Quotient(over=over, under=under):
            return inner(over) / inner(under)
        case Power(base=base, exponent=exponent):
            return _power(inner(base), inner(exponent))
        case Call(name=name, args=args):
            return _call(name, [inner(arg) for arg in args])
    raise _NoForm(type(node).__name__)


def _symbol(name: str, bound: dict[str, Any]) -> Any:
    import sympy

    constants = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "infinity": sympy.oo}
    if name in bound:
        return bound[name]
    if name in {"none", "dots"}:
        raise _NoForm(name)
    return constants[name] if name in constants else sympy.Symbol(name, real=True)


def _power(base: Any, exponent: Any) -> Any:
    if exponent.is_number and not abs(exponent) <= _MAX_EXPONENT and not exponent.is_infinite:
        raise _NoForm("too large an exponent")
    return base**exponent


def _call(name: str, args: list[Any]) -> Any:
    import sympy

    if name in {"factorial", "binom"} and any(arg.is_number and abs(arg) > _MAX_ARGUMENT for arg in args):
        raise _NoForm("too large")
    made: dict[str, Callable[..., Any]] = {
        "root": lambda value, index: value ** (1 / index),
        "log": sympy.log,
        "log10": lambda value: sympy.log(value, 10),
        "logarithm": lambda value, base: sympy.log(value, base),
        "binom": sympy.binomial,
    }
    function = made.get(name) or {ours: theirs for theirs, ours in _functions().items()}.get(name)
    if function is None:
        raise _NoForm(name)
    return function(*args)


def _functions() -> dict[Any, str]:
    """sympy's functions by the names they have in nodes."""
    import sympy

    plain = "sin cos tan cot sec csc sinh cosh tanh coth sech csch exp factorial arg floor"
    return {getattr(sympy, name): name for name in plain.split()} | {
        sympy.asin: "arcsin",
        sympy.acos: "arccos",
        sympy.atan: "arctan",
        sympy.acot: "arccot",
        sympy.log: "ln",
        sympy.Abs: "abs",
        sympy.ceiling: "ceil",
        sympy.sign: "sgn",
        sympy.re: "Re",
        sympy.im: "Im",
        sympy.Min: "min",
        sympy.Max: "max",
    }


def _to_node(found: Any) -> Node:
    """Raises: _NoForm."""
    import sympy

    constants = {sympy.pi: "pi", sympy.E: "e", sympy.I: "i", sympy.oo: "infinity"}
    if found in constants:
        return Symbol(constants[found])
    if found == -sympy.oo:
        return Product((number(-1), Symbol("infinity")))
    if isinstance(found, sympy.Rational):
        return Number(Fraction(int(found.p), int(found.q)))
    if isinstance(found, sympy.Symbol) and not isinstance(found, sympy.Dummy):
        return Symbol(found.name)
    parts = tuple(_to_node(arg) for arg in found.args) if found.is_Add or found.is_Mul or found.is_Pow else ()
    if found.is_Add:
        return Sum(parts)
    if found.is_Mul:
        return Product(parts)
    if found.is_Pow:
        return Power(*parts)
    name = _functions().get(found.func)
    if name is None:
        raise _NoForm(str(found.func))
    return Call(name, tuple(_to_node(arg) for arg in found.args))
