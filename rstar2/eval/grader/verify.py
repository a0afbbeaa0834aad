"""An independent check of certificates, which shares no code with the grader and reads nothing but the certificate.

A certificate is a fact: `rule`, `gold` and `pred` as they were read, and `because`, the facts that it follows from.
Each fact is derived again: values by sympy, at the certificate's points and at random ones; all else by structure.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from fractions import Fraction
from itertools import product
from typing import Any

import sympy
from sympy import I, Integer, Rational, S, oo

Node = Any
"""A tuple of a kind and its fields, as ("Number", "1/2", 0, 0)."""
_POINTS, _LEAST_POINTS, _TRIES, _MAX_TERMS, _MAX_BITS = 10, 3, 200, 2000, 300_000
_DRAW = random.SystemRandom()
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": I, "infinity": oo, "none": Rational(7, 3)}
_BUILT: dict[str, Callable[..., Any]] = {
    "Number": lambda value, *_: Rational(value), "Based": lambda value, *_: Rational(value), "Matrix": sympy.Matrix,
    "Sum": lambda terms: sum(terms[1:], terms[0]), "Product": sympy.prod, "Quotient": lambda over, under: over / under,
    "Residue": lambda value, modulus, alone: value % modulus if alone else sympy.Matrix([value % modulus, modulus]),
    "Ratio": lambda parts, is_clock: sympy.Matrix([part / parts[0] for part in parts]),
}  # fmt: skip
_SYNONYMS = ({"sterling", "pound"}, {"yensign", "yen", "jpy", "yuan", "renminbi", "rmb", "cny"})
_USUAL = {"integer", "real", "natural number", "positive integer", "nonnegative integer"}
_FAULTS = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


def verify(certificate: dict[str, Any] | None) -> str | None:
    """Returns why a certificate does not show that two answers are equal; None if it does."""
    if certificate is None:
        return "there is no certificate"
    try:
        one, other = certificate["letters"]
        said, other_said = {*one.values()}, {*other.values()}
        agree = one | other == other | one and (said == other_said or said ^ other_said <= _USUAL)
        _need(agree, "letters stand for other numbers")
        _Fact(certificate)
    except _FAULTS as error:
        return f"not confirmed: {error}" if type(error) is ValueError else f"malformed: {error!r}"
    return None


def _need(condition: Any, reason: str) -> None:
    if not condition:
        raise ValueError(reason)


def _frozen(part: Any) -> Node:
    return tuple(map(_frozen, part)) if isinstance(part, list) else part


def _walk(node: Node) -> Iterator[Node]:
    if isinstance(node, tuple):
        yield from [node] if node and isinstance(node[0], str) else []
        for part in node:
            yield from _walk(part)


def _letters(*nodes: Node) -> list[str]:
    parts = list(_walk(nodes))
    bound = {part[2] for part in parts if part[0] == "Series"}
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
        _need(not (self.real and getattr(value, "is_real", None) is False), "not real")
        return value

    def _value(self, kind: str, name: Any, *rest: Any) -> Any:
        if kind == "Symbol":
            return self.point[name] if name in self.point else _CONSTANTS[name]
        if kind == "Quantity":
            basic = [self.point[unit] ** power for unit, power in rest[2]]
            return self.value(name) * Rational(rest[1]) * sympy.prod(basic)
        if kind == "Series" and name in {"sum", "prod"} and "infinity" not in f"{rest[1:3]}":
            start, end = self.value(rest[1:3])
            _need(start.is_integer and end.is_integer and end - start <= _MAX_TERMS, "no finite sum")
            numbers = [{("Symbol", rest[0]): ("Number", i)} for i in range(start, end + 1)]
            parts = [self.value(_replaced(rest[3], number)) for number in numbers]
            return sum(parts, Integer(0)) if name == "sum" else sympy.prod(parts)
        if kind == "Series":
            rest = _replaced(rest[1:], {("Symbol", rest[0]): ("Symbol", "none")})
        degree, is_angle = self.degree, kind == "Call" and name in {"sin", "cos", "tan", "cot", "sec", "csc"}
        self.degree = degree or is_angle
        one, *others = [self.value(part) for part in (name, *rest)]
        self.degree = degree
        if kind in {"Apply", "Series"}:
            parts = [sympy.N(part, 30) for part in sympy.flatten(others)]
            return Rational(random.Random(f"{self.salt}{name}{parts}").randint(1 << 40, 1 << 41), 1 << 40)
        if kind == "Power":
            size = (abs(one.p) + one.q).bit_length() if isinstance(one, Rational) and abs(one) != 1 else 0
            _need(abs(others[0]) * size < _MAX_BITS, "a power that is too large")
            return one ** others[0]
        return self._call(name, *others[0]) if kind == "Call" else _BUILT[kind](one, *others)

    def _call(self, name: str, one: Any, *rest: Any) -> Any:
        if name in {"degree", "percent"}:
            size = sympy.pi / 180 if name == "degree" else Rational(1, 100)
            return one * size if (self.degree if name == "degree" else self.percent) else one
        if name in {"ln", "log", "log10", "logarithm"}:
            is_natural = name == "ln" or (name == "log" and self.natural_log)
            return sympy.log(one) / sympy.log(*rest or [sympy.E if is_natural else 10])
        if name in {"factorial", "factorial2", "binomial"}:
            counts = all(number >= 0 or not number.is_integer for number in (one, *rest))
            _need(counts and abs((one, *rest)[-1]) <= 10_000, "a count that is negative, or too large")
        return one.det() if name == "det" else getattr(sympy, name)(one, *rest)

    def agree(self, a: Node, b: Node) -> bool | None:
        """Whether two expressions have the same value; None if one of them has none."""
        with suppress(*_FAULTS):
            one, other = self.value(a), self.value(b)
            if one == other or _rounds(a, other) or _rounds(b, one):
                return None if one in (sympy.nan, sympy.zoo) else True
            # sympy computes as many digits as it takes; a part of which it finds hardly any is zero.
            cells = [cell.evalf(30, maxn=500) for cell in sympy.flatten([one - other])]
            if not all(cell.is_finite for cell in cells):
                return False if {oo, -oo} & {one, other} else None
            return all(part == 0 or part._prec < 20 for cell in cells for part in cell.as_real_imag())
        return None

    def region(self, node: Node) -> Any:
        """A set of real numbers, with its ends as fractions."""
        match node:
            case ("Brackets", (low, high), brackets):
                ends = self.end(low), self.end(high)
                _need(ends[0] <= ends[1], "no interval")
                return sympy.Interval(*ends, brackets[0] == "(", brackets[1] == ")")
            case ("SetOf", items):
                return sympy.FiniteSet(*map(self.end, items))
            case ("NumberSet", "R"):
                return S.Reals
            case ("SetOperation", kind, left, right):
                one, other = self.region(left), self.region(right)
                return {"union": one | other, "intersection": one & other, "minus": one - other}[kind]
            case ("Listing", items, alternatives):
                sets = list(map(self.region, items))
                both = sympy.Intersection(*sets)
                return sympy.Union(*sets) if alternatives or both is S.EmptySet else both
            case ("Relation", (_, numbers), ("in",)):
                return self.region(numbers)
            case ("Relation", sides, signs):
                values = list(map(self.end, sides))
                pairs = zip(values, values[1:], [{"=": "=="}.get(sign, sign) for sign in signs], strict=False)
                test = sympy.And(*(sympy.Rel(*pair) for pair in pairs))
                return test.as_set() if test.free_symbols else S.Reals if test else S.EmptySet
        raise ValueError("no set of numbers")

    def end(self, node: Node) -> Any:
        value, scale = self.value(node), 10**40
        is_number = not value.free_symbols and value.is_finite
        return Rational(round(value.evalf(60) * scale), scale) if is_number else value


def _rounds(node: Node, value: Any) -> bool:
    """Whether a decimal of seven digits or more is the rounding of a value that has no exact decimal."""
    if node[0] != "Number" or len(node) < 4 or node[2] < 7 or not value.is_real:
        return False
    written, unit = Rational(node[1]), Rational(1, 10 ** node[3])
    if value * written < 0 or (value.is_Rational and pow(10, value.q.bit_length(), value.q) == 0):
        return False
    is_float = node[2] >= 15 and Fraction(repr(float(written))) == Fraction(node[1])
    near = bool(node[3] and -unit / 2 <= abs(value) - abs(written) < unit)
    return near or (is_float and float(value) == float(written))


def _drawn(name: str, points: list[dict[str, Any]]) -> Any:
    """A random value for a letter: whole if it may have to be, else any real number."""
    is_whole = name in {*"jkmn"} and all(point[name].is_integer for point in points if name in point)
    size, sign = _DRAW.choice((6, 20, 99)), _DRAW.choice((1, 1, 1, -1))
    broken = Rational(sign * _DRAW.randint(1, 1009 * size), 1009)
    return Integer(_DRAW.randint(0, size)) if is_whole else broken


def _identical(a: Node, b: Node, points: Any = (), reading: Any = (0, 0, 1)) -> bool:
    """Whether two expressions agree at some points, and at random ones of our own."""
    units = {unit for part in _walk((a, b)) if part[0] == "Quantity" for unit, _ in part[4]}
    names = sorted({*_letters(a, b)} | units)
    if a == b or "dots" in names:
        orders = [b[1], b[1][::-1]] if a[0] == b[0] and len(a[1]) == len(b[1]) else []
        return a == b or any(all(map(_identical, a[1], order)) for order in orders)
    claimed = [
        {name: Rational(re) + I * Rational(im) for name, (re, im) in point.items()} for point in points
    ]
    agreed = [_Evaluation(point, reading).agree(a, b) for point in claimed]
    real = bool(names) and ("Symbol", "i") not in {*_walk((a, b))}
    for _ in range((_TRIES if names else 1) if all(agreed) else 0):
        point = {name: _drawn(name, claimed) for name in names}
        agreed.append(_Evaluation(point, reading, real).agree(a, b))
        if agreed[-1] is False or agreed.count(True) >= len(claimed) + _POINTS:
            break
    return False not in agreed and agreed.count(True) - len(claimed) >= (_LEAST_POINTS if names else 1)


def _core(node: Node) -> Node:
    """k for k + 3 or -k + 3, which go through all whole numbers as k does."""
    if node[0] == "Sum" and node[1][1][0] == "Number" and Fraction(node[1][1][1]).denominator == 1:
        node = node[1][0]
    return node[1][1] if node[0] == "Product" and node[1][0][:2] == ("Number", "-1") else node


def _title(item: Node) -> Node:
    """What a member of a list is called, or counted in."""
    return item[1][0] if item[0] == "Relation" else item[2] if item[0] == "Quantity" else None


def _head(name: Node) -> str:
    """The letter of a function of letters, as f in f(x), or of y, which may be one."""
    function = name[0] == "Apply" and all(arg[0] == "Symbol" for arg in name[2])
    return name[1] if function or name == ("Symbol", "y") else ""


def _hours(time: Node) -> Any:
    """The hour of a day, with minutes as fractions."""
    if time[0] == "Product":  # 9 am, read as a product
        time = ("Quantity", time[1][0], "".join(letter[1] for letter in time[1][1:]))
    value, half = (time[1], time[2].lower()) if time[0] == "Quantity" else (time, "")
    parts = value[1] if value[0] == "Ratio" else (value,)
    hours = sum(Rational(part[1]) / 60**i for i, part in enumerate(parts))
    return hours % 12 + 12 * (half == "pm") if half else hours


def _tables(node: Node) -> list[Node]:
    """The rows of a matrix or of nested brackets, also as columns; the entry of a matrix that has just one."""
    items = node[1] if node[0] in {"Matrix", "Brackets"} else ()
    rows = [row[1] if row[0] == "Brackets" else row if node[0] == "Matrix" else (row,) for row in items]
    is_entry = len(rows) == len(rows[0]) == 1 if rows else False
    return [tuple(rows), tuple(zip(*rows, strict=True)), *(rows[0] if is_entry else ())] if rows else [node]


class _Fact:
    """A fact that follows from the facts below it; raises ValueError if it does not. Each rule has a method."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data, self.gold, self.pred = data, _frozen(data["gold"]), _frozen(data["pred"])
        self.because = [_Fact(each) for each in data["because"]]
        self.proven = {frozenset((fact.gold, fact.pred)) for fact in self.because}
        confirmed = getattr(self, f"by_{data['rule']}")(self.gold, self.pred)
        _need(confirmed, f"{data['rule']!r} does not show that {self.gold!r:.200} is {self.pred!r:.200}")

    def same(self, a: Node, b: Node) -> bool:
        """Whether two nodes, or lists of nodes, are the same but for parts that are proven equal."""
        both = isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b)
        return a == b or frozenset((a, b)) in self.proven or (both and all(map(self.same, a, b)))

    def by_identical(self, a: Node, b: Node) -> bool:
        return bool(a == b or a[:2] == b[:2] == ("Text", b[1]))

    by_integer = by_text = by_choice = by_identical

    def by_number(self, a: Node, b: Node) -> bool:
        return _identical(a, b, self.data["points"], self.data["reading"])

    by_expression = by_percent = by_number

    def by_base(self, a: Node, b: Node) -> bool:
        return bool(a[0] == b[0] == "Based" and a[1] == b[1])

    def by_tuple(self, a: Node, b: Node) -> bool:
        vectors = {a[2], b[2]} == {"()", "<>"} or ({a[2], b[2]} == {"()", "[]"} and len(a[1]) > 2)
        return (a[2] == b[2] or vectors) and self.same(a[1], b[1])

    def by_list(self, a: Node, b: Node) -> bool:
        """In order if one of the two is a tuple, leaves out members, or alone has names; else by a matching."""
        kinds, lists = {a[0], b[0]}, {"Listing", "SetOf", "Brackets"}
        if kinds == {"SetOf", "Brackets"}:
            members, point = (a[1], b) if a[0] == "SetOf" else (b[1], a)
            return self.same(members, (point,)) or self.same(("Listing", members, False), point)
        sides = [side[1] if side[0] in lists else (side,) for side in (a, b)]
        titles = [set(map(_title, side)) for side in sides]
        alone = [None not in each and len(each) > 1 for each in titles].count(True) == 1
        ordered = ("Symbol", "dots") in {*_walk((a, b))} or (alone and "SetOf" not in kinds)
        if ordered or "Brackets" in kinds:
            return self.same(*sides)
        pairs = [pair for pair in product(*sides) if self.same(*pair)]
        return all({pair[i] for pair in pairs} == {*sides[i]} for i in (0, 1))

    by_set = by_list

    def by_matrix(self, a: Node, b: Node) -> bool:
        pairs = product(_tables(a), _tables(b))
        return any(self.same(*pair) for pair in pairs) or _identical(a, b)

    def by_relation(self, a: Node, b: Node) -> bool:
        """Written alike, one name with one value, or multiples of each other."""
        signs, equal = {*a[2], *b[2]}, {*a[2], *b[2]} <= {"=", "~"}
        if self.same(a[1:], b[1:]) or (signs <= {"!="} and self.same(a[1], b[1][::-1])):
            return True
        for (x, *_, value), (y, *_, other) in product((a[1], a[1][::-1]), (b[1], b[1][::-1])):
            heads = [_head(x), _head(y)]
            function = all(heads) and ("y" in heads or heads[0] == heads[1])
            if equal and (function or self.same(x, y)) and self.same(value, other):
                return True
        if not _letters(a) or a[2] != b[2] or a[2] not in {("=",), ("!=",)} or "Residue" in f"{a}{b}":
            return False
        here = _Evaluation({name: sympy.Symbol(name) for name in _letters(a, b)})
        zeros = [here.value(left) - here.value(right) for left, right in (a[1], b[1])]
        if min(len(zero.free_symbols) for zero in zeros) > 1:  # curves, whose denominators do not matter
            zeros = [sympy.fraction(sympy.together(zero))[0] for zero in zeros]
        points = [{name: _drawn(name.name, []) for name in zeros[0].free_symbols} for _ in range(_POINTS)]
        ratios = [(zeros[0] / zeros[1]).subs(point).evalf(30) for point in points]
        return ratios[0] != 0 and all(abs(ratio / ratios[0] - 1) < 1e-20 for ratio in ratios)

    def by_residue(self, a: Node, b: Node) -> bool:
        """The same congruence, or the same residues; a number may stand for its class."""
        if a[0] == "Relation":
            return self.by_relation(a, b)
        (residue, plain), alone = (a, b) if a[0] == "Residue" else (b, a), a[0] != b[0]
        is_class = alone and not _letters(residue) and not residue[3]
        return _identical(a, b) or (is_class and self.same(residue[1], plain))

    def by_interval(self, a: Node, b: Node) -> bool:
        """The same set of numbers, whatever the values of other letters are."""
        names = {each: ("Symbol", str(each)) for each in _walk((a, b)) if each[0] == "Apply"}
        a, b, equal = _replaced(a, names), _replaced(b, names), 0
        letters = _letters(a, b) or [""]
        for free, _ in product(letters, range(8 if len(letters) > 1 else 1)):
            point = {name: _drawn(name, []) for name in letters} | {free: sympy.Symbol("x", real=True)}
            with suppress(*_FAULTS):
                if _Evaluation(point).region(a) != _Evaluation(point).region(b):
                    return False
                equal += 1
        return equal > 0

    def by_name(self, a: Node, b: Node) -> bool:
        """An equation gives a name, or something with letters, the value of the other answer."""
        (_, sides, signs), plain = (a, b) if a[0] == "Relation" else (b, a)
        ends = [(sides[0], sides[-1]), (sides[-1], sides[0])] if {*signs} <= {"=", "~"} else []
        pairs = ends if signs != ("in",) else [(sides[0], sides[1])]
        for name, value in pairs:
            is_name = _letters(*sides) or "Apply" in f"{name}" or value[0] == "Residue"
            is_true = is_name or _identical(name, value) or _identical(name, value, (), (1, 1, 1))
            if is_true and self.same(value, plain):
                return True
        return "~" in signs and any(self.same(side, plain) for side in sides)

    def by_unit(self, a: Node, b: Node) -> bool:
        """Equal in basic units or in the same unit, or only one has a unit."""
        sides = [side if side[0] == "Quantity" else ("Quantity", side, "", "1", ()) for side in (a, b)]
        (_, one, words, *size), (_, other, other_words, *other_size) = sides
        if {"am", "pm"} & {words.lower(), other_words.lower()}:
            return _hours(a) == _hours(b) or (self.same(one, other) and not (words and other_words))
        if "celsius" in f"{size}{other_size}" or "fahrenheit" in f"{size}{other_size}":
            one, other = (side[2][0] if side[:2] == ("Call", "degree") else side for side in (one, other))
        both = {words.lower().removesuffix("s"), other_words.lower().removesuffix("s")}
        alike = not words or not other_words or size == other_size or any(both <= each for each in _SYNONYMS)
        return (alike and self.same(one, other)) or _identical(a, b, (), (True, False, True))

    def by_ratio(self, a: Node, b: Node) -> bool:
        alone = ("Number", "1", 0, 0)
        one, other = (side if side[0] == "Ratio" else ("Ratio", (side, alone), False) for side in (a, b))
        return self.same(one[1], other[1]) or (not (one[2] or other[2]) and _identical(one, other))

    def by_letters(self, a: Node, b: Node) -> bool:
        """Whole numbers' letters, or a function's arguments, were renamed one to one; k may be shifted or turned."""
        (fact,), new = self.because, {name: _frozen(node) for name, node in self.data["replaced"]}
        whole = {*"klmn", *(name for said in self.data.get("letters", ()) for name in said)}
        arguments = _letters(b[1][0], fact.pred[1][0]) if b[0] == fact.pred[0] == "Relation" else []
        cores = {_core(node) if name in whole else node for name, node in new.items()}
        one_to_one = len(cores) == len(new) and all(core[0] == "Symbol" for core in cores)
        renamed = _replaced(b, {("Symbol", name): node for name, node in new.items()})
        is_free = {*new} <= {*whole, *arguments} and len(_letters(renamed)) == len(_letters(b))
        return one_to_one and is_free and (fact.gold, fact.pred) == (a, renamed)
