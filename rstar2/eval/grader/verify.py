"""An independent check of certificates, which shares no code with the grader and reads nothing but the certificate.

A certificate is a fact: `rule`, `gold` and `pred` as they were read, and `because`, the facts that it follows from.
Each is derived again: values by sympy, at the certificate's points and at random ones of our own, the rest by structure.
"""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Iterator
from fractions import Fraction
from functools import reduce
from itertools import pairwise, product
from typing import Any

import sympy
from sympy import I, Integer, Rational, oo

Node = Any
"""A tuple of a kind and its fields, as ("Number", "1/2", 0, 0)."""
_POINTS, _LEAST_POINTS, _TRIES, _MAX_TERMS, _MAX_BITS, _DRAW = 6, 3, 200, 2000, 300_000, random.SystemRandom()
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": I, "infinity": oo}
_CALLED = {
    "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot", "norm": "Abs", "abs": "Abs", "max": "Max",
    "ceil": "ceiling", "binom": "binomial", "double_factorial": "factorial2", "min": "Min", "Re": "re", "Im": "im",
    "sgn": "sign", "gcd": "igcd", "lcm": "ilcm", "root": "real_root", "ln": "log", "logarithm": "log", "log10": "log",
}  # fmt: skip
_BUILT = {
    "Number": lambda value, *_: Rational(value), "Based": lambda value, *_: Integer(value), "Quotient": operator.truediv,
    "Sum": lambda terms: reduce(operator.add, terms), "Product": lambda factors: reduce(operator.mul, factors),
    "Matrix": sympy.Matrix, "Residue": lambda value, modulus, is_remainder: value % modulus if is_remainder else value,
}  # fmt: skip
_TESTS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "=": operator.eq, "!=": operator.ne}
_USUAL = {"integer", "real", "natural number", "positive integer", "nonnegative integer"}
_SIZES = """m meter metre:1 m|in inch:.0254 m|ft foot feet:.3048 m|yd yard:.9144 m|mi mile:1609.344 m|l liter litre:1 l
s sec second:1 s|min minute:60 s|h hr hour:3600 s|day:86400 s|week:604800 s|month:1 month|yr year:12 month|cup:1 cup
g gram:.001 kg|lb pound:.45359237 kg|oz ounce:.028349523125 kg|pint:2 cup|quart:4 cup|gal gallon:16 cup|rad radian:1
N newton:1 kg m s-2|J joule:1 kg m2 s-2|W watt:1 kg m2 s-3|Pa pascal:1 kg m-1 s-2|Hz hertz:1 s-1|A amp ampere:1 A
V volt:1 kg m2 s-3 A-1|ohm Omega:1 kg m2 s-3 A-2|dollar buck usd:1 dollar|cent:.01 dollar|euro eur:1 euro
sterling gbp:1 sterling|penny pence:.01 sterling|yen jpy:1 yen|celsius C:1 celsius|fahrenheit F:1 fahrenheit"""
_UNITS = {word: size for words, size in re.findall(r"([\w ]+):([^|\n]+)", _SIZES) for word in words.split()}
_PREFIXES = {"kilo": 3, "centi": -2, "milli": -3, "micro": -6, "nano": -9, "mega": 6, "M": 6, "k": 3, "c": -2, "m": -3}


class Refused(Exception):
    """Something in a certificate is not confirmed."""


def verify(certificate: dict[str, Any] | None) -> str | None:
    """Returns why a certificate does not show that two answers are equal; None if it does."""
    try:
        _need(certificate, "there is no certificate")
        _Fact(certificate or {}).check_numbers()
    except Refused as reason:
        return str(reason)
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError) as error:
        return f"malformed: {type(error).__name__}: {error}"
    return None


def _need(condition: Any, reason: str) -> None:
    if not condition:
        raise Refused(reason)


