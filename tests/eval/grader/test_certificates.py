"""Certificates: each correct verdict records how it was decided. A separate checker confirms or refuses the record."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest
import sympy
from support.eval.grader_cases import KINDS
from sympy.physics import units

from rstar2.eval.grader import GraderPool, grade
from rstar2.eval.grader.certificate import Fact
from rstar2.eval.grader.parse.reader import read
from rstar2.eval.grader.parse.units import measure
from rstar2.eval.grader.values.equality import Identity
from rstar2.eval.grader.verify import _Fact, verify

RULES = {name.removeprefix("by_") for name in vars(_Fact) if name.startswith("by_")}
EQUAL = {
    "integer": [("42", "\\boxed{+42}"), ("007", "7")],
    "text": [
        ("x+1", "$x + 1$"),
        ("\\text{Blue whale}", "a blue whale"),
        ("\\dfrac{a}{b}", "\\frac{a}{b}"),
    ],
    "choice": [("\\textbf{(D)}\\ 18", "Option D")],
    "identical": [("(2, 7)", "\\left( 2 ; 7 \\right)"), ("\\sqrt{11}", "\\sqrt{(11)}")],
    "number": [
        ("\\frac{7}{4}", "1.75"),
        ("\\sqrt{12}", "2\\sqrt3"),
        ("\\frac{5}{9}", "0.5555556"),
        ("\\sqrt7", "2.6457513110645907"),
        ("\\sin 30^\\circ", "\\frac12"),
        ("\\log_5 125", "3.0"),
        ("7!", "5040.0"),
        ("\\sum_{k=1}^{9} k^2", "285.0"),
        ("\\begin{vmatrix}2&1\\\\3&5\\end{vmatrix}", "7.0"),
        ("\\sqrt[3]{-27}", "-3.0"),
        ("\\infty", "4+\\infty"),
        ("f(2+1)-1", "-1+f(3)"),
        ("2\\int_0^1 g(x) dx", "(1+1)\\int_0^1 g(x) dx"),
        ("i^2", "-1.0"),
    ],
    "expression": [
        ("(x-3)^2", "x^2-6x+9"),
        ("\\binom{n}{2}", "\\frac{n(n-1)}{2}"),
        ("(-1)^{2n}", "1.0^n"),
        ("|x-4|", "|4-x|"),
        ("\\lfloor x+2\\rfloor", "\\lfloor x\\rfloor+2"),
        ("\\ln x^2", "2\\ln x"),
        ("\\operatorname{Re}(z)+3", "3+\\operatorname{Re}(z)"),
        ("1+3+\\cdots+n", "n+\\cdots+3+1"),
    ],
    "percent": [("35\\%", "0.35"), ("35\\%", "35")],
    "list": [
        ("3, 5", "5, 3"),
        ("x=3, y=5", "3, 5"),
        ("x=3, y=5", "y=5, x=3"),
        ("4 hens and 9 pigs", "4, 9"),
        ("4 hens and 9 pigs", "pigs: 9, hens: 4"),
        ("(3, 5)", "3, 5"),
        ("\\pm 6", "-6, 6"),
    ],
    "set": [("\\{3, 5\\}", "\\{5, 3.0\\}"), ("\\{3, 3, 5\\}", "\\{5, 3\\}")],
    "tuple": [("(1/2, 5)", "(0.5, 5)"), ("\\langle 1/2, 5\\rangle", "(0.5, 5)"), ("(1, 2, 3)", "[1, 2, 3]")],
    "matrix": [
        ("\\begin{pmatrix}1/2&2\\\\3&4\\end{pmatrix}", "\\begin{bmatrix}0.5&2\\\\3&4\\end{bmatrix}"),
        ("\\begin{pmatrix}2&4\\\\6&8\\end{pmatrix}", "2\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"),
        ("\\begin{pmatrix}3\\\\1/2\\end{pmatrix}", "(3, 0.5)"),
        ("[[1,0],[0,1]]", "\\begin{pmatrix}1&0\\\\0&1\\end{pmatrix}"),
    ],
    "relation": [
        ("y=3x+6", "3x-y+6=0"),
        ("y=3x+6", "f(x)=3(x+2)"),
        ("AB=\\frac12", "BA=0.5"),
        ("x=\\frac12", "0.5=x"),
    ],
    "residue": [
        ("x\\equiv 3\\pmod 7", "x\\equiv 10\\pmod 7"),
        ("3\\pmod 7", "10\\pmod 7"),
        ("17 \\bmod 6", "5.0"),
    ],
    "interval": [
        (r"[\sqrt r, \infty)", r"[r^{1/2}, \infty)"),
        ("(2, 5]", "2<x\\le 5"),
        ("(-\\infty,1)\\cup(4,\\infty)", "x<1\\text{ or }x>4"),
        ("|x|\\le 3", "-3\\le x\\le 3"),
        ("\\mathbb{R}\\setminus\\{2\\}", "x\\ne 2"),
        ("(-\\infty, \\sqrt8)", "x<2\\sqrt2"),
        ("(a, 2a]", "a<x\\le 2a"),
        ("a<x", "x>a"),
        ("x\\ne 1/2", "0.5\\ne x"),
        ("0<f(x)<2", "(0,2)"),
    ],
    "name": [
        ("x=\\frac38", "0.375"),
        ("12", "m+n=12.0"),
        ("12", "AB^2=12"),
        ("12", "\\lfloor 10S\\rfloor=12"),
        ("12", "100m+n=12"),
        ("12", "|AB|=12"),
        ("28", "1+2+\\cdots+7=28"),
        ("S=5", "5"),
        ("x\\in\\{1,2\\}", "\\{2,1\\}"),
    ],
    "unit": [
        ("3\\text{ m}", "300 cm"),
        ("3\\text{ m}", "3"),
        ("9.8\\text{ m/s}^2", "9.8 m/s^2"),
        ("60^\\circ", "\\frac{\\pi}{3}\\text{ radians}"),
        ("20^\\circ\\text{C}", "20^\\circ"),
        ("£15", "15 pounds"),
        ("4\\text{ PM}", "16:00"),
        ("4:30\\text{ PM}", "16:30"),
        ("36\\text{ km/h}", "10\\text{ m/s}"),
    ],
    "ratio": [("3:4", "6:8"), ("3:4", "3/4")],
    "base": [("13_4", "7_{10}")],
    "letters": [
        ("f(x)=3x^2", "f(t)=3t^2"),
        ("\\frac{\\pi}{5}+k\\pi, k\\in\\mathbb{Z}", "\\frac{\\pi}{5}+n\\pi, n\\in\\mathbb{Z}"),
        ("\\frac{\\pi}{5}+k\\pi, k\\in\\mathbb{Z}", "\\frac{6\\pi}{5}+k\\pi"),
        ("\\frac{\\pi}{5}+k\\pi, k\\in\\mathbb{Z}", "\\frac{\\pi}{5}-k\\pi"),
    ],
}  # fmt: skip
ALSO_EQUAL = [
    ("interval", "[1,3)\\cap[2,5]", "[2,3)"),
    ("residue", "3\\pmod 7", "3.0"),
    ("name", "\\frac13\\approx 0.33", "0.33"),
    ("relation", "z=4+4=8", "z=2+6=8.0"),
]
"""Cases that may stay equal when a number of the certificate is changed."""
PAIRS = [(rule, *pair) for rule, pairs in EQUAL.items() for pair in pairs]
FALSE = [
    ("n-k+1", "6", [{"n": 12, "k": 7}, {"n": 25, "k": 20}]),
    ("(n-k)!", "120", [{"n": 12, "k": 7}]),
    ("n^2+(n-7)(n-10)", "n^2", [{"n": 7}, {"n": 10}]),
    ("x", "|x|", [{"x": 3}, {"x": 4}]),
    ("x^2", "x^3", [{"x": 1}, {"x": 0}]),
    ("e^{-900}", "0", [{}]),
    ("\\sqrt{10^{90}+1}", "10^{45}", [{}]),
    ("0.3333333", "0.3333334", [{}]),
    ("f(3)", "f(4)", [{}]),
]
"""Formulas that differ, with points at which they agree."""
FALSE_BY_STRUCTURE = [
    ("list", "1, 2", "1, 2, 3"),
    ("set", "\\{1, 2\\}", "\\{1\\}"),
    ("set", "\\{1, 2\\}", "(1, 2)"),
    ("tuple", "(1, 2)", "(2, 1)"),
    ("tuple", "(1, 2)", "[1, 2]"),
    ("interval", "[1, 2)", "(1, 2)"),
    ("interval", "x>3", "x\\ge 3"),
    ("interval", "x+y>5", "x+y>6"),
    ("interval", "x>0, y>0", "x>0, y>1"),
    ("relation", "y=2x", "y=3x"),
    ("relation", "x=5", "y=5"),
    ("relation", "f(2)=5", "f(3)=5"),
    ("name", "x>5", "5"),
    ("name", "x=5", "6"),
    ("ratio", "x=5", "x=6"),
    ("ratio", "[0,1)", "[0,1]"),
    ("unit", "3:00", "3"),
    ("matrix", "0<x<1", "0<x\\le 1"),
    ("unit", "5\\text{ m}", "5\\text{ km}"),
    ("unit", "5\\text{ m}", "5\\text{ kg}"),
    ("unit", "9:00\\text{ am}", "9:00\\text{ pm}"),
    ("ratio", "1:2", "2:1"),
    ("ratio", "12:16", "3:4"),
    ("base", "11_2", "11_3"),
    ("residue", "x\\equiv 2\\pmod 5", "x\\equiv 3\\pmod 5"),
    ("residue", "2\\pmod 5", "2\\pmod 7"),
    ("matrix", "\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}2&1\\end{pmatrix}"),
    ("matrix", "\\begin{pmatrix}1&2\\end{pmatrix}", "\\begin{pmatrix}1\\\\2\\end{pmatrix}"),
    ("text", "\\text{red fox}", "\\text{blue fox}"),
]


def certificate(gold: str, pred: str) -> dict[str, Any]:
    verdict = grade(gold, pred)
    assert verdict.correct, (gold, pred, verdict)
    return json.loads(json.dumps(verdict.certificate))


def rules_in(fact: dict[str, Any]) -> set[str]:
    return {fact["rule"]}.union(*map(rules_in, fact["because"]))


def lists_in(part: Any) -> Iterator[list[Any]]:
    """Yields the list and all lists within it."""
    if isinstance(part, list):
        yield part
        for element in part:
            yield from lists_in(element)


def changed(fact: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (name of a change, changed certificate) pairs. Each change makes the certificate invalid."""
    places = len(list(lists_in(fact["gold"])))
    for place in range(places):
        copy_of_fact = copy.deepcopy(fact)
        part = list(lists_in(copy_of_fact["gold"]))[place]
        if part[:1] == ["Number"]:
            part[1] = str(Fraction(part[1]) + 1)
            yield "a number", copy_of_fact
        if part[:1] in (["Brackets"], ["Listing"], ["SetOf"], ["Matrix"]) and len(part[1]) > 1:
            part[1].pop()
            yield "a member", copy_of_fact
        if part[:1] == ["Brackets"] and fact["rule"] == "interval":
            part[2] = {"(": "[", "[": "("}[part[2][0]] + part[2][1]
            yield "an end", copy_of_fact
        if part[:1] == ["Relation"] and part[2] in (["<"], ["<="], ["<", "<="], ["<", "<"]):
            part[2][-1] = {"<": "<=", "<=": "<"}[part[2][-1]]
            yield "an operator", copy_of_fact
        if part[:1] == ["Symbol"] and fact["rule"] in {"relation", "expression"}:
            part[1] += "x"
            yield "a letter", copy_of_fact
    if fact["gold"] != fact["pred"]:
        yield "the rule", {**fact, "rule": "identical", "because": []}
    if isinstance(fact["gold"], str):
        yield "the text", {**fact, "gold": fact["gold"] + "1"}
    needed = [each for each in fact["because"] if each["gold"] != each["pred"]]
    if needed and fact["rule"] in {"name", "tuple", "letters", "list", "set"}:
        yield "the facts", {**fact, "because": []}
    if any(fact.get("points", ())):
        yield "a point", {**fact, "points": [{}, *fact["points"][1:]]}
        yield "all points", {key: value for key, value in fact.items() if key != "points"}
    yield "what a letter stands for", {**fact, "letters": [{"k": "integer"}, {"k": "prime"}]}
    yield "an unknown rule", {**fact, "rule": "trust"}


