"""Identity testing: unpredictable points in general position, domains, and a stated error probability."""

from __future__ import annotations

from itertools import product
from random import Random

import pytest

from rstar2.errors import UserError
from rstar2.eval.grader import grade
from rstar2.eval.grader.parse.nodes import Node
from rstar2.eval.grader.parse.reader import read
from rstar2.eval.grader.values import rational, secret
from rstar2.eval.grader.values.equality import identity
from rstar2.eval.grader.values.guarded_numbers import BUDGET, NoValue, TooMuchWork, limited_work
from rstar2.eval.grader.values.points import real_points, whole_points


def node(text: str) -> Node:
    return read(text)[0]


SECRETS = [f"{number:032x}" for number in range(1, 9)]
DIFFERENT = [
    (r"n^2", r"n^2+(n-7)(n-10)(n-12)(n-13)"),
    (r"7", r"7+\binom5n"),
    (r"\binom nk", r"\binom n5"),
    (r"mn-m-n", r"m^2+3m-5"),
    (r"(n-k)!", r"120"),
    (r"2^{n}", r"2^{n}+\binom{5}{n}"),
    (r"2^n", r"2^k"),
    (r"n!", r"n!+\binom{3}{n}"),
    (r"n!", r"n^n"),
    (r"\binom{n}{k}", r"\binom{n}{k+1}"),
    (r"\binom{n}{2}", r"\frac{n(n+1)}{2}"),
    (r"(n, k)", r"(n, n-5)"),
    (r"\{n-k, 1\}", r"\{5, 1\}"),
    (r"\begin{pmatrix} n-k \\ 1 \end{pmatrix}", r"\begin{pmatrix} 5 \\ 1 \end{pmatrix}"),
    (r"a = n-k", r"a = 5"),
    (r"\lfloor n/2 \rfloor", r"\ln(2-n)"),
    (r"\gcd(n, 37)", r"1"),
    (r"n \bmod 30", r"n"),
    (r"|x-2|+|x-3|", r"|2x-5|"),
    (r"\max(x, 10^5)", r"x"),
    (r"x", r"x+\max(0, 1-|x-500|)"),
    (r"(-1)^n", r"1"),
    (r"\sin(n\pi/2)", r"0"),
    (r"(-1)^m\frac{n!}{(n-m)!}", r"(-1)^m\frac{n!}{(n+(n-2)(n-15)(n-7)(n-10)(n-1)-m)!}"),
    (r"\lceil \frac{y+8}{7} \rceil", r"\lfloor \frac{y+8}{7} \rfloor + 1"),
    (r"\lceil \frac{3x-11}{13} \rceil", r"\lfloor \frac{3x-11}{13} \rfloor + 1"),
    (r"\lceil \frac{n+8}{97} \rceil", r"\lfloor \frac{n+8}{97} \rfloor + 1"),
    (r"x", r"x+\sin(2018\pi x)"),
    (r"1", r"(-1)^{5000!x}"),
    (r"\gcd(m,n)", r"\gcd(m,n,12)"),
    (r"\gcd(m,n)", r"\gcd(m,n,10!)"),
    (r"x", r"\max(x,-e^{30})"),
    (r"n", r"n+\max(0,n-\pi^{30})"),
    (r"x", r"x+\lfloor\lfloor x/10^4\rfloor/10^4\rfloor"),
    (r"(-1)^n", r"(-1)^n+\lfloor\lfloor n/10^4\rfloor/10^4\rfloor"),
    (r"(-1)^n", r"(-1)^n+\lfloor\frac{n}{10^7}\rfloor(n+2)(n+3)(n+4)(n+5)(n+6)(n+7)(n+8)(n+9)"),
    (r"(-1)^n", r"(-1)^n+\binom{n}{9000}"),
    (r"|x|(n \bmod 29)", r"x(n \bmod 29)"),
    (r"|x-(n^2 \bmod 18)|", r"||x|-(n^2 \bmod 18)|"),
    (r"\lfloor x/100 \rfloor \gcd(n, 6)", r"\lfloor x/100 \rfloor \gcd(n, 12)"),
    (r"y = x^2+\pi", r"y = x^2+e"),
    (r"f(x) = \lfloor n/100 \rfloor", r"f(x) = \lfloor n/100 \rfloor^2"),
    (r"x \lfloor\lfloor n/5 \rfloor/7\rfloor", r"x \lfloor\lfloor n/5 \rfloor/7\rfloor^3"),
    (r"\gcd(m+2, 59)", r"\gcd(m+4, 59)"),
    (r"\gcd(2m+3, 97)", r"\gcd(2m+5, 97)"),
    (r"\gcd(m+n, 59)", r"\gcd(m+2n, 59)"),
    (r"f(x) = \binom{m-n}{4n}", r"f(x) = 0"),
    (r"\max(\min(m, 12), n)", r"\max(\min(m, 9), n)"),
    (r"A = \gcd(mn, n)", r"A = \gcd(\frac{n}{m}, n)"),
    (r"A = \operatorname{lcm}(n+3, mn)", r"A = \operatorname{lcm}(n+3, 5n)"),
    (r"(k!) \text{ cm}", r"(k) \text{ cm}"),
    (r"(k'') \text{ cm}", r"(k') \text{ cm}"),
    (r"y = \frac{x}{\pi}+\sqrt2", r"y = \frac{x}{\pi}+\sqrt3"),
    (r"y = 10^{40}x+\sqrt2", r"y = 10^{40}x+\sqrt3"),
    (r"0", r"\sin(\pi+10^{-35})"),
    (r"3", r"\lfloor 3-10^{-35}\pi\rfloor"),
    (r"3", r"\lceil 3+\frac{\pi}{10^{40}}\rceil"),
    (r"0", r"\operatorname{sgn}(10^{-35}\pi)"),
    (r"1", r"\max(1, 1+10^{-60}\pi)"),
]
EQUAL = [
    (r"\binom{n}{k}", r"\frac{n!}{k!(n-k)!}"),
    (r"\binom{n}{k}", r"\binom{n-1}{k-1}+\binom{n-1}{k}"),
    (r"\frac{n(n-1)}{2}", r"\binom{n}{2}"),
    (r"\frac{(2n)!}{2^n n!}", r"(2n-1)!!"),
    (r"\frac{n!}{k!(n-k)!}p^k(1-p)^{n-k}", r"\binom{n}{k}(1-p)^{n-k}p^k"),
    (r"\frac{n(n+1)}{2}", r"\sum_{k=1}^{n} k"),
    (r"n!", r"\prod_{k=1}^{n} k"),
    (r"2^n", r"\sum_{k=0}^{n}\binom{n}{k}"),
    (r"(-1)^n", r"\cos(n\pi)"),
    (r"\lfloor \frac{n}{2} \rfloor", r"\frac{2n-1+(-1)^n}{4}"),
    (r"x^{2n}", r"(x^n)^2"),
    (r"2^{2^n}", r"4^{2^{n-1}}"),
    (r"x^{2023}", r"x \cdot x^{2022}"),
    (r"\pi r^2 h", r"h \cdot r \cdot \pi r"),
    (r"\sqrt{x^2}", r"|x|"),
    (r"\max(x, \pi)", r"\frac{x+\pi+|x-\pi|}{2}"),
    (r"\gcd(n, 6)\cos(i)", r"\cos(i)\gcd(6, n)"),
    (r"\min(\sqrt2, 1)", r"1"),
    (r"\frac{x^2-1}{x-1}", r"x+1"),
    (r"\sqrt{x-5000}", r"(x-5000)^{1/2}"),
    (r"\ln(x^2 y)", r"2\ln x + \ln y"),
    (r"\sin^2 x + \cos^2 x", r"1"),
    (r"(-1)^m\frac{n!}{(n-m)!}", r"(-1)^m m!\binom{n}{m}"),
    (r"(-1)^k\binom{n}{k}2^k", r"\frac{(-2)^k n!}{k!(n-k)!}"),
    (r"(e^{5y}-e^{5y})x", r"xe^{2y}e^{3y}-xe^{5y}"),
    (r"\binom{n}{j} - \frac{n!}{j!(n-j)!}", r"\frac{n!}{j!(n-j)!} - \binom{n}{j}"),
    (r"\frac{1+(-1)^n}{2}ye^{5y+6}", r"\frac{ye^{5y+6}+(-1)^n ye^{5y}e^6}{2}"),
    (r"1", r"e^0"),
    (r"e^{x}", r"e^{x}\pi^{0}"),
    (r"\pi x = 2", r"x = \frac{2}{\pi}"),
    (r"V = \pi r^2 h", r"\frac{V}{\pi} = r^2 h"),
    (r"y = \frac{x}{\pi}+\sqrt2", r"y-\sqrt2 = \frac{x}{\pi}"),
    (r"n", r"n\cos(2n\pi)"),
    (r"\lfloor x+\frac12 \rfloor", r"\lfloor 2x \rfloor - \lfloor x \rfloor"),
    (r"f(\sqrt{x^2})", r"f(|x|)"),
    (r"(-1)^n x^{n/2}", r"(-1)^n (\sqrt{x})^n"),
    (r"(-1)^n x^{2n+1}", r"(-1)^n x \cdot x^{2n}"),
    (r"(n \bmod 29) \ln(x^2)", r"2(n \bmod 29) \ln x"),
]


