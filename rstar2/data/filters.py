"""Chooses the problems that are fit for training with a binary reward and far from the benchmarks.

As the paper does it (arXiv 2508.20722): integer answers alone, nothing unverifiable or huge, and no problem
that shares eight words in a row with a benchmark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Shared:
    """Words that a text shares with a measured problem."""

    words: str
    benchmark: str
    benchmark_id: str
    """The measured problem's."""


@dataclass(frozen=True)
class Dropped:
    """A problem that is not trained on."""

    problem: Problem
    reason: str
    """empty, not an integer, huge, contradicted (the same text with different answers), double or contaminated."""
    shared: Shared | None = None
    """Where it is contaminated: by what."""


def filter_problems(
    problems: Iterable[Problem], measured: Mapping[str, Iterable[Problem]], max_digits: int
) -> tuple[list[Problem], list[Dropped]]:
    """Keep what is fit for training, with no more than `max_digits` digits in an answer; `measured` are benchmarks.

    Returns the kept, their answers as plain integers, and the others, both in the same order.
    """
    rows = list(problems)
    contradicted = _contradicted(rows)
    contamination = Contamination(measured)
    seen: set[str] = set()
    kept: list[Problem] = []
    dropped: list[Dropped] = []
    for problem in rows:
        text = words_only(problem.problem)
        answer = integer_answer(problem.answer, max_digits)
        if not text:
            dropped.append(Dropped(problem, "empty"))
        elif answer is None:
            huge = integer_answer(problem.answer, len(problem.answer)) is not None
            dropped.append(Dropped(problem, "huge" if huge else "not an integer"))
        elif text in contradicted:
            dropped.append(Dropped(problem, "contradicted"))
        elif text in seen:
            dropped.append(Dropped(problem, "double"))
        elif shared := contamination.of(problem.problem):
            dropped.append(Dropped(problem, "contaminated", shared))
        else:
            seen.add(text)
            kept.append(replace(problem, answer=answer))
    return kept, dropped


class Contamination:
    """Finds the texts that share `GRAM` words in a row, or all the words of one with fewer, with a measured problem."""

    def __init__(self, measured: Mapping[str, Iterable[Problem]]) -> None:
        self._grams = {
            gram: (name, problem.id)
            for name, problems in measured.items()
            for problem in problems
            for gram in _grams(problem.problem)
        }

    def of(self, text: str) -> Shared | None:
        """The first words that a text shares, and with which problem; None where it shares none."""
        found = next((gram for gram in _grams(text) if gram in self._grams), None)
        return Shared(" ".join(found), *self._grams[found]) if found else None


def words_only(text: str) -> str:
    """A text by its words alone, lower-case: problems with the same are repetitions."""
    return " ".join(_words(text))


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _grams(text: str) -> list[tuple[str, ...]]:
    words = _words(text)
    if len(words) < GRAM:
        return [tuple(words)] if words else []
    return [tuple(words[start : start + GRAM]) for start in range(len(words) - GRAM + 1)]


def _contradicted(problems: list[Problem]) -> set[str]:
    """Texts that come with more than one answer."""
    answers: dict[str, set[str]] = {}
    for problem in problems:
        answer = integer_answer(problem.answer, len(problem.answer)) or problem.answer.strip()
        answers.setdefault(words_only(problem.problem), set()).add(answer)
    return {text for text, given in answers.items() if len(given) > 1}