def _frozen(part: Any) -> Node:
    """Lists as tuples; symbols and listings without the remarks that say nothing of their values."""
    if not isinstance(part, list):
        return part
    size = {"Symbol": 2, "Listing": 3}.get(part[0]) if part and isinstance(part[0], str) else None
    return tuple(map(_frozen, part[:size]))


def _walk(node: Node) -> Iterator[Node]:
    if isinstance(node, tuple):
        yield from [node] if node and isinstance(node[0], str) else []
        for part in node:
            yield from _walk(part)


def _letters(*nodes: Node) -> list[str]:
    parts = list(_walk(nodes))
    bound = {part[2] for part in parts if part[0] == "Series"} | {"none"}
    return sorted({part[1] for part in parts if part[0] == "Symbol"} - bound - _CONSTANTS.keys())


def _replaced(node: Node, new: dict[Node, Node]) -> Node:
    if isinstance(node, tuple):
        return new[node] if node in new else tuple(_replaced(part, new) for part in node)
    return node


class _Evaluation:
    """Exact values of expressions at a point. What is unknown gets a value that its arguments and the salt decide."""

    def __init__(self, point: dict[str, Any], reading: Any = (0, 0, 1), real: bool = False) -> None:
        self.point, self.real, self.salt = point, real, _DRAW.random()
        self.degree, self.percent, self.natural_log = reading

    def value(self, node: Any) -> Any:
        """The value of a node; those of several in a list."""
        if not isinstance(node, tuple) or not node or not isinstance(node[0], str):
            return [self.value(part) for part in node] if isinstance(node, tuple) else node
        value = self._value(*node)
        _need(not (self.real and value.is_real is False), "not real")
        return value

    def _value(self, kind: str, name: Any, *rest: Any) -> Any:
        if kind == "Symbol":
            return self.point[name] if name in self.point else _CONSTANTS.get(name, Rational(7, 3))
        if kind == "Series" and name in {"sum", "prod"} and "infinity" not in f"{rest[1:3]}":
            start, end = self.value(tuple(rest[1:3]))
            _need(start.is_integer and end.is_integer and end - start <= _MAX_TERMS, "no finite sum")
            numbers = [{("Symbol", rest[0]): ("Number", i)} for i in range(start, end + 1)]
            parts = [self.value(_replaced(rest[3], number)) for number in numbers]
            return (sympy.Add if name == "sum" else sympy.Mul)(*parts)
        degree, is_angle = self.degree, name in {"sin", "cos", "tan", "cot", "sec", "csc"}
        self.degree = degree or is_angle
        one, *others = [self.value(part) for part in (name, *rest)]
        self.degree = degree
        if kind in {"Apply", "Series"}:
            parts = [sympy.N(part, 30) for part in sympy.flatten(others)]
            return Rational(random.Random(f"{self.salt}{name}{parts}").randint(1 << 40, 1 << 41), 1 << 40)
        if kind == "Power" and one.is_Rational and one not in {-1, 0, 1}:
            _need(abs(others[0]) * (abs(one.p) + one.q).bit_length() < _MAX_BITS, "a power that is too large")
        if kind == "Quantity":
            return one * self._unit(others[0])
        return self._call(name, *others[0]) if kind == "Call" else _BUILT[kind](one, *others)

    def _call(self, name: str, one: Any, *rest: Any) -> Any:
        if name in {"degree", "percent"}:
            size = sympy.pi / 180 if name == "degree" else Rational(1, 100)
            return one * size if (self.degree if name == "degree" else self.percent) else one
        _need(name not in {"factorial", "double_factorial", "binom"} or abs(one) <= 10_000, "too large")
        if name == "log10" or (name == "log" and not self.natural_log):
            rest = (10,)
        return one.det() if name == "det" else getattr(sympy, _CALLED.get(name, name))(one, *rest)

    def _unit(self, words: str) -> Any:
        """A unit as a product of basic units, which are letters."""
        size, sign = Integer(1), 1
        for word, power in re.findall(r"([A-Za-z]+|/)\s*\^?\s*\{?\s*(-?\d)?", words):
            sign = -1 if word in {"/", "per"} else sign
            if word in {"/", "per"}:
                continue
            names = [(0, word), *((ten, word[len(p) :]) for p, ten in _PREFIXES.items() if word.startswith(p))]
            known = [(ten, _UNITS[form]) for ten, name in names for form in (name, name.lower(), name.removesuffix("s")) if form in _UNITS]
            _need(known, f"{word} is no known unit")
            for factor, exponent in re.findall(r"([.\d]+(?= )|[a-zA-Z]+)(-?\d)?", known[0][1]):
                basic = Rational(factor) if factor[-1].isdigit() else self.point[factor]
                size *= (basic ** int(exponent or 1)) ** (sign * int(power or 1))
            size *= Rational(10) ** (known[0][0] * sign * int(power or 1))
        return size

    def agree(self, a: Node, b: Node) -> bool | None:
        """Whether two expressions have the same value; None if one of them has none."""
        try:
            one, other = self.value(a), self.value(b)
            if {sympy.nan, sympy.zoo} & {one, other}:
                return None
            if one == other or {oo, -oo} & {one, other} or _rounds(a, other) or _rounds(b, one):
                return bool(one == other or not {oo, -oo} & {one, other})
            # sympy computes as many digits as it takes; a part of which it finds no digit is zero.
            cells = sympy.flatten([one - other])
            return all(part == 0 or part._prec == 1 for cell in cells for part in cell.evalf(30, maxn=500).as_real_imag())
        except (Refused, TypeError, ValueError, ArithmeticError, AttributeError):
            return None


