"""Checks the verdicts of cases. A case can allow several verdicts."""

from __future__ import annotations

from collections.abc import Iterable

from rstar2.eval.grader import Verdict, grade

CORRECT = frozenset({"correct"})
WRONG = frozenset({"wrong"})
UNPARSED = frozenset({"unparsed"})
NOT_CORRECT = frozenset({"wrong", "unparsed"})
Case = tuple[str, str, frozenset[str]]
"""(gold answer, answer, allowed verdicts)."""


def misjudged(cases: Iterable[Case], also_boxed: bool = True) -> list[tuple[str, str, Verdict]]:
    """Return (gold, output, verdict) for each output whose verdict is not allowed by its case.

    Args:
        also_boxed: Also grade an answer without a box a second time, in a box.
    """
    failed = []
    for gold, answer, allowed in cases:
        outputs = [answer] if "boxed" in answer or not also_boxed else [answer, f"\\boxed{{{answer}}}"]
        verdicts = [(gold, output, grade(gold, output)) for output in outputs]
        failed += [each for each in verdicts if each[2].verdict not in allowed]
    return failed
