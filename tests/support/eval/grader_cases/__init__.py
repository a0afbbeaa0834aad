"""Answer pairs by kind: (gold, answer, whether they are equal)."""

from __future__ import annotations

from collections.abc import Iterable

from support.eval.grader_cases import algebra, mixed, numbers

from rstar2.eval.grader import Verdict, grade

KINDS = {
    "numbers": numbers.NUMBERS,
    "mixed_numbers": numbers.MIXED_NUMBERS,
    "expressions": algebra.EXPRESSIONS,
    "equations": algebra.EQUATIONS,
    "intervals": algebra.INTERVALS,
    "kinks": algebra.KINKS,
    "lists_and_sets": algebra.LISTS_AND_SETS,
    "matrices": algebra.MATRICES,
    "units_and_percentages": numbers.UNITS_AND_PERCENTAGES,
    "bases": numbers.BASES,
    "ratios_and_times": numbers.RATIOS_AND_TIMES,
    "text": mixed.TEXT,
    "residues": numbers.RESIDUES,
    "series": algebra.SERIES,
    "further": mixed.FURTHER,
    "also": mixed.ALSO,
    "choices": mixed.CHOICES,
}


def misgraded(cases: Iterable[tuple[str, str, bool]], output: str = "{}") -> list[tuple[str, str, Verdict]]:
    """The (gold, answer, equal) cases whose answer, put into `output`, does not get the verdict it should."""
    verdicts = [
        (gold, answer, equal, grade(gold, output.replace("{}", answer))) for gold, answer, equal in cases
    ]
    return [(gold, answer, verdict) for gold, answer, equal, verdict in verdicts if verdict.correct != equal]