def _rounds(node: Node, value: Any) -> bool:
    """Whether a decimal of seven digits or more is the rounding of a value that has no exact decimal."""
    if node[0] != "Number" or node[2] < 7 or not value.is_real:
        return False
    written, unit = Rational(node[1]), Rational(1, 10 ** node[3])
    if value * written < 0 or (value.is_Rational and pow(10, value.q.bit_length(), value.q) == 0):
        return False
    is_float = node[2] >= 15 and Fraction(repr(float(written))) == Fraction(node[1])
    near = bool(node[3] and -unit / 2 <= abs(value) - abs(written) < unit)
    return near or (is_float and float(value) == float(written))


def _identical(a: Node, b: Node, claim: dict[str, Any], units: bool = False) -> bool:
    """Whether two expressions agree at the points of a claim, and at random ones of our own."""
    names = _letters(a, b) if not units else sorted({*_letters(a, b), *re.findall("[a-zA-Z]+", " ".join(_UNITS.values()))})
    if a == b or "dots" in names:
        orders = (b[1], b[1][::-1]) if a[0] == b[0] and a[0] in {"Sum", "Product"} else ()
        return a == b or any(all(_identical(*pair, {}) for pair in zip(a[1], order, strict=True)) for order in orders)
    points = [{name: _number(value) for name, value in point.items()} for point in claim.get("points", ())]
    reading, has_i = claim.get("reading", (False, False, True)), ("Symbol", "i") in {*_walk((a, b))}
    agreed = [_Evaluation(point, reading).agree(a, b) for point in points]
    if not all(agreed):
        return False
    for _ in range(_TRIES if names else 1):
        point = {name: _drawn(name, [each[name] for each in points if name in each]) for name in names}
        real = bool(names) and not has_i and all(value.is_real for value in point.values())
        agreed.append(_Evaluation(point, reading, real).agree(a, b))
        if agreed[-1] is False or agreed.count(True) >= len(points) + _POINTS:
            break
    return False not in agreed and agreed.count(True) - len(points) >= (_LEAST_POINTS if names else 1)


def _number(value: Any) -> Any:
    return Rational(value) if isinstance(value, str) else Rational(value[0]) + I * Rational(value[1])


