"""Every verdict has one reason. Answers that the grader could not decide are distinguished from wrong answers."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from support.eval import grader_defects

from rstar2.eval.grader import GraderPool, Verdict, grade
from rstar2.eval.grader.grading import INTERNAL_ERROR, POOL_CLOSED, WORKER_ENDED, WORKER_STUCK, VerdictName
from rstar2.eval.grader.outcomes import LABELS, UNDECIDED, Missed, is_defect, missed
from rstar2.eval.grader.worker import OUT_OF_MEMORY

pytestmark = pytest.mark.allows_grader_defects


@pytest.mark.parametrize(
    ("verdict", "reason"),
    [
        (Verdict("correct", "1", "integer"), None),
        (Verdict("wrong", "1", "integer"), "wrong"),
        (Verdict("unparsed", None, "no answer"), "no_answer"),
        (Verdict("unparsed", "x!", "not verified: not understood"), "not_understood"),
        (
            Verdict(
                "unparsed", "1", "not verified: an option's letter, but the gold answer is not an option"
            ),
            "not_understood",
        ),
        (Verdict("timeout", None, "deadline"), "deadline"),
        (Verdict("unparsed", "1", "not verified: too much work"), "work"),
        (Verdict("unparsed", "1", OUT_OF_MEMORY), "work"),
        (Verdict("unparsed", "1", "not verified: maximum recursion depth exceeded"), "work"),
        (Verdict("unparsed", None, INTERNAL_ERROR), "fault"),
        (Verdict("unparsed", "1", "not verified: TypeError"), "fault"),
        (Verdict("unparsed", None, WORKER_ENDED), "fault"),
        (Verdict("unparsed", None, POOL_CLOSED), "fault"),
        (Verdict("timeout", None, WORKER_STUCK), "fault"),
        (Verdict("invalid", None, "no gold answer"), "invalid"),
    ],
)
def test_every_verdict_has_one_reason(verdict: Verdict, reason: Missed | None) -> None:
    assert missed(verdict) == reason


def test_every_reason_has_its_words() -> None:
    assert set(LABELS) == set(get_args(Missed))
    assert set(UNDECIDED) < set(LABELS)
    assert {missed(Verdict(name, "1", "")) for name in get_args(VerdictName)} <= {None, *LABELS}


@pytest.mark.parametrize(
    ("gold", "answer", "reason"), [("42", "\\boxed{41}", "wrong"), ("42", "", "no_answer")]
)
def test_the_reasons_are_those_of_real_verdicts(gold: str, answer: str, reason: Missed) -> None:
    assert missed(grade(gold, answer)) == reason


@pytest.mark.parametrize(
    ("rule", "defect"),
    [
        (INTERNAL_ERROR, True),
        ("not verified: TypeError", True),
        ("not verified: AttributeError", True),
        ("not verified: KeyError", True),
        ("not verified: too much work", False),
        ("not verified: not understood", False),
        ("deadline", False),
        (WORKER_ENDED, False),
        ("integer", False),
    ],
)
def test_an_exception_that_is_no_judgement_is_a_defect(rule: str, defect: bool) -> None:
    assert is_defect(rule) is defect


def test_a_defect_in_this_process_or_in_a_grading_process_fails_a_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grade("42", "\\boxed{41}")
    grader_defects.refuse_defects()
    # The grading processes import a grader with a broken comparison.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, rstar2.eval.grader\n"
        "module = sys.modules['rstar2.eval.grader.grading']\n"
        "compare = module.compare\n"
        "def broken(gold, answer):\n"
        "    if '8' in repr(gold) and '7' in repr(answer):\n"
        "        raise TypeError('broken')\n"
        "    return compare(gold, answer)\n"
        "module.compare = broken\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with GraderPool() as pool:
        assert pool.grade("\\sqrt{8}", "\\sqrt{7}").rule == INTERNAL_ERROR
        assert pool.grade("\\sqrt{8}", "2\\sqrt{2}").correct, "the grading process still works"
    with pytest.raises(AssertionError, match="internal error"):
        grader_defects.refuse_defects()
    grader_defects.noted.clear()
    Verdict("unparsed", "1", "not verified: TypeError")
    with pytest.raises(AssertionError, match="TypeError"):
        grader_defects.refuse_defects()
