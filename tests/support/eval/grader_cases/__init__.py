"""Cases for the grader, by kind, as (gold answer, answer, whether they are equal)."""

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
    """Return the (gold, answer, equal) cases that get a wrong verdict when the answer is inserted into `output`."""
    verdicts = [
        (gold, answer, equal, grade(gold, output.replace("{}", answer))) for gold, answer, equal in cases
    ]
    return [(gold, answer, verdict) for gold, answer, equal, verdict in verdicts if verdict.correct != equal]
