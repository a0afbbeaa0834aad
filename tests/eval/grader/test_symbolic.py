"""Limits, integrals and long sums: worked out by sympy where a deadline stands behind it, never guessed."""

from __future__ import annotations

import pytest
from support.eval.with_sympy import graded_with_sympy

from rstar2.eval.grader import GraderPool, Verdict, grade

NOT_VERIFIED = "not verified: a limit, an integral or a long sum"


@pytest.mark.parametrize(
    ("gold", "pred", "verdict"),
    [
        ("\\frac13", "\\int_0^1 x^2 \\, dx", "correct"),
        ("\\int_0^1 x^2 dx", "1/3", "correct"),
        ("\\frac14", "\\int_0^1 x^2 dx", "wrong"),
        ("2", "\\int_0^\\pi \\sin x dx", "correct"),
        ("\\ln 2", "\\int_1^2 \\frac{\\mathrm{d}x}{x}", "correct"),
        ("\\sqrt{\\pi}", "\\int_{-\\infty}^{\\infty} e^{-x^2} dx", "correct"),
        ("\\frac{1}{a}", "\\int_0^{\\infty} e^{-ax} dx", "correct"),
        ("\\frac{\\pi^2}{6}", "\\sum_{n=1}^{\\infty} \\frac{1}{n^2}", "correct"),
        ("\\frac{\\pi^2}{8}", "\\sum_{n=1}^{\\infty} \\frac{1}{n^2}", "wrong"),
        ("500000500000", "\\sum_{k=1}^{1000000} k", "correct"),
        ("\\frac{n(n+1)}{2}", "\\sum_{k=1}^{n} k", "correct"),
        ("\\frac{1}{1-x}", "\\sum_{k=0}^{\\infty} x^k", "correct"),
        ("e", "\\lim_{n \\to \\infty} (1 + 1/n)^n", "correct"),
        ("1", "\\lim_{x \\to 0} \\frac{\\sin x}{x}", "correct"),
        ("\\infty", "\\lim_{n \\to \\infty} n^2", "correct"),
        ("(1, 2)", "(\\int_0^1 2x dx, 2)", "correct"),
    ],
)
def test_they_are_worked_out(gold: str, pred: str, verdict: str) -> None:
    assert graded_with_sympy(gold, pred).verdict == verdict


@pytest.mark.parametrize(
    "pred",
    [
        "\\lim_{x \\to 0} \\frac{1}{x}",
        "\\int_0^1 f(x) dx",
        "\\int x dx",
        "\\sum_{n=1}^{\\infty} \\sin n",
        "\\int_0^1 x",
    ],
)
def test_what_sympy_does_not_work_out_is_not_called_wrong(pred: str) -> None:
    assert graded_with_sympy("17", pred) == Verdict("unparsed", pred, NOT_VERIFIED)


def test_the_same_integral_needs_no_working_out() -> None:
    assert grade("\\int_0^1 f(x) dx", "\\int_0^1 f(t) dt").verdict == "correct"


def test_without_a_deadline_nothing_is_worked_out() -> None:
    assert grade("\\frac13", "\\int_0^1 x^2 dx").rule == NOT_VERIFIED


@pytest.mark.slow
def test_the_pool_works_out_and_ends_what_takes_too_long() -> None:
    with GraderPool(timeout_s=1.0) as pool:
        assert pool.grade("\\frac13", "\\int_0^1 x^2 dx").rule == "symbolic"
        assert pool.grade("9", "\\int_0^1 x^{x^{x^{x}}} dx").verdict == "timeout"
        assert pool.grade("\\frac13", "\\int_0^1 x^2 dx").verdict == "correct"
