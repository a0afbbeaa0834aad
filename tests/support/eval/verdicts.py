"""Checks the verdicts of cases, and names those that a case may get."""

from __future__ import annotations

from collections.abc import Iterable

from rstar2.eval.grader import Verdict, grade

CORRECT = frozenset({"correct"})
WRONG = frozenset({"wrong"})
UNPARSED = frozenset({"unparsed"})
NOT_CORRECT = frozenset({"wrong", "unparsed"})
Case = tuple[str, str, frozenset[str]]
"""(gold, answer, the verdicts it may get)."""


def misjudged(cases: Iterable[Case], also_boxed: bool = True) -> list[tuple[str, str, Verdict]]:
    """The (gold, output, verdict) of outputs that get another verdict than they may.

    An output is an answer that holds a box, or the answer as it stands and, where `also_boxed`, in a box.
    """
    failed = []
    for gold, answer, allowed in cases:
        outputs = [answer] if "boxed" in answer or not also_boxed else [answer, f"\\boxed{{{answer}}}"]
        verdicts = [(gold, output, grade(gold, output)) for output in outputs]
        failed += [each for each in verdicts if each[2].verdict not in allowed]
    return failed
