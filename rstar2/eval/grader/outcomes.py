"""Reasons why an answer is not correct: wrong, missing, not understood, or not decided by the grader.

Training and evaluations count these reasons separately. An answer earns no reward if the grader could not decide
whether it is correct, because a model could provoke an undecided grading on purpose. An undecided answer may be right:
the reason is a limit or a fault of the grader.
"""

from __future__ import annotations

import re
from typing import Literal, Protocol

from rstar2.eval.grader.grading import INTERNAL_ERROR, PREVENTED, WORKER_ENDED

Missed = Literal["wrong", "no_answer", "not_understood", "deadline", "work", "fault", "invalid"]
"""Why an answer is not correct. wrong: the answer differs from the gold answer. no_answer: the output has no answer.
not_understood: the answer could not be parsed, or no rule compares it. deadline: grading used up its CPU time. work:
comparing the answers takes more work than the grader allows. fault: an error in the grader. invalid: the gold answer
cannot be used, or the scorer of a benchmark gave no verdict."""
UNDECIDED: tuple[Missed, ...] = ("deadline", "work", "fault")
"""Reasons that leave open whether an answer is correct: the output has an answer, but the grader could not decide."""
LABELS: dict[Missed, str] = {
    "wrong": "wrong",
    "no_answer": "no answer",
    "not_understood": "not understood",
    "deadline": "deadline",
    "work": "too much work",
    "fault": "fault of the grader",
    "invalid": "gold answer or scorer",
}
"""The text that reports show for each reason."""

_TOO_MUCH_WORK = re.compile(r"not verified: (?:.*\btoo much work|maximum recursion depth exceeded)")
_PROGRAMMING_ERROR = re.compile(
    r"not verified: (?:Type|Attribute|Name|UnboundLocal|Key|Index|Lookup|Runtime|Assertion|NotImplemented)Error\b"
)


class Graded(Protocol):
    """A graded answer with its verdict and rule: a `Verdict` or a trace."""

    @property
    def verdict(self) -> str | None: ...
    @property
    def extracted(self) -> str | None: ...
    @property
    def rule(self) -> str: ...


def is_defect(rule: str) -> bool:
    """Whether the rule of a verdict names an exception that means an error in the grader's code."""
    return rule == INTERNAL_ERROR or _PROGRAMMING_ERROR.match(rule) is not None


def missed(graded: Graded) -> Missed | None:
    """Returns why an answer is not correct, or None if it is correct."""
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