@pytest.mark.parametrize("key", SECRETS)
def test_formulas_are_equal_or_not_whatever_the_points_are(key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.VARIABLE, key)
    assert [pair for pair in DIFFERENT if grade(*pair).correct or grade(*pair[::-1]).correct] == []
    assert [(pair, grade(*pair).rule) for pair in EQUAL if not grade(*pair).correct] == []


@pytest.mark.parametrize(
    ("gold", "pred"),
    [
        (r"(-1)^k\binom{n-1}{k-1}", r"\binom{n-1}{k-1}"),
        (r"\cos(n\pi)+n!", r"1+n!"),
        (r"\gcd(n^2+3,97)", r"\gcd(n^2+4,97)"),
        (r"\lfloor\frac{y+8}{7}\rfloor+1", r"\lceil\frac{y+8}{7}\rceil"),
    ],
)
def test_what_differs_at_few_whole_numbers_differs_under_every_secret(
    gold: str, pred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = []
    for number in range(300):
        monkeypatch.setenv(secret.VARIABLE, f"{number:032x}")
        if grade(gold, f"\\boxed{{{pred}}}").correct:
            accepted.append(number)
    assert accepted == []


@pytest.mark.parametrize(
    ("text", "golds"),
    [
        (r"\frac{2n}{1+(-1)^n}", ["n", r"(-1)^n n", r"n\cos(n\pi)", r"n+(n \bmod 2)"]),
        (r"n((-1)^n)!", ["n", r"(-1)^n n"]),
        (r"n\sqrt{(-1)^n}", ["n", r"(-1)^n n"]),
        (r"n+0\cdot(n/2)!!", ["n", r"n+(n \bmod 2)"]),
        (r"\gcd(x,x)", ["x", "|x|", r"\max(x,0)", r"\sqrt{x^2}", r"\lfloor x\rfloor"]),
        (r"e^{\ln(x-3)}", ["x-3", "|x-3|"]),
        (r"x\frac{\ln x}{\ln x}", ["x", r"\sqrt{x^2}"]),
        (r"\lfloor x\rfloor + 0x!", ["x", r"\lfloor x\rfloor"]),
        (r"3+(\sqrt{x-3})^2", ["x", r"\max(x,3)"]),
        (r"n+\binom{n}{9000}", ["n", r"n+\binom{n}{9500}"]),
    ],
)
def test_a_text_with_values_in_few_places_is_not_right_for_several_formulas(
    text: str, golds: list[str]
) -> None:
    assert len([gold for gold in golds if grade(gold, text).correct]) <= 1


def test_no_number_is_the_value_of_a_formula_in_whole_number_letters() -> None:
    formulas = [
        f"{left}{operator}{right}{end}"
        for left, right in product("jkmn", repeat=2)
        if left != right
        for operator in ("-", "+")
        for end in ("", "+1", "-3")
    ]
    accepted = [
        (formula, number)
        for formula in formulas
        for number in range(-30, 60)
        if grade(formula, f"\\boxed{{{number}}}").correct
    ]
    assert accepted == []


def test_the_points_depend_on_the_pair_and_the_secret_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [
        (r"\binom{n}{k}", r"\frac{n!}{k!(n-k)!}"),
        ("x^2-1", "(x-1)(x+1)"),
        (r"\sin 2x", r"2\sin x\cos x"),
    ]
    for left, right in pairs:
        points = {}
        for key in SECRETS:
            monkeypatch.setenv(secret.VARIABLE, key)
            first, second, mirrored = (
                identity(a, b) for a, b in (2 * [(node(left), node(right))] + [(node(right), node(left))])
            )
            assert first is not None
            assert first == second == mirrored
            points[key] = str(first.points)
        assert len(set(points.values())) == len(SECRETS)
    left, right = ((node(a), node(b)) for a, b in (("x+x", "2x"), ("x+x+x", "3x")))
    assert identity(*left) != identity(*right)


def test_whole_number_letters_stand_in_general_position() -> None:
    a, b = node("n-k+m"), node("m-k+n!")
    source = whole_points(Random(1), a, b, ["k", "m", "n"], {"k", "m", "n"})
    points = [next(source) for _ in range(60)]
    for left, right in (("k", "m"), ("m", "n"), ("k", "n")):
        differences = {point[left] - point[right] for point in points}
        assert len(differences) > 20
        assert min(differences) < 0 < max(differences)


def test_real_letters_are_negative_small_and_large_too() -> None:
    a, b = node("|x|+y"), node(r"\sqrt{x^2}+y")
    source = real_points(Random(1), a, b, ["x", "y"], set())
    values = [point["x"] for point, _ in (next(source) for _ in range(60))]
    assert min(values) < -10
    assert max(values) > 100
    assert any(0 < value < 1 for value in values)


@pytest.mark.parametrize("degree", [1, 2, 10, 100, 500, 1000])
def test_different_polynomials_are_called_equal_with_a_probability_below_the_stated_one(degree: int) -> None:
    plan = rational.plan(node(f"x^{{{degree}}}"), node("x"))
    assert plan is not None
    assert ((degree + 1) / 2**plan.bits) ** plan.points <= rational.ERROR


@pytest.mark.parametrize(
    ("text", "degree"),
    [
        ("7", 0),
        ("x", 1),
        (r"\pi r^2", 3),
        (r"\frac{x+y}{x-y}", 2 + 2),
        ("(x+1)^{10}", 10),
        (r"\binom{n}{3}", 3),
        (r"\sin x", None),
        ("2^n", None),
        (r"\sqrt{x}", None),
        (r"\binom{n}{k}", None),
        ("x+i", None),
    ],
)
def test_which_formulas_are_quotients_of_polynomials(text: str, degree: int | None) -> None:
    assert rational.degree(node(text)) == degree


@pytest.mark.parametrize(
    ("gold", "pred"),
    [(r"\gcd(n, \frac12)", r"\gcd(\frac12, n)"), (r"\lfloor n/2 \rfloor", r"\ln(2-n)")],
)
def test_formulas_with_values_at_too_few_common_points_are_not_verified(gold: str, pred: str) -> None:
    with pytest.raises(NoValue):
        identity(node(gold), node(pred))


def test_one_budget_bounds_a_whole_grading() -> None:
    long = r"\sum_{i=1}^{1999}\sin(ix)"
    with limited_work() as budget:
        with pytest.raises(TooMuchWork):
            identity(node(long), node(f"{long}+x-x"))
        assert budget.left < 0
        with pytest.raises(TooMuchWork):
            identity(node(r"\sin x"), node(r"\cos(x-\pi/2)"))
    with limited_work() as budget:
        assert identity(node(r"\sin x"), node(r"\cos(x-\frac{\pi}{2})"))
        assert BUDGET / 2 < budget.left < BUDGET


@pytest.mark.parametrize(
    ("gold", "pred"),
    [
        ("1", r"\max(x,1)(x-y)!"),
        ("1", r"\prod_{k=1}^{10^9} k"),
        ("1", r"\log_{\sin 100}(\prod_{k=1}^{1000}\pi)"),
        ("2", r"(\sqrt{10^{9999}+1})!"),
        (r"\lfloor n/2 \rfloor", r"\sum_{k=1}^{n}\sum_{j=1}^{n}\sin(kj)"),
    ],
)
def test_hard_texts_end_without_a_verdict_of_their_deadline(gold: str, pred: str) -> None:
    verdict = grade(gold, pred)
    assert not verdict.correct
    assert verdict.verdict in {"wrong", "unparsed"}


@pytest.mark.parametrize(
    ("gold", "pred"),
    [
        ("1", r"\max(\sqrt2, 1)"),
        ("1", r"\min(\pi, e, 1+i)"),
        (r"\sqrt2", r"\max(\sqrt2, x)"),
        ("1", r"\max(1+i, 2)"),
        ("1", r"\gcd(\pi, 2)"),
        ("1", r"\lfloor i \rfloor"),
        ("1", r"\tan(\pi/2)"),
        ("1", r"(-3)!"),
        ("1", r"\ln 0"),
        ("1", r"\arg 0"),
        ("1", r"\log_1 5"),
        ("1", r"0^{-1}"),
        ("1", r"\operatorname{arccot} 0"),
    ],
)
def test_no_function_fails_with_an_error_of_the_program(gold: str, pred: str) -> None:
    assert "Error" not in grade(gold, pred).rule


@pytest.mark.parametrize(
    "pred",
    [
        r"\int_0^1 x^2 dx",
        r"\lim_{x \to 0} \frac{\sin x}{x}",
        r"\sum_{n=1}^{\infty} \frac{1}{n^2}",
        r"\sum_{k=1}^{1000000} k",
        r"\int_0^1 f(x) dx",
    ],
)
def test_limits_integrals_and_long_sums_are_not_worked_out(pred: str) -> None:
    assert grade("17", pred).verdict == "unparsed"
    assert grade(pred, f"\\boxed{{{pred}}}").correct


def test_integrals_are_compared_part_by_part() -> None:
    assert grade(r"\int_0^1 f(x) dx", r"\int_0^1 f(t) dt").correct
    assert grade(r"\sum_{k=1}^{\infty} \frac{1}{k(k+1)}", r"\sum_{n=1}^{\infty} \frac{1}{n^2+n}").correct
    assert not grade(r"\int_{-1}^1 |x| dx", r"\int_{-1}^1 x dx").correct


def test_a_bad_secret_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(secret.VARIABLE, "open sesame")
    with pytest.raises(UserError, match=secret.VARIABLE):
        secret.secret()


def test_child_processes_inherit_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    import os
    import subprocess
    import sys

    monkeypatch.delenv(secret.VARIABLE, raising=False)
    parent_secret = secret.secret()
    program = "from rstar2.eval.grader.values.secret import secret; print(secret().hex())"
    process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=os.environ, check=True
    )
    assert process.stdout.strip() == parent_secret.hex()
