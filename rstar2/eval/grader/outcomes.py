"""Why an answer is not correct: it is wrong, there is none, it is not understood, or the grader could not decide.

Training and evaluations count these apart. An answer that the grader could not decide earns no reward, as a model could
provoke it on purpose, but it says nothing about the answer: it is a limit or a fault of the grader.
"""

from __future__ import annotations

import re
from typing import Literal, Protocol

from rstar2.eval.grader.grading import INTERNAL_ERROR, PREVENTED, WORKER_ENDED

Missed = Literal["wrong", "no_answer", "not_understood", "deadline", "work", "fault", "invalid"]
"""wrong: it differs from the gold answer. no_answer: nothing was found. not_understood: it was found, but not
understood, or there is no rule that compares it. deadline: grading used up its CPU time. work: comparing the answers
takes more work than the grader allows. fault: an error of the grader's own. invalid: the gold answer cannot be used, or
a benchmark's own scorer gave no verdict."""
UNDECIDED: tuple[Missed, ...] = ("deadline", "work", "fault")
"""What the grader could not decide although it found the answer and may have understood it."""
LABELS: dict[Missed, str] = {
    "wrong": "wrong",
    "no_answer": "no answer",
    "not_understood": "not understood",
    "deadline": "deadline",
    "work": "too much work",
    "fault": "fault of the grader",
    "invalid": "gold answer or scorer",
}
"""How people are told of each."""

_TOO_MUCH_WORK = re.compile(r"not verified: (?:.*\btoo much work|maximum recursion depth exceeded)")
_PROGRAMMING_ERROR = re.compile(
    r"not verified: (?:Type|Attribute|Name|UnboundLocal|Key|Index|Lookup|Runtime|Assertion|NotImplemented)Error\b"
)


class Graded(Protocol):
    """A verdict with its reason: a `Verdict`, or a trace."""

    @property
    def verdict(self) -> str | None: ...
    @property
    def extracted(self) -> str | None: ...
    @property
    def rule(self) -> str: ...


def is_defect(rule: str) -> bool:
    """Whether a verdict's rule tells of an exception that is no judgement, but an error in the grader's code."""
    return rule == INTERNAL_ERROR or _PROGRAMMING_ERROR.match(rule) is not None


def missed(graded: Graded) -> Missed | None:
    """Returns why an answer is not correct; None if it is."""
    match graded.verdict:
        case "correct":
            return None
        case "wrong":
            return "wrong"
        case "invalid":
            return "invalid"
    if is_defect(graded.rule) or graded.rule in (WORKER_ENDED, *PREVENTED):
        return "fault"
    if graded.verdict == "timeout":
        return "deadline"
    if _TOO_MUCH_WORK.match(graded.rule):
        return "work"
    return "no_answer" if graded.extracted is None else "not_understood"
