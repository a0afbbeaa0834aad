"""Properties that hold for all answers."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from support.eval.grader_cases import KINDS, misgraded

from rstar2.eval.grader import GraderPool, extract_answer, grade

SYMMETRIC = [
    (gold, answer, equal)
    for kind, rows in KINDS.items()
    for gold, answer, equal in rows
    # Left out are kinds in which gold and answer have different roles: an equation states a value, an option quotes its
    # letter, and an interval may be a pair.
    if kind != "choices" and ("=" in gold) == ("=" in answer) and not re.fullmatch(r"\(-?\d+,-?\d+\)", answer)
]
TOKENS = r"""
    \frac \dfrac \sqrt { } ( ) [ ] \{ \} , ; 1 2 3 10 0 x y n = < > \le \in \cup \setminus \pm ^ _ + - * / ! % |
    \circ \text{ \begin{pmatrix} \end{pmatrix} \begin{cases} & \\ \pi e i \infty \sin \log \sum \int \lim \left
    \right . : ' \boxed{ <answer> $ \mathbb{R} \overline \binom \pmod cm and or √ ½ ² ° \emptyset \ldots \lfloor
    \rfloor \mid \choose f( 9^{9^ 10^ degree \det \implies __import__('os') 1e9 0.5 .5 1,000 #### answer:
"""
PIECES = TOKENS.split()
soup = st.lists(st.sampled_from(PIECES), max_size=25).flatmap(
    lambda parts: st.sampled_from(["", " "]).map(lambda gap: gap.join(parts))
)
anything = st.one_of(st.text(max_size=80), soup, st.builds("\\boxed{{{}}}".format, soup))
integers = st.integers(-(10**12), 10**12)
rationals = st.fractions(min_value=-1000, max_value=1000, max_denominator=400)


def fraction_forms(value: Fraction) -> list[str]:
    """Returns the forms in which people print a fraction."""
    p, q = value.numerator, value.denominator
    sign, n = ("-" if p < 0 else ""), abs(p)
    forms = [
        f"{p}/{q}",
        rf"\frac{{{p}}}{{{q}}}",
        rf"{sign}\frac{{{n}}}{{{q}}}",
        rf"{sign}\dfrac{{{n}}}{{{q}}}",
        rf"{sign} {n} / {q}",
    ]
    forms += [
        rf"\left(\frac{{{p}}}{{{q}}}\right)",
        rf"\frac{{{-p}}}{{{-q}}}",
        f"({p})/({q})",
        rf"{p}\cdot\frac{{1}}{{{q}}}",
    ]
    if n < 10 and q < 10:
        forms.append(rf"{sign}\frac{n}{q}" if n < 10 else "")
    if n > q > 1:
        forms += [rf"{sign}{n // q}\frac{{{n % q}}}{{{q}}}", f"{sign}{n // q} {n % q}/{q}"]
    cofactor = q
    for prime in (2, 5):
        while cofactor % prime == 0:
            cofactor //= prime
    if cofactor == 1:
        forms.append(f"{sign}{decimal(Fraction(n, q))}")
    return forms


def decimal(value: Fraction) -> str:
    places = next(k for k in range(64) if (value * 10**k).denominator == 1)
    digits = str(int(value * 10**places)).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


def integer_forms(value: int) -> list[str]:
    grouped = f"{value:,}"
    forms = [
        str(value),
        grouped,
        grouped.replace(",", "{,}"),
        grouped.replace(",", r",\!"),
        f"{value}.0",
        f"{value}.",
        f"+{value}",
    ]
    forms += [
        grouped.replace(",", r"\,"),
        rf"\text{{{value}}}",
        f"x = {value}",
        f"${value}$",
        rf"{value}\text{{ cm}}",
        rf"({value})",
    ]
    return [form for form in forms if value >= 0 or not form.startswith("+")]


@pytest.mark.slow
@settings(max_examples=120)
@given(anything, anything)
def test_no_input_raises_and_every_verdict_is_named(gold, pred):
    verdict = grade(gold, pred)
    assert verdict.verdict in {"correct", "wrong", "unparsed", "invalid"}
    assert verdict.rule


@settings(max_examples=120)
@given(anything)
def test_an_answer_equals_itself(text):
    answer = extract_answer(text)
    assume(answer is not None)
    assert grade(text, text).verdict == "correct"


@settings(max_examples=60)
@given(rationals)
def test_a_number_equals_itself_in_every_printed_form(value):
    for form in fraction_forms(value):
        assert grade(str(value), f"\\boxed{{{form}}}").correct, form
        assert grade(form, str(value)).correct, form


@settings(max_examples=50)
@given(integers)
def test_an_integer_equals_itself_in_every_printed_form(value):
    for form in integer_forms(value):
        assert grade(str(value), f"\\boxed{{{form}}}").correct, form
        assert grade(str(value), f"The answer is {form}").correct, form


@settings(max_examples=60)
@given(rationals, rationals)
def test_different_numbers_are_never_equal_in_any_printed_form(a, b):
    assume(a != b)
    for form_of_a, form_of_b in zip(fraction_forms(a), fraction_forms(b), strict=False):
        assert not grade(form_of_a, f"\\boxed{{{form_of_b}}}").correct, (form_of_a, form_of_b)


@settings(max_examples=60)
@given(integers, st.data())
def test_a_changed_digit_is_noticed(value, data):
    text = str(abs(value))
    at = data.draw(st.integers(0, len(text) - 1))
    digit = data.draw(st.sampled_from("0123456789"))
    changed = text[:at] + digit + text[at + 1 :]
    assume(int(changed) != int(text))
    for wrap in (
        "{}",
        "{} \\text{{ cm}}",
        "\\sqrt{{{}}}",
        "{}\\pi",
        "x={}",
        "({}, 1)",
        "[0, {})",
        "{}^\\circ",
        "{}\\%",
        "{}x+1",
    ):
        assert not grade(wrap.format(text), f"\\boxed{{{wrap.format(changed)}}}").correct


def test_equality_of_answers_is_symmetric():
    assert misgraded((answer, gold, equal) for gold, answer, equal in SYMMETRIC) == []


@settings(max_examples=40)
@given(st.lists(st.integers(-50, 50), min_size=1, max_size=6, unique=True), st.randoms(use_true_random=False))
def test_sets_do_not_depend_on_order_and_tuples_do(values, random):
    shuffled = random.sample(values, len(values))
    members, shuffled_members = ", ".join(map(str, values)), ", ".join(map(str, shuffled))
    assert grade(rf"\{{{members}\}}", rf"\{{{shuffled_members}\}}").correct
    assert grade(members, shuffled_members).correct
    assert grade(f"({members})", f"({shuffled_members})").correct == (values == shuffled)


@settings(max_examples=40)
@given(rationals, rationals, st.sampled_from("[("), st.sampled_from(")]"))
def test_an_interval_equals_its_inequality_and_no_other(low, high, opening, closing):
    assume(low < high)
    first, second = ("\\le" if opening == "[" else "<"), ("\\le" if closing == "]" else "<")
    interval = f"{opening}{low}, {high}{closing}"
    inequality = f"{low} {first} x {second} {high}"
    assert grade(f"x \\in {interval}", inequality).correct
    assert grade(inequality, interval).correct
    assert grade(interval, f"x \\in {interval}").correct
    # A pair in parentheses may be a point. A point equals no inequality.
    assert grade(interval, inequality).correct == (opening + closing != "()")
    other_interval = f"{'(' if opening == '[' else '['}{low}, {high}{closing}"
    assert not grade(interval, other_interval).correct


polynomials = st.lists(st.integers(-9, 9), min_size=2, max_size=5).filter(lambda c: any(c[1:]))


def polynomial(coefficients: list[int]) -> str:
    return " + ".join(f"({c})x^{{{i}}}" for i, c in enumerate(coefficients))


@settings(max_examples=40)
@given(polynomials, polynomials)
def test_polynomials_are_equal_exactly_when_their_coefficients_are(a, b):
    trimmed = [c[: max((i + 1 for i, v in enumerate(c) if v), default=0)] for c in (a, b)]
    reverse = " + ".join(reversed(polynomial(b).split(" + ")))
    assert grade(polynomial(a), reverse).correct == (trimmed[0] == trimmed[1])
    product = f"({polynomial(a)})({polynomial(b)})"
    assert grade(product, f"({polynomial(b)}) \\cdot ({polynomial(a)})").correct


@settings(max_examples=60)
@given(st.lists(st.tuples(anything, anything), max_size=4))
def test_the_pool_agrees_with_the_function(pairs):
    assert POOL.grade_many(pairs) == [grade(gold, pred) for gold, pred in pairs]


@pytest.fixture(scope="module", autouse=True)
def _pool():
    global POOL
    with GraderPool(workers=1) as POOL:
        yield