@pytest.mark.parametrize(("rule", "gold", "pred"), [*PAIRS, *ALSO_EQUAL])
def test_a_correct_verdict_has_a_certificate_that_the_checker_confirms(
    rule: str, gold: str, pred: str
) -> None:
    fact = certificate(gold, pred)
    assert rule in rules_in(fact)
    assert verify(fact) is None


def test_each_rule_has_cases() -> None:
    assert EQUAL.keys() == RULES


@pytest.mark.parametrize(("rule", "gold", "pred"), PAIRS, ids=range(len(PAIRS)))
def test_a_changed_certificate_is_refused(rule: str, gold: str, pred: str) -> None:
    accepted = [
        change for change, changed_fact in changed(certificate(gold, pred)) if verify(changed_fact) is None
    ]
    assert accepted == []


@pytest.mark.parametrize(("gold", "pred", "points"), FALSE, ids=range(len(FALSE)))
def test_formulas_that_differ_are_refused_though_they_agree_at_the_points(
    gold: str, pred: str, points: list[dict[str, int]]
) -> None:
    values = tuple({name: Fraction(value) for name, value in point.items()} for point in points)
    fact = Fact("expression", read(gold)[0], read(pred)[0], identity=Identity(values))
    assert verify(fact.certificate())


@pytest.mark.parametrize(("rule", "gold", "pred"), FALSE_BY_STRUCTURE, ids=range(len(FALSE_BY_STRUCTURE)))
def test_what_a_rule_does_not_show_is_refused(rule: str, gold: str, pred: str) -> None:
    gold_node, pred_node = read(gold)[0], read(pred)[0]
    assert verify(Fact(rule, gold_node, pred_node).certificate())
    # A true fact about other formulas does not help.
    assert verify(Fact(rule, gold_node, pred_node, (Fact("identical", gold_node, gold_node),)).certificate())


