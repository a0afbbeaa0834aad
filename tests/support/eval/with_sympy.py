"""Grades as a process with a deadline does: limits, integrals and long sums are worked out."""

from __future__ import annotations

from rstar2.eval.grader import Verdict, grade


def graded_with_sympy(gold: str, pred: str) -> Verdict:
    # Not above: each process of the tests, which imports all test files, would import sympy.
    from rstar2.eval.grader.values.symbolic import worked_out

    return grade(gold, pred, worked_out)