def _drawn(name: str, values: list[Any]) -> Any:
    """A random value for a letter: complex or whole if a certificate's points have it so, else any real number."""
    broken = [value for value in values if not value.is_integer]
    if broken and not broken[0].is_real:
        return Rational(_DRAW.randint(-999, 999), 101) + I * Rational(_DRAW.randint(-999, 999), 103)
    if name in "jkmn" and not (broken and _DRAW.random() < 0.5):
        return Integer(_DRAW.randint(0, _DRAW.choice((6, 20, 60))))
    return Rational(_DRAW.randint(1, _DRAW.choice((1009, 9999, 99999))), 1009) * _DRAW.choice((1, 1, 1, -1))


class _Fact:
    """A fact that follows from the facts below it; raises Refused if it does not."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data, self.gold, self.pred = data, _frozen(data["gold"]), _frozen(data["pred"])
        self.because = [_Fact(each) for each in data["because"]]
        self.proven = {pair for fact in self.because for pair in ((fact.gold, fact.pred), (fact.pred, fact.gold))}
        _need(data["rule"] in RULES, f"{data['rule']!r} is no known rule")
        confirmed = RULES[data["rule"]](self, self.gold, self.pred)
        _need(confirmed, f"{data['rule']!r} does not show that {self.gold!r:.200} is {self.pred!r:.200}")

    def same(self, a: Node, b: Node) -> bool:
        """Whether two nodes, or lists of nodes, are the same but for parts that are proven equal."""
        if a == b or (a, b) in self.proven:
            return True
        both = isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)
        return both and all(self.same(*pair) for pair in zip(a, b, strict=True))

    def check_numbers(self) -> None:
        """Refuse if one answer says something else, or something unusual, of what its letters stand for."""
        said = [dict(re.findall(r"\['Symbol', '(.*?)', '([^']+)'\]", str(self.data[side]))) for side in ("gold", "pred")]
        both = said[0].keys() & said[1].keys()
        rest = [{one[name] for name in one.keys() - both} for one in said]
        agree = all(said[0][name] == said[1][name] for name in both)
        _need(agree and (rest[0] == rest[1] or rest[0] | rest[1] <= _USUAL), "letters stand for other numbers")

    def texts(self, a: Node, b: Node) -> bool:
        if isinstance(a, tuple):
            return bool(a[0] == b[0] == "Text" and a[1] == b[1])
        layout = r"\\(?:left|right)(?![a-z])(?:\s*\.)?|\\[!,;:]|\$|\\displaystyle|(?<=\\)[dtc](?=frac)"
        one, other = (re.findall(r"\\?\w+|\d,\s|\S", re.sub(layout, "", text).rstrip(".")) for text in (a, b))
        return bool(one == other)

    def tuples(self, a: Node, b: Node) -> bool:
        kinds = {a[1] + a[2], b[1] + b[2]}
        alike = len(kinds) == 1 or kinds <= {"()", "<>"} or (kinds == {"()", "[]"} and len(a[3]) > 2)
        return alike and self.same(a[3], b[3])

    def members(self, a: Node, b: Node) -> bool:
        """Whether each member is one of the other answer's, in order unless the kinds leave it open."""
        (one, other), kinds = map(_items, (a, b)), {a[0], b[0]}
        titles = [list(map(_title, one)), list(map(_title, other))]
        titled = [all(side) and (len(side) == 1 or len(set(side)) > 1) for side in titles]
        common = all(titled) and set(titles[0]) & set(titles[1])

        def equal(x: Node, y: Node) -> bool:
            values = [(v, w) for v in _values(x) for w in _values(y)] if x[0] != y[0] else []
            return not (common and _title(x) != _title(y)) and (
                self.same(x, y) or any(self.same(*pair) for pair in values)
            )

        if len(one) == len(other) and all(map(equal, one, other)):
            return kinds != {"SetOf", "Brackets"}
        dots = ("Symbol", "dots") in {*_walk((a, b))}
        if "Brackets" in kinds or dots or (titled[0] != titled[1] and "SetOf" not in kinds):
            return False
        pairs = {(x, y) for x in one for y in other if equal(x, y)}
        return {x for x, _ in pairs} == set(one) and {y for _, y in pairs} == set(other)

    def matrices(self, a: Node, b: Node) -> bool:
        one, other = map(_cells, (a, b))
        return self.same(one, other) or (len(one) == 1 and self.same(one[0][0], b)) or _identical(a, b, {})

    def relations(self, a: Node, b: Node) -> bool:
        """Whether two relations are written alike, give one name one value, or are multiples of each other."""
        a, b = _upward(a), _upward(self.with_arguments(a, b))
        operators = {*a[2], *b[2]}
        if a[2] != b[2] and not operators <= {"=", "~"}:
            return False
        if self.same(a[1], b[1]) or (operators <= {"=", "~", "!="} and self.same(a[1], b[1][::-1])):
            return True
        pairs = [(x, y) for x in _named(a) for y in _named(b)]
        if any(self.same_name(x, y) and self.same(v, w) for (x, v), (y, w) in pairs):
            return True
        if any(self.same(_expanded(*one), _expanded(*other)) for one, other in pairs):
            return True
        if "Residue" in f"{a}{b}" or len(a[1]) != 2 or not operators <= {"=", "!=", "<", "<="}:
            return False
        ratio = ("Quotient", *(("Sum", (side[1][0], ("Product", (("Number", -1), side[1][1])))) for side in (a, b)))
        points = [{name: _drawn(name, []) for name in _letters(a, b)} for _ in range(_POINTS)]
        values = [_Evaluation(point).value(ratio) for point in points]
        size = ("Number", sympy.nsimplify(values[0]))
        return operators <= {"=", "!="} or values[0] > 0

    def same_name(self, a: Node, b: Node) -> bool:
        """Whether two names are the same, or of one function: y and f(x), f(x) and f(t)."""
        heads = [name if name == ("Symbol", "y") else name[1] if _is_function(name) else "" for name in (a, b)]
        turned = a[0] == b[0] == "Product" and a[1] == (*b[1][:1], *b[1][:0:-1])
        return self.same(a, b) or turned or (all(heads) and (("Symbol", "y") in heads or heads[0] == heads[1]))

    def with_arguments(self, a: Node, b: Node) -> Node:
        """f(z) = z as f(x) = x beside an equation that defines f(x)."""
        one, other = a[1][0], b[1][0]
        if one[0] != "Apply" or other[0] != "Apply" or one[1] != other[1] or one[2] == other[2]:
            return b
        old, new = (_letters(*side[2]) for side in (one, other))
        names = {("Symbol", name): ("Symbol", f"{name} outside") for name in _letters(one)}
        return _replaced(b, names | dict(zip(other[2], one[2], strict=True)))

    def regions(self, a: Node, b: Node) -> bool:
        """Whether two sets hold the same of the numbers at, between and beyond their ends; or are written alike."""
        one, other = (side[1][1] if side[0] == "Relation" and side[2] == ("in",) else side for side in (a, b))
        try:
            ends = sorted({sign * end for end in _ends((one, other)) for sign in (1, -1)})
            between = [(low + high) / 2 for low, high in pairwise(ends)]
            numbers = [*ends, *between, ends[0] - 1, ends[-1] + 1] if ends else [Fraction(0)]
            return _region(one, numbers) == _region(other, numbers)
        except Refused:
            pass
        if one[0] == other[0] == "Relation":
            return self.relations(one, other)
        if one[0] == other[0] == "Listing":
            return self.members(one, other)
        if one[0] == other[0] == "SetOperation" and one[1] == other[1] != "minus":
            return self.same(one[2:], other[2:]) or self.same(one[2:], other[:1:-1])
        pairs = product(_bounds(one), _bounds(other)) 
        return self.same(one, other) or any(self.same(x, y) for x, y in pairs)

    def names(self, a: Node, b: Node) -> bool:
        """Whether a relation says of a name, or of a quantity, that it has the other answer's value."""
        relation, plain = (a, b) if a[0] == "Relation" else (b, a)
        _need({*relation[2]} <= {"=", "~", "in"}, "no equation")
        for name, value in _named(relation):
            expanded = _expanded(name, value)
            listed = ("Listing", tuple(("Relation", (x, y), ("=",)) for x, y in zip(name[-1], plain[-1]))) if name[0] == "Brackets" else None
            if (_letters(name) or "Apply" in str(name) or not _letters(value)) and (self.same(value, plain) or self.same(expanded, plain) or self.same(listed, plain)):
                return True
        return "~" in relation[2] and any(self.same(side, plain) for side in relation[1])

    def units(self, a: Node, b: Node) -> bool:
        """Whether two quantities are equal in basic units, or in the same unit; or only one has a unit."""
        if {"am", "pm"} & {a[-1], b[-1]}:
            return _minutes(a, b)
        sides = [(side[1], _plain_unit(side[2])) if side[0] == "Quantity" else (side, "") for side in (a, b)]
        (one, unit), (other, other_unit) = sides
        if (not unit or not other_unit or unit == other_unit or other_unit in _SYNONYMS.get(unit, ()) or unit in _SYNONYMS.get(other_unit, ())) and self.same(one, other):
            return True
        return _identical(a, b, {"reading": (True, False, True)}, units=True)

    def ratios(self, a: Node, b: Node) -> bool:
        one, other = (side[1] if side[0] == "Ratio" else (side, ("Number", "1", 0, 0)) for side in (a, b))
        clocks = {side[2] for side in (a, b) if side[0] == "Ratio"}
        crossed = [(("Product", (one[0], y)), ("Product", (other[0], x))) for x, y in zip(one, other, strict=True)]
        zero = ("Number", "0", 0, 0)
        return self.same(one, other) or (clocks == {False} and not _identical(one[0], zero, {}) and not _identical(other[0], zero, {}) and all(_identical(*pair, {}) for pair in crossed))

    def residues(self, a: Node, b: Node) -> bool:
        if a[0] == b[0] == "Relation":
            return self.relations(a, b)
        if a[0] == b[0] == "Residue" and a[3] == b[3]:
            steps = _Evaluation({}).value(("Quotient", ("Sum", (a[1], ("Product", (("Number", -1), b[1])))), a[2])) if not _letters(a, b) else None
            return self.same(a[2], b[2]) and (self.same(a[1], b[1]) or steps.is_integer)
        residue, plain = (a, b) if a[0] == "Residue" else (b, a)
        return _identical(residue, plain, {}) if residue[3] else not _letters(residue) and self.same(residue[1], plain)

    def families(self, a: Node, b: Node) -> bool:
        """Whether families of angles, start + k·step, have the same members."""
        letters = _letters(a, b)
        _need(len(letters) == 1 and letters[0] in "klmn", "no family")

    def letters(self, a: Node, b: Node) -> bool:
        """Whether the facts are about the same answers with one letter for whole numbers renamed."""
        (fact,) = self.because
        old, new = set(_letters(b)) - set(_letters(fact.pred)), set(_letters(fact.pred)) - set(_letters(b))
        _need(len(old) == len(new) == 1 and min(old | new) in "klmn", "no renaming of one letter")
        renamed = _replaced(b, {("Symbol", old.pop()): ("Symbol", new.pop())})
        return bool(fact.gold == a and fact.pred == renamed)

    def signs(self, a: Node, b: Node) -> bool:
        """Whether the facts are about the same answers with ± written out and lists in lists opened."""
        (fact,) = self.because
        return all(_spread(side) == _spread_items(after) for side, after in ((a, fact.gold), (b, fact.pred)))
