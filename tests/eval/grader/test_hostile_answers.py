"""Answers that try to run code, to exhaust the grader or to confuse it: each gets its verdict, and no code runs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rstar2.eval.grader import GraderPool, grade

LIMIT_S = 20.0
"""Limit for one grading in seconds of processor time."""
PAIR = "\\begin{pmatrix}1\\\\2\\end{pmatrix}"
CODE = [
    "__import__('pathlib').Path('@@').touch()",
    "exec(\"open('@@','w')\")",
    "[x for x in ().__class__.__base__.__subclasses__() if x.__name__=='Popen'][0](['touch','@@'])",
    "[].__class__.__base__.__subclasses__() and open('@@','w')",
    "(lambda: open('@@','w'))()",
    "1+__import__('os').system('touch @@')",
    "x+__import__('os').system('touch @@')",
    "(__import__('os').system('touch @@'),1)",
    "[[__import__('os').system('touch @@')],2]",
    "[f(__import__('os').system('touch @@')),2]",
    "__builtins__['open']('@@','w')",
    "open('@@','w')",
]
"""Programs that create the file @@ if a grader evaluates them."""
WRITINGS = ["{}", "Answer: {}", "\\boxed{{{}}}", "${}$"]
GOLDS = ["0", "x", "2x+1", "\\frac{1}{2}", PAIR]
CASES = [
    ("42", "\\boxed{9^{9^{9}}}", False),
    ("42", "\\boxed{1/2^{10^{9}}}", False),
    ("42", "\\boxed{999999999^{999999999}}", False),
    ("9^{9^{9^{9}}}", "\\boxed{9^{9^{9^{9}}}}", True),
    ("10^{-30}", "\\boxed{0}", False),
    ("42", "\\boxed{" * 10_000 + "1" + "}" * 10_000, False),
    ("42", "\\boxed{" * 10_000, False),
    ("42", "a" * 1_000_000, False),
    ("42", "$x$ " * 100_000 + "The answer is 42.", True),
    ("42", " " * 1_000_000 + "42", True),
    ("{1,2,3}", "\\boxed{" + ",".join(map(str, range(5000))) + "}", False),
    (
        "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}",
        "\\boxed{\\begin{pmatrix}" + "\\\\".join(["&".join("1" * 60)] * 60) + "\\end{pmatrix}}",
        False,
    ),
    ("42", "\\boxed{\\sqrt}", False),
    ("42", "\\boxed{_}", False),
    ("42", "\\boxed{{}}", False),
    ("42", "\\boxed", False),
    ("42", "\\boxed{\\\\\\\\}", False),
    ("42", "\\boxed{\\u0000}", False),
    ("42", "", False),
    ("42", "\\boxed{}", False),
    ("0", "\\boxed{().__class__.__bases__[0].__subclasses__()}", False),
    ("0", "\\boxed{exit()}", False),
    ("0", "\\boxed{help()}", False),
    ("0", "\\boxed{False}", False),
    ("1000", "\\boxed{1\N{NO-BREAK SPACE}000}", True),
    ("x", "\\boxed{42}", False),
    ("42", "I think \\boxed{41}. No wait, \\boxed{42}", True),
    ("42", "\\boxed{42} ... on reflection \\boxed{41}", False),
    ("42", "\\boxed{1,2,3,42}", False),
    ("42", "```output\n42\n```\nSo the answer is \\boxed{24}", False),
    ("42", "<reason>..</reason><answer>\\boxed{42}</answer>", True),
    ("42", "\\boxed{42}</s>", True),
]


@pytest.mark.slow
def test_no_code_in_an_answer_runs(tmp_path: Path) -> None:
    file = tmp_path / "written"
    answers = [writing.format(code.replace("@@", str(file))) for code in CODE for writing in WRITINGS]
    pairs = [(gold, answer) for gold in GOLDS for answer in answers]
    pairs += [(code.replace("@@", str(file)), "\\boxed{x}") for code in CODE]
    with GraderPool(workers=2) as pool:
        in_pool = pool.grade_many(pairs)
    verdicts = [*in_pool, *(grade(gold, answer) for gold, answer in pairs)]
    assert not any(verdict.correct for verdict in verdicts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("gold", "answer", "correct"), CASES, ids=range(len(CASES)))
def test_an_odd_answer_gets_its_verdict_soon(gold: str, answer: str, correct: bool) -> None:
    started = time.process_time()
    assert grade(gold, answer).correct is correct
    assert time.process_time() - started < LIMIT_S


def test_odd_answers_get_the_same_verdicts_in_the_pool() -> None:
    with GraderPool(workers=2) as pool:
        verdicts = pool.grade_many([(gold, answer) for gold, answer, _ in CASES])
    assert [verdict.correct for verdict in verdicts] == [correct for _, _, correct in CASES]