@pytest.mark.parametrize(
    ("gold", "pred", "name"),
    [
        ("5", "2S=5", "2S"),
        ("5", "2S=5", "S"),
        ("5", "N-1=5", "N-1"),
        ("5", "x^2=5", "x^2"),
        ("5", "\\sqrt{x}=5", "\\sqrt{x}"),
        ("5", "|x|=5", "|x|"),
        ("5", "3+1=5", "3+1"),
        ("5", "x=5", "y"),
        ("5", "1+2+\\cdots+9=5", "1+2+3"),
        ("m+n=5", "5", "m+n"),
        ("x^2+y^2=1", "1", "x^2+y^2"),
    ],
)
def test_an_equation_whose_other_side_is_no_name_is_refused(gold: str, pred: str, name: str) -> None:
    gold_node, pred_node, side = (read(text)[0] for text in (gold, pred, name))
    assert verify(Fact("name", gold_node, pred_node, name=side).certificate())
    assert verify(Fact("name", gold_node, pred_node).certificate())


@pytest.mark.parametrize("broken", [None, {}, {"rule": "number"}, {"rule": [], "letters": 3}])
def test_what_is_no_certificate_is_refused(broken: dict[str, Any] | None) -> None:
    assert verify(broken)


def test_only_correct_verdicts_have_a_certificate() -> None:
    assert grade("5", "6").certificate is None
    assert grade("\\sqrt2", "1.5").certificate is None
    assert grade("5", "\\text{a dozen}").certificate is None
    assert grade("", "5").certificate is None


