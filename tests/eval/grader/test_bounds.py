"""Grading of expensive answers ends soon, also in the caller's process."""

from __future__ import annotations

import time

import pytest

from rstar2.eval.grader import grade

PAIR = "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"
HARD = {
    "sins": ("\\sin 1", "+".join(f"\\sin({i}x^\\circ)" for i in range(1, 230)) + "+\\log x+5\\%"),
    "sins2": ("x", "+".join(f"\\sin({i}x)" for i in range(1, 230))),
    "bigpow": ("x^{500}+1", "(" + "+".join(f"x^{{{i}}}" for i in range(150)) + ")^{40}"),
    "nestpow": ("x", "x^{" * 30 + "x" + "}" * 30),
    "lists": (
        ",".join(f"\\sqrt{{{i}}}" for i in range(2, 90)),
        ",".join(f"{i}^{{1/2}}" for i in range(89, 1, -1)),
    ),
    "lists2": (",".join(str(i) for i in range(200)), ",".join(str(i) for i in range(200, 0, -1))),
    "sum": ("1", "\\sum_{k=1}^{2000} \\sin(k)"),
    "sumsum": ("1", "\\sum_{k=1}^{1999} \\sum_{j=1}^{1999} \\sin(kj)"),
    "sum3": ("1", "\\sum_{k=1}^{1999} \\sum_{j=1}^{1999} kj"),
    "prod": ("1", "\\prod_{k=1}^{2000} (k^{50}+x)"),
    "det": (
        "1",
        "\\begin{vmatrix}"
        + "\\\\".join("&".join(f"\\sin {i * j + 1}" for i in range(12)) for j in range(12))
        + "\\end{vmatrix}",
    ),
    "matpow": (
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}^5" + "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}" * 8,
    ),
    "matbig": (
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
        "(" * 30 + "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}" + ")^5" * 30,
    ),
    "fact": ("1", "9999!/9998!" + "+5000!" * 20),
    "pm": ("1", "+".join(["\\pm x"] * 4) + "+" + "+".join("\\pm 1" for _ in range(40))),
    "pm2": (",".join(["\\pm 1\\pm 2\\pm 3\\pm 4"] * 20), ",".join(["\\pm 1\\pm 2\\pm 3\\pm 5"] * 20)),
    "regions": (
        "\\cup".join(f"({i},{i + 1})" for i in range(0, 300, 2)),
        "\\cup".join(f"[{i},{i + 1}]" for i in range(0, 300, 2)),
    ),
    "binom": ("1", "\\binom{9999}{5000}+" * 30 + "1"),
    "root": ("1", "\\sqrt[9999]{2}+" * 100 + "1"),
    "gamma": ("x!", "(x+1)!/x!+" * 60 + "1"),
    "zeta": ("1", "\\arctan(" * 35 + "x" + ")" * 35),
    "det3": (
        "1",
        "\\begin{vmatrix}"
        + "\\\\".join("&".join(f"x^{{{i * j}}}" for i in range(12)) for j in range(12))
        + "\\end{vmatrix}",
    ),
    "products of products": (PAIR, "((" + PAIR * 3 + ")(" + PAIR * 3 + "))" * 2),
    "nested products": (PAIR, "(" * 20 + PAIR + (PAIR + ")") * 20),
    "towers": ("42", "9^{9^{9^{9}}}"),
    "huge factorial": ("42", "(10^{9})!"),
    "endless sum": ("42", "\\sum_{k=1}^{10^{12}} k"),
    "huge binomial": ("42", "\\binom{10^9}{5\\cdot 10^8}"),
    "huge polynomial": ("42", "(x+1)^{10^9}"),
    "far angle": ("42", "\\sin(10^{1000000})"),
}


LIMIT_S = 20.0
"""Limit of the CPU time in seconds. The slowest case takes half a second. Without the guards, most would take hours."""


@pytest.mark.parametrize("name", HARD)
def test_expensive_answers_end_soon(name):
    gold, answer = HARD[name]
    start_s = time.process_time()
    verdict = grade(gold, f"\\boxed{{{answer}}}")
    assert time.process_time() - start_s < LIMIT_S
    assert verdict.rule
    assert not verdict.correct


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ("10^{100}+1", "10^{100}"),
        ("e^{100}+1", "e^{100}"),
        ("e^{50000}+1", "e^{50000}"),
        ("10^{-30}", "0"),
        ("e^{-100}", "0"),
        ("e^{\\pi\\sqrt{163}}", "262537412640768744"),
        ("2^{2025}", "2^{2025}+1"),
    ],
)
def test_tiny_and_relatively_tiny_differences_are_seen(gold, answer):
    assert not grade(gold, f"\\boxed{{{answer}}}").correct


def test_huge_numbers_equal_themselves():
    for text in ("9^{9^{9^{9}}}", "9" * 5000, "\\binom{2026}{1013}", "3^{2025}", "(10^{9})!"):
        assert grade(text, f"\\boxed{{{text}}}").correct
    assert grade("9^{9^{9^{9}}}", "\\boxed{ 9 ^ {9^{9^9}} }").correct
    assert grade("10^{18}", "1" + "0" * 18).correct


def test_answers_that_are_too_long_to_be_read_are_not_equal():
    sums = "+".join(f"|x-{i}|" for i in range(2000))
    assert not grade(f"{sums}+7919", f"\\boxed{{{sums}}}").correct
    assert not grade("x+" * 3500 + "7", "\\boxed{" + "y-" * 3300 + "1}").correct
    assert not grade("((", "\\boxed{))}").correct
    assert grade(sums, f"\\boxed{{{sums}}}").correct
