"""Drops rows that share words in a row with a benchmark: decontamination by n-grams (arXiv 2508.20722).

`literal` is the paper's rule. It also drops problems that share only a formula of contest language, such as 'm and n
are relatively prime positive integers'; `distinctive` leaves out the grams that two or more benchmark problems have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from rstar2.data.problem import Problem
from rstar2.data.rows import texts_of, words_of

Gram = tuple[str, ...]


def benchmark_grams(
    measured: Mapping[str, Iterable[Problem]], words: int, distinctive: bool
) -> dict[Gram, tuple[str, str]]:
    """Each gram of the benchmarks with the benchmark and the id of the first problem that has it.

    A problem of fewer words is one gram as a whole. With `distinctive`, a gram that another problem has too is left
    out; two problems that share half of their grams are one, set in another way.
    """
    found: dict[Gram, tuple[str, str]] = {}
    shared: set[Gram] = set()
    for name, problems in measured.items():
        for problem in problems:
            own = set(grams_of(problem.problem, words))
            known = own & found.keys()
            common = Counter(found[gram] for gram in known)
            shared |= {gram for gram in known if 2 * common[found[gram]] < len(own)}
            for gram in own:
                found.setdefault(gram, (name, problem.id))
    return {gram: place for gram, place in found.items() if not (distinctive and gram in shared)}


def grams_of(text: str, words: int) -> Iterator[Gram]:
    """Every run of so many words of a text, or all its words where they are fewer."""
    return _grams(words_of(text), words)


def _grams(listed: list[str], words: int) -> Iterator[Gram]:
    if len(listed) < words:
        return iter([tuple(listed)] if listed else [])
    return _runs(listed, words)


def _runs(listed: Sequence[str], words: int, step: int = 1) -> Iterator[Gram]:
    """The runs of so many words that begin at every `step`th word."""
    return zip(*(listed[start::step] for start in range(words)), strict=False)


@dataclass(frozen=True)
class GramFilter:
    """Drops texts that share a gram with a benchmark, and names the first that is shared."""

    words: int
    grams: Mapping[Gram, tuple[str, str]]
    columns: tuple[str, ...] = ("text",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        for at, text in enumerate(texts_of(batch)):
            listed = words_of(text)
            if len(listed) >= self.words and self._parts.isdisjoint(_runs(listed, self._part, self._step)):
                continue
            gram = next((gram for gram in _grams(listed, self.words) if gram in self.grams), None)
            if gram is not None:
                benchmark, problem = self.grams[gram]
                yield at, {"words": " ".join(gram), "benchmark": benchmark, "benchmark_id": problem}

    @property
    def _part(self) -> int:
        return (self.words + 1) // 2

    @property
    def _step(self) -> int:
        """Of the runs of `_part` words, a gram has one that begins at a multiple of this, wherever it begins itself."""
        return self.words - self._part + 1

    @cached_property
    def _parts(self) -> frozenset[Gram]:
        """The runs of `_part` words in the grams: few texts have one, and only those are searched for grams."""
        return frozenset(part for gram in self.grams for part in _runs(gram, self._part))
