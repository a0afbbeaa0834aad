"""Signs with two readings: 30° as 30 and as π/6, 5 % as 5 and as 0.05, log as natural and as decimal logarithm.

A whole answer such as 30° may be meant either way. In a calculation, as in 1° - 1, only one reading is meant, and an
expression that has another value in each reading would be two answers; it gets the usual one here.
"""

from __future__ import annotations

from rstar2.eval.grader.compare.equality import functions, whole_number
from rstar2.eval.grader.compare.functions import ANGLES
from rstar2.eval.grader.compare.guarded_numbers import NoValue
from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Call, Node, Symbol, number, walk, with_parts

DOUBLE = frozenset({"degree", "percent", "log"})
"""The calls with two readings."""
_NATURAL = frozenset({"ln", "exp"})


def in_one_reading(node: Node) -> Node:
    """The expression with signs left as they are only where both readings say the same or one of them is meant."""
    used = functions(node)
    several = len(used & DOUBLE) > 1
    if "degree" in used and (several or _dimension(node, "degree") not in {0, 1}):
        node = _replaced(node, "degree", plain=Symbol("pi") not in set(walk(node)))
    if "log" in used and (several or not _linear_in_logs(node)):
        natural = bool(used & _NATURAL) or Symbol("e") in set(walk(node))
        node = _renamed(node, "ln" if natural else "log10")
    return _percentage(node) if "percent" in used else node


def without_signs(node: Node) -> Node:
    """The number that a percentage or an angle in degrees stands for."""
    return _replaced(_replaced(node, "percent", plain=False), "degree", plain=False)


def counted_in(sign: str, node: Node) -> Node:
    """How many percent or degrees a number is."""
    node = without_signs(node)
    if sign == "percent":
        return nodes.Product((node, number(100)))
    return nodes.Quotient(nodes.Product((node, number(180))), Symbol("pi"))


def _percentage(node: Node) -> Node:
    """A percentage, unless two whole numbers are possible: 100 % is 1, 200 % is 200, in a calculation 5 % is 0.05."""
    dimension = _dimension(node, "percent")
    if dimension != 1:
        return node if dimension == 0 else _replaced(node, "percent", plain=False)
    try:
        hundredths = whole_number(nodes.Quotient(_replaced(node, "percent", plain=True), number(100)))
    except NoValue:
        return _replaced(node, "percent", plain=True)
    return node if hundredths is None else _replaced(node, "percent", plain=hundredths != 1)


def _dimension(node: Node, sign: str) -> int | None:
    """How often a sign is a factor of an expression; None where it is not the same in all terms."""
    if sign not in functions(node):
        return 0
    match node:
        case nodes.Call(name=name, args=(arg,)) if name == sign:
            inner = _dimension(arg, sign)
            return None if inner is None else inner + 1
        case nodes.Call(name=name) if sign == "degree" and name in ANGLES:
            return 0
        case nodes.Sum(terms=terms):
            return _common(terms, sign)
        case nodes.PlusMinus(left=left, right=right):
            return _common(tuple(part for part in (left, right) if part != number(0)), sign)
        case nodes.Product(factors=factors):
            parts = [_dimension(factor, sign) for factor in factors]
            known = [part for part in parts if part is not None]
            return sum(known) if len(known) == len(parts) else None
        case nodes.Quotient(over=over, under=under):
            one, other = _dimension(over, sign), _dimension(under, sign)
            return None if one is None or other is None else one - other
    return None


def _common(terms: tuple[Node, ...], sign: str) -> int | None:
    found = {_dimension(term, sign) for term in terms}
    return found.pop() if len(found) == 1 else None


def _replaced(node: Node, sign: str, *, plain: bool) -> Node:
    """The expression with a sign left out, or replaced by the factor it stands for."""
    if sign not in functions(node) or (plain and isinstance(node, Call) and node.name in ANGLES):
        return node
    node = with_parts(node, lambda part: _replaced(part, sign, plain=plain))
    match node:
        case nodes.Call(name=name, args=(arg,)) if name == sign:
            if plain:
                return arg
            if sign == "percent":
                return nodes.Quotient(arg, number(100))
            return nodes.Quotient(nodes.Product((arg, Symbol("pi"))), number(180))
    return node


def _renamed(node: Node, name: str) -> Node:
    node = with_parts(node, lambda part: _renamed(part, name))
    return Call(name, node.args) if isinstance(node, Call) and node.name == "log" else node


def _linear_in_logs(node: Node) -> bool:
    """Whether logarithms are only added, multiplied and divided, and those of other bases than e.

    No such expression has two values that are both answers to something else than the same logarithms: with floors,
    e or roots of sums, it might be 1 in one reading and 7 in the other.
    """
    if any(part == Symbol("e") or (isinstance(part, Call) and part.name in _NATURAL) for part in walk(node)):
        return False
    return _is_rational_in_logs(node)


def _is_monomial(node: Node) -> bool:
    """Whether logarithms are only multiplied, so that the sign is the same in both readings."""
    sums = nodes.Sum | nodes.PlusMinus
    return not any(isinstance(part, sums) and "log" in functions(part) for part in walk(node))


def _is_rational_in_logs(node: Node) -> bool:
    if "log" not in functions(node):
        return True
    match node:
        case nodes.Call(name="log", args=args):
            return not any("log" in functions(arg) for arg in args)
        case nodes.Sum(terms=parts) | nodes.Product(factors=parts):
            return all(map(_is_rational_in_logs, parts))
        case nodes.PlusMinus(left=left, right=right) | nodes.Quotient(over=left, under=right):
            return _is_rational_in_logs(left) and _is_rational_in_logs(right)
        case nodes.Power(base=base, exponent=nodes.Number(value=exponent)):
            return _is_rational_in_logs(base) and (exponent.denominator == 1 or _is_monomial(base))
        case nodes.Call(name="root", args=(base, nodes.Number())):
            return _is_rational_in_logs(base) and _is_monomial(base)
    return False
