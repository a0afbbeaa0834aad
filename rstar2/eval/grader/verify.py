"""An independent check of certificates.

The check shares no code with the grader, and reads nothing but the certificate. A certificate is a fact with a `rule`,
the parsed `gold` and `pred`, and `because`, the list of facts from which the fact follows. The check derives each fact
again. Values are computed by sympy, at the points of the certificate and at random points. Facts that are not about
values are checked by the structure of the nodes. See `rstar2.eval.grader.certificate.Certificate` for the keys.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from itertools import product
from typing import Any

import sympy
from sympy import I, Integer, Intersection, Rational, S, Union, oo

Node = Any
"""A tuple such as ("Number", "1/2", 0, 0): the node's kind, which begins with a capital letter, and the node's
fields."""
_POINTS, _LEAST_POINTS, _TRIES, _MAX_TERMS, _MAX_BITS = 10, 3, 200, 2000, 300_000
_DRAW = random.SystemRandom()
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": I, "infinity": oo, "none": Rational(7, 3)}
_BUILT: dict[str, Callable[..., Any]] = {
    "Number": lambda value, *_: Rational(value), "Based": Integer, "Matrix": sympy.Matrix, "Product": sympy.prod,
    "Sum": lambda terms: sum(terms[1:], terms[0]), "Quotient": lambda over, under: over / under,
    "Residue": lambda value, modulus, alone: value % modulus if alone else sympy.Matrix([value % modulus, modulus]),
    "Ratio": lambda parts: parts[0] / parts[1] if len(parts) == 2 else sympy.Matrix(parts) / parts[0],
    "Brackets": lambda ends, kind: sympy.Interval(*map(_end, ends), kind[0] == "(", kind[1] == ")"),
    "SetOf": lambda items: sympy.FiniteSet(*map(_end, items)), "NumberSet": {"R": S.Reals}.__getitem__,
    "SetOperation": lambda kind, a, b: {"union": a | b, "intersection": a & b, "minus": a - b}[kind],
    "Listing": lambda sets, either: (Union if either or Intersection(*sets) is S.EmptySet else Intersection)(*sets),
    "Relation": lambda sides, signs: _solutions(sides, signs),
}  # fmt: skip
"""For each kind of node, a function that computes the node's value from the values of its fields. The value of an
interval or an inequality is a set of real numbers."""
_SAME_MONEY = [{"sterling", name} for name in ("pound", "pound sterling", "british pound")]
_SAME_MONEY += [{"yensign", name} for name in ("yen", "jpy", "yuan", "renminbi", "rmb", "cny")]
_USUAL = {"integer", "real", "natural number", "positive integer", "nonnegative integer"}
_ASKED_FOR = {"sin", "cos", "tan", "cot", "sec", "csc", "det", "re", "im", "arg", "floor", "ceiling"}
_NO_VALUE = (ArithmeticError, NotImplementedError, TypeError, ValueError)
"""Exceptions that sympy raises if an expression has no value, or if an inequality cannot be solved."""


def verify(certificate: Any) -> str | None:
    """Returns why a certificate does not show that two answers are equal, or None if the certificate shows equality."""
    try:
        one, other = certificate["letters"]
        agree = one | other == other | one and {*one.values()} ^ {*other.values()} <= _USUAL
        _need(agree, "letters stand for other numbers")
        _Fact(certificate)
    except (*_NO_VALUE, AttributeError, LookupError) as error:
        return f"not confirmed: {error}" if type(error) is ValueError else f"malformed: {error!r}"
    return None


def _need(condition: Any, reason: str) -> None:
    if not condition:
        raise ValueError(reason)


def _frozen(part: Any) -> Node:
    return tuple(map(_frozen, part)) if isinstance(part, list) else part


def _is_node(part: Any) -> bool:
    return isinstance(part, tuple) and part != () and isinstance(part[0], str) and part[0][:1].isupper()


def _walk(part: Any) -> Iterator[Node]:
    if isinstance(part, tuple):
        yield from [part] if _is_node(part) else []
        for each in part:
            yield from _walk(each)


def _letters(*nodes: Node) -> list[str]:
    bound = {part[2] for part in _walk(nodes) if part[0] == "Series"}
    return sorted({part[1] for part in _walk(nodes) if part[0] == "Symbol"} - bound - _CONSTANTS.keys())


def _replaced(node: Node, new: dict[Node, Node]) -> Node:
    if isinstance(node, tuple):
        return new[node] if node in new else tuple(_replaced(part, new) for part in node)
    return node


class _Point:
    """Computes exact values of expressions at a point. An unknown part gets a random value, which is the same for all
    parts with the same name and arguments."""

    def __init__(self, letters: dict[str, Any], reading: Any = (0, 0, 1), real: bool = False) -> None:
        degree, percent, natural = map(int, reading)
        self.letters, self.real, self.salt = letters, real, _DRAW.random()
        angle, self.base = sympy.pi / 180, sympy.E if natural else 10
        self.signs = {"radians": angle, "degree": angle**degree, "percent": Rational(1, 100) ** percent}

    def value(self, part: Any) -> Any:
        """Returns the value of a node, or the list of values of several nodes. Other fields are returned unchanged."""
        if not _is_node(part):
            return [self.value(each) for each in part] if isinstance(part, tuple) else part
        value = self._value(*part)
        _need(not (self.real and getattr(value, "is_real", None) is False), "not real")
        return value

    def _value(self, kind: str, name: Any, *rest: Any) -> Any:
        if kind == "Symbol":
            return self.letters[name] if name in self.letters else _CONSTANTS[name]
        if kind == "Quantity":
            units = [self.letters[unit] ** power for unit, power in rest[2]]
            return self.value(name) * Rational(rest[1]) * sympy.prod(units)
        if kind == "Series":
            start, end = self.value(rest[1:3])
            _need(start.is_integer and end.is_integer and end - start <= _MAX_TERMS, "no finite sum")
            numbers = [{("Symbol", rest[0]): ("Number", i)} for i in range(start, end + 1)]
            parts = [self.value(_replaced(rest[3], number)) for number in numbers]
            return sum(parts, Integer(0)) if name == "sum" else sympy.prod(parts)
        one, *others = [self.value(part) for part in (name, *rest)]
        if kind in {"Apply", "Unsolved"}:
            parts = [sympy.N(part, 30) for part in sympy.flatten(others)]
            return Rational(random.Random(f"{self.salt}{name}{parts}").randint(1 << 40, 1 << 41), 1 << 40)
        if kind == "Power":
            size = (abs(one.p) + one.q).bit_length() if isinstance(one, Rational) and abs(one) != 1 else 0
            _need(abs(others[0]) * size < _MAX_BITS, "a power that is too large")
            return one ** others[0]
        return self._call(name, *others[0]) if kind == "Call" else _BUILT[kind](one, *others)

    def _call(self, name: str, one: Any, *rest: Any) -> Any:
        if name in {"factorial", "factorial2", "binomial"}:
            counts = all(number >= 0 or not number.is_integer for number in (one, *rest))
            _need(counts and abs((one, *rest)[-1]) <= 10_000, "a count that is negative, or too large")
        if name == "logarithm":
            return sympy.log(one, self.base)
        return one * self.signs[name] if name in self.signs else getattr(sympy, name)(one, *rest)

    def agree(self, a: Node, b: Node) -> bool | None:
        """Whether two expressions have the same value. Returns None if an expression has no value."""
        with suppress(*_NO_VALUE):
            one, other = self.value(a), self.value(b)
            if one == other or _rounds(a, other) or _rounds(b, one):
                # At one point, x = 5 and x = 6 are both the empty set, so only `by_interval` compares sets.
                return None if one in (sympy.nan, sympy.zoo) or isinstance(one, sympy.Set) else True
            # sympy computes as many digits as it needs. A part for which it finds hardly any digits is zero.
            cells = [cell.evalf(30, maxn=500) for cell in sympy.flatten([one - other])]
            if not all(cell.is_finite for cell in cells):
                return False if {oo, -oo} & {one, other} else None
            return all(part == 0 or part._prec < 20 for cell in cells for part in cell.as_real_imag())
        return None


def _end(value: Any) -> Any:
    """Returns the end of an interval as a fraction, so that ends can be compared exactly."""
    is_number = not value.free_symbols and value.is_finite
    return Rational(round(value.evalf(60) * 10**40), 10**40) if is_number else value


def _solutions(sides: list[Any], signs: list[str]) -> Any:
    """Returns the set of real numbers that satisfy a chain such as a < x <= b."""
    if signs == ["in"]:
        return sides[1]
    ends = list(map(_end, sides))
    pairs = zip(ends, ends[1:], [{"=": "=="}.get(sign, sign) for sign in signs], strict=False)
    return S.Reals & sympy.And(*(sympy.Rel(*pair) for pair in pairs)).as_set()


def _rounds(node: Node, value: Any) -> bool:
    """Whether a node is a decimal of at least seven digits that is a rounded form of `value`, which has no exact
    decimal."""
    if node[0] != "Number" or len(node) < 4 or node[2] < 7 or not value.is_real:
        return False
    decimal, unit = Rational(node[1]), Rational(1, 10 ** node[3])
    if value * decimal < 0 or (value.is_Rational and pow(10, value.q.bit_length(), value.q) == 0):
        return False
    is_float = node[2] >= 15 and Fraction(repr(float(decimal))) == Fraction(node[1])
    near = bool(node[3] and -unit / 2 <= abs(value) - abs(decimal) < unit)
    return near or (is_float and float(value) == float(decimal))


def _random_value(name: str, points: Any = (), turn: int = 0) -> Any:
    """Returns a random value for a letter: an integer for j, k, m and n, and a fraction for other letters. If a point
    gives j, k, m or n a value that is not an integer, the letter gets a fraction too.

    `turn` is the number of the point. The fraction is always negative at every third point.
    """
    size = _DRAW.choice((6, 20, 99))
    if name in {*"jkmn"} and all(point[name].is_integer for point in points if name in point):
        return Integer(_DRAW.randint(0, size))
    sign = -1 if turn % 3 == 1 else _DRAW.choice((1, 1, 1, -1))
    return Rational(sign * _DRAW.randint(1, 1009 * size), 1009)


def _identical(a: Node, b: Node, points: Any = (), reading: Any = (0, 0, 1)) -> bool:
    """Whether two expressions agree at the points of a certificate, and at other random points."""
    units = {unit for part in _walk((a, b)) if part[0] == "Quantity" for unit, _ in part[4]}
    names = sorted({*_letters(a, b)} | units)
    if a == b or "dots" in names:
        orders = [b[1], b[1][::-1]] if a[0] == b[0] and len(a[1]) == len(b[1]) else []
        return a == b or any(all(map(_identical, a[1], order)) for order in orders)
    claimed = [{name: Rational(re) + I * Rational(im) for name, (re, im) in each.items()} for each in points]
    agreed = [_Point(point, reading).agree(a, b) for point in claimed]
    real, least = bool(names) and ("Symbol", "i") not in {*_walk((a, b))}, _LEAST_POINTS if names else 1
    for turn in range((_TRIES if names else 1) if all(agreed) else 0):
        point = {name: _random_value(name, claimed, turn) for name in names}
        agreed.append(_Point(point, reading, real).agree(a, b))
        if agreed[-1] is False or agreed.count(True) >= len(claimed) + _POINTS:
            break
    return False not in agreed and agreed.count(True) >= len(claimed) + least


def _names(side: Node, is_gold: bool) -> bool:
    """Whether a side of an equation only names a quantity, as x, f(2) and AB + BC do. 2x and x + 1 are not names of a
    quantity, because x must still be worked out."""
    kind, parts, *_ = side
    letters = _letters(side)
    unknowns = {each for each in _walk(side) if each[0] in {"Apply", "Symbol"} and each[1] not in _CONSTANTS}
    if kind in {"Symbol", "Apply"}:
        return len(unknowns) > 0
    if is_gold and any(name[0].islower() for name in {*letters} - {"angle", "triangle"}):
        return False
    is_length = parts == "Abs" and (letters in (["w"], ["z"]) or letters < ["a"])
    is_asked_for = kind == "Residue" or parts in _ASKED_FOR or is_length
    is_scaled = kind in {"Sum", "Product"} and "Number" in {part[0] for part in parts}
    return len(unknowns) > (0 if is_asked_for else 1) and not is_scaled


def _table(node: Node) -> Node:
    """Returns the rows of a matrix or of nested brackets. A tuple counts as a column, and a single entry as a matrix
    with one row."""
    rows = node[1] if node[0] in {"Matrix", "Brackets"} else (node,)
    return tuple(row if node[0] == "Matrix" else row[1] if row[0] == "Brackets" else (row,) for row in rows)


class _Fact:
    """Checks a fact and the facts from which it follows. Each rule has a method, whose name begins with `by_`, that
    checks the facts of this rule.

    Raises ValueError if the fact does not follow.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self.data, self.gold, self.pred = data, _frozen(data["gold"]), _frozen(data["pred"])
        self.because = [_Fact(each) for each in data["because"]]
        self.proven = {frozenset((fact.gold, fact.pred)) for fact in self.because}
        confirmed = getattr(self, f"by_{data['rule']}")(self.gold, self.pred)
        _need(confirmed, f"{data['rule']!r} does not show that {self.gold!r:.200} is {self.pred!r:.200}")

    def same(self, a: Node, b: Node) -> bool:
        """Whether two nodes, or lists of nodes, are the same except for parts that are proven equal."""
        both = isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)
        return a == b or frozenset((a, b)) in self.proven or (both and all(map(self.same, a, b)))

    def by_identical(self, a: Node, b: Node) -> bool:
        return self.same(a, b)

    by_integer = by_text = by_choice = by_base = by_tuple = by_identical

    def by_number(self, a: Node, b: Node) -> bool:
        return _identical(a, b, self.data["points"], self.data["reading"])

    by_expression = by_percent = by_number

    def by_list(self, a: Node, b: Node) -> bool:
        """Whether two lists have equal members.

        The order of the members matters if a list is a tuple, if a list has dots, or if only one of the lists has
        names.
        """
        if self.same(a, b):
            return True
        kinds, lists = {a[0], b[0]}, {"Listing", "SetOf", "Brackets"}
        sides = [side[1] if side[0] in lists else (side,) for side in (a, b)]
        titles = [
            {
                item[1][0] if item[0] == "Relation" else item[2] if item[0] == "Quantity" else None
                for item in side
            }
            for side in sides
        ]
        alone = [None not in each and len(each) > 1 for each in titles].count(True) == 1
        if "Brackets" in kinds or (alone and "SetOf" not in kinds) or ("Symbol", "dots") in {*_walk((a, b))}:
            return (alone or kinds != {"SetOf", "Brackets"}) and self.same(*sides)
        pairs = [pair for pair in product(*sides) if self.same(*pair)]
        return all({pair[i] for pair in pairs} == {*sides[i]} for i in (0, 1))

    by_set = by_list

    def by_matrix(self, a: Node, b: Node) -> bool:
        one, other = _table(a), _table(b)
        transposed = tuple(zip(*one, strict=True)) if "Brackets" in {a[0], b[0]} else one
        return self.same(one, other) or self.same(transposed, other) or _identical(a, b)

    def by_ratio(self, a: Node, b: Node) -> bool:
        return self.same(a, b) or _identical(a, b)

    def by_relation(self, a: Node, b: Node) -> bool:
        """Whether two relations have the same form, give the same name the same value, or are multiples of each
        other."""
        if self.same(a[1:], b[1:]) or ({*a[2], *b[2]} <= {"!="} and self.same(a[1], b[1][::-1])):
            return True
        for (x, *_, value), (y, *_, other) in product((a[1], a[1][::-1]), (b[1], b[1][::-1])):
            heads = [
                name[1]
                for name in (x, y)
                if name == ("Symbol", "y")
                or (name[0] == "Apply" and {arg[0] for arg in name[2]} == {"Symbol"})
            ]
            is_function = len(heads) == 2 and ("y" in heads or heads[0] == heads[1])
            if {*a[2], *b[2]} <= {"=", "~"} and (is_function or self.same(x, y)) and self.same(value, other):
                return True
        if not _letters(a) or a[2] != b[2] or a[2] not in {("=",), ("!=",)} or "Residue" in f"{a}{b}":
            return False
        symbolic = _Point({name: sympy.Symbol(name) for name in _letters(a, b)})
        zeros = [symbolic.value(left) - symbolic.value(right) for left, right in (a[1], b[1])]
        if min(len(zero.free_symbols) for zero in zeros) > 1:  # denominators of curves do not matter
            zeros = [sympy.fraction(sympy.together(zero))[0] for zero in zeros]
        points = [{name: _random_value(name.name) for name in zeros[0].free_symbols} for _ in range(_POINTS)]
        ratios = [(zeros[0] / zeros[1]).subs(point).evalf(30) for point in points]
        return ratios[0] != 0 and all(abs(ratio / ratios[0] - 1) < 1e-20 for ratio in ratios)

    def by_residue(self, a: Node, b: Node) -> bool:
        """Whether two answers are the same remainder modulo the same number.

        A number may stand for all numbers that are congruent to it.
        """
        residue, plain = (a, b) if a[0] == "Residue" else (b, a)
        is_class = plain[0] != "Residue" and not _letters(residue) and not residue[3]
        return _identical(a, b) or (is_class and self.same(residue[1], plain))

    def by_interval(self, a: Node, b: Node) -> bool:
        """Whether two answers describe the same set of numbers. Each letter of a relation is tried as the variable,
        while the other letters have random values."""
        names = {each: ("Symbol", str(each)) for each in _walk((a, b)) if each[0] == "Apply"}
        a, b, equal = _replaced(a, names), _replaced(b, names), 0
        letters = _letters(a, b)
        bounded = letters if letters and "Relation" in f"{a}{b}" else [""]
        for free, _ in product(bounded, range(8)):
            point = {name: _random_value(name) for name in letters} | {free: sympy.Symbol("x", real=True)}
            with suppress(*_NO_VALUE):
                one, other = _Point(point).value((a, b))
                _need(not one.free_symbols and one is not S.EmptySet, "no set of numbers")
                if one != other:
                    return False
                equal += isinstance(one, sympy.Set)
        return equal > 0

    def by_name(self, a: Node, b: Node) -> bool:
        """Whether one answer is an equation with the other answer on one side and the dropped name on another side."""
        (_, sides, signs), plain = (a, b) if a[0] == "Relation" else (b, a)
        if "~" in signs and sides in a:
            return any(self.same(side, plain) for side in sides)
        name, ways = _frozen(self.data["name"]), [sides, sides[::-1]]
        for *chain, value in ways if {*signs} == {"="} else ways[:1] if signs == ("in",) else []:
            claim = ("Residue", name, *value[2:]) if value[0] == "Residue" else name
            equal = any(_identical(claim, value, (), (sign, sign, 1)) for sign in (0, 1))
            stated = (
                equal or _names(name, sides in a) if name in chain else equal and "dots" in _letters(*chain)
            )
            if stated and self.same(value, plain):
                return True
        return False

    def by_unit(self, a: Node, b: Node) -> bool:
        """Whether two quantities are equal in the same unit, or equal if they are converted to basic units.

        If only one quantity has a unit, the numbers before the units are compared.
        """
        values = [side[2][0] if side[:2] == ("Call", "degree") else side for side in (a, b)]
        sides = [side if side[0] == "Quantity" else ("Quantity", side, "", "1", ()) for side in values]
        (_, one, words, *size), (_, other, other_words, *other_size) = sides
        alike = size == other_size or (not words) != (not other_words) or {words, other_words} in _SAME_MONEY
        return (alike and self.same(one, other)) or _identical(a, b, (), (1, 0, 1))

    def by_letters(self, a: Node, b: Node) -> bool:
        """Whether two answers agree if letters that stand for integers, or arguments of a function, are renamed one to
        one.

        The integer k may become k + 1 or -k.
        """
        (fact,), new = self.because, {name: _frozen(node) for name, node in self.data["replaced"]}
        whole = {*"klmn", *(name for kinds in self.data.get("letters", ()) for name in kinds)}
        arguments = _letters(b[1][0], fact.pred[1][0]) if b[0] == fact.pred[0] == "Relation" else []
        for name, node in new.items():
            letter = sympy.Symbol(*_letters(node))
            value = _Point({letter.name: letter}).value(node)
            is_shift = value.diff(letter) ** 2 == 1 and value.subs(letter, 0).is_integer
            _need(value == letter or (name in whole and is_shift), "a letter is not renamed")
        renamed = _replaced(b, {("Symbol", name): node for name, node in new.items()})
        is_free = {*new} <= {*whole, *arguments} and len(_letters(renamed)) == len(_letters(b))
        return is_free and (fact.gold, fact.pred) == (a, renamed)
