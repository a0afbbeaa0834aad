"""Chooses the problems that are fit for training with a binary reward and far from the benchmarks.

As the paper does it (arXiv 2508.20722): integer answers alone, nothing unverifiable or huge, and no problem
that shares eight words in a row with a benchmark.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from rstar2.data.problem import Problem

GRAM = 8
"""Words in a row that two problems may not share."""
_INTEGER = re.compile(r"[+-]?(?:[0-9]+|[0-9]{1,3}(?:,[0-9]{3})+)")
_WORD = re.compile(r"\w+")


def integer_answer(text: str, max_digits: int) -> str | None:
    """The answer as a plain integer; None where it is none, or has more digits than that."""
    bare = text.strip().strip("$").strip()
    if not _INTEGER.fullmatch(bare):
        return None
    digits = bare.lstrip("+-").replace(",", "").lstrip("0") or "0"
    if len(digits) > max_digits:
        return None
    return f"-{digits}" if bare.startswith("-") and digits != "0" else digits


def filter_problems(
    problems: Iterable[Problem], measured: Iterable[Problem], max_digits: int
) -> tuple[list[Problem], Counter[str]]:
    """Keep what is fit for training, in the same order, with no more than `max_digits` digits in an answer.

    Returns the kept, their answers as plain integers; and how many were dropped for which reason: empty, not an
    integer, huge, contradicted (the same text with different answers), double, contaminated (by the `measured`).
    """
    rows = list(problems)
    contradicted = _contradicted(rows)
    is_contaminated = Contamination(measured)
    seen: set[str] = set()
    kept: list[Problem] = []
    dropped: Counter[str] = Counter()
    for problem in rows:
        text = words_only(problem.problem)
        answer = integer_answer(problem.answer, max_digits)
        if not text:
            dropped["empty"] += 1
        elif answer is None:
            huge = integer_answer(problem.answer, len(problem.answer)) is not None
            dropped["huge" if huge else "not an integer"] += 1
        elif text in contradicted:
            dropped["contradicted"] += 1
        elif text in seen:
            dropped["double"] += 1
        elif is_contaminated(problem.problem):
            dropped["contaminated"] += 1
        else:
            seen.add(text)
            kept.append(replace(problem, answer=answer))
    return kept, dropped


class Contamination:
    """Whether a text shares `GRAM` words in a row, or all the words of one with fewer, with a measured problem."""

    def __init__(self, measured: Iterable[Problem]) -> None:
        self._grams = {gram for problem in measured for gram in _grams(problem.problem)}

    def __call__(self, text: str) -> bool:
        return not self._grams.isdisjoint(_grams(text))


def words_only(text: str) -> str:
    """A text by its words alone, lower-case: problems with the same are repetitions."""
    return " ".join(_words(text))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _grams(text: str) -> set[tuple[str, ...]]:
    words = _words(text)
    if len(words) < GRAM:
        return {tuple(words)} - {()}
    return {tuple(words[start : start + GRAM]) for start in range(len(words) - GRAM + 1)}


def _contradicted(problems: list[Problem]) -> set[str]:
    """Texts that come with more than one answer."""
    answers: dict[str, set[str]] = {}
    for problem in problems:
        answer = integer_answer(problem.answer, len(problem.answer)) or problem.answer.strip()
        answers.setdefault(words_only(problem.problem), set()).add(answer)
    return {text for text, given in answers.items() if len(given) > 1}