def test_the_pool_hands_certificates_on() -> None:
    pairs = [("42", "42"), ("1/2", "0.5"), ("x^2-1", "(x-1)(x+1)"), ("\\sqrt8", "2\\sqrt2"), ("3", "4")]
    with GraderPool() as pool:
        certificates = [verdict.certificate for verdict in pool.grade_many(pairs)]
    assert certificates == [json.loads(json.dumps(grade(*pair).certificate)) for pair in pairs]
    assert [verify(each) for each in certificates[:4]] == [None] * 4


@pytest.mark.parametrize("kind", KINDS)
def test_every_correct_verdict_on_the_cases_of_the_grader_is_confirmed(kind: str) -> None:
    graded = [(gold, answer, grade(gold, answer)) for gold, answer, _ in KINDS[kind]]
    refusals = [
        (gold, answer, reason)
        for gold, answer, verdict in graded
        if verdict.correct and (reason := verify(verdict.certificate))
    ]
    assert refusals == []


@pytest.mark.parametrize(
    ("unit", "other_unit"),
    [
        ("km", "m"), ("cm", "m"), ("mm", "m"), ("inch", "m"), ("foot", "inch"), ("yard", "foot"), ("mile", "km"),
        ("hour", "second"), ("day", "minute"), ("gram", "kg"), ("mg", "gram"), ("pound", "gram"),
        ("newton", "kg m / s^2"), ("joule", "newton m"), ("watt", "joule / s"), ("pascal", "newton / m^2"),
        ("milliliter", "liter"), ("volt", "watt / ampere"), ("ohm", "volt / ampere"), ("mile / hour", "m / s"),
    ],
)  # fmt: skip
def test_units_which_the_checker_takes_from_the_certificate_are_as_large_as_those_of_sympy(
    unit: str, other_unit: str
) -> None:
    first, second = measure(unit), measure(other_unit)
    assert first is not None
    assert second is not None
    assert first[1] == second[1]
    ratio = units.convert_to(in_sympy(unit) / in_sympy(other_unit), (units.m, units.kg, units.s, units.A))
    assert ratio == sympy.Rational(str(first[0] / second[0]))


def in_sympy(text: str) -> Any:
    """Returns a product of units, such as kg m / s^2, in sympy's units."""
    value, sign = sympy.Integer(1), 1
    for word in text.split():
        name, _, power = word.partition("^")
        sign = -1 if word == "/" else sign
        value *= 1 if word == "/" else getattr(units, name) ** (sign * int(power or 1))
    return value
