"""Answers that are equal and answers that are not, kind by kind."""

from __future__ import annotations

import pytest
from support.eval.grader_cases import KINDS, misgraded

from rstar2.eval.grader import grade


@pytest.mark.parametrize("kind", KINDS)
def test_a_boxed_answer_is_correct_exactly_when_it_equals_the_gold(kind):
    assert misgraded(KINDS[kind], "So it is $\\boxed{{}}$.") == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_bare_answer_gets_the_verdict_of_the_boxed_one(kind):
    assert misgraded(KINDS[kind]) == []


@pytest.mark.parametrize(
    ("gold", "pred", "verdict"),
    [
        ("42", "\\boxed{41}", "wrong"),
        ("\\text{Yes}", "\\boxed{No}", "wrong"),
        ("[0,1)", "\\boxed{[0,1]}", "wrong"),
        ("42", "\\boxed{}", "unparsed"),
        ("42", "", "unparsed"),
        ("42", None, "unparsed"),
        ("42", "\\boxed{\\frac{1}{}}", "unparsed"),
        ("42", "\\boxed{9^{9^{9^{9}}}}", "unparsed"),
        ("3 \\text{ blorps}", "\\boxed{3 \\text{ snarks}}", "unparsed"),
        (None, "\\boxed{42}", "invalid"),
        ("", "\\boxed{42}", "invalid"),
        (" ", " ", "invalid"),
    ],
)
def test_what_could_not_be_verified_is_not_called_wrong(gold, pred, verdict):
    assert grade(gold, pred).verdict == verdict


@pytest.mark.parametrize(
    ("gold", "pred", "rule"),
    [
        ("7", "7", "integer"),
        ("x+1", "$x + 1$", "text"),
        ("1/2", "0.5", "number"),
        ("x+1", "1+x", "expression"),
        ("(1,2]", "1<x\\le 2", "interval"),
        ("1,2", "2,1", "list"),
        ("\\{1,2\\}", "\\{2,1\\}", "set"),
        ("(1,2)", "(1.0,2.0)", "tuple"),
        ("5\\%", "0.05", "percent"),
        ("1\\text{ m}", "100\\text{ cm}", "unit"),
        ("11_2", "3_{10}", "base"),
        ("1:2", "2:4", "ratio"),
        ("y=x", "y-x=0", "relation"),
        ("\\begin{pmatrix}1\\\\2\\end{pmatrix}", "\\begin{bmatrix}1.0\\\\2\\end{bmatrix}", "matrix"),
    ],
)
def test_the_verdict_names_the_rule_that_decided(gold, pred, rule):
    verdict = grade(gold, pred)
    assert (verdict.verdict, verdict.rule) == ("correct", rule)
