"""Drops rows that share words with a benchmark (decontamination).

Texts are normalised first, so that markup does not hide copies. One of three rules decides which rows are dropped:

- `literal` is the paper's rule (arXiv 2508.20722): a row is dropped if it shares eight consecutive words with a
  benchmark problem. `literal` also drops problems that share only standard phrases of contests, such as 'm and n are
  relatively prime positive integers'.
- `distinctive` is the `literal` rule, but ignores runs of words that two or more benchmark problems share.
- `contained` drops a row that contains a large share of a benchmark problem's runs of three words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from rstar2.data.normalize import normalized, normalized_problem, plain_of, signs_of, words_of
from rstar2.data.problem import Problem
from rstar2.data.rows import parsed, texts_of

Gram = tuple[str, ...]
Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
SHINGLE = 3
"""Number of words in the runs that the rule `contained` counts."""
SHORT, LONGER = 8, 3
MAX_WORDS_CHARS = 200
_ROUNDING = 1e-9
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BITS = 20
"""Length in bits of the hash prefixes that index the table `_GramIndex._begins`."""
_SHIFT = np.uint64(64 - _BITS)
_FIRST_BYTES = np.array([2 ** (8 * count) - 1 for count in range(9)], dtype=np.uint64)
"""Bit masks. The mask with the index `count` keeps the first `count` bytes of a little-endian number."""
_END = ord("\n")
"""The separator that is put after each text. No word contains the separator."""


def benchmark_grams(
    measured: Mapping[str, Iterable[Problem]], words: int, distinctive: bool
) -> dict[Gram, tuple[str, str]]:
    """Returns a dict from each gram of the benchmarks to the first problem that contains it, as (benchmark, id). A gram
    is a run of `words` words.

    A problem with fewer than `words` words is a single gram. If `distinctive` is set, grams that two or more problems
    contain are left out. For `distinctive`, two problems that share at least half of their grams count as one problem.
    """
    place_of: dict[Gram, tuple[str, str]] = {}
    shared: set[Gram] = set()
    for name, problems in measured.items():
        for problem in problems:
            grams = set(grams_of(normalized_problem(problem.problem), words))
            known = grams & place_of.keys()
            common = Counter(place_of[gram] for gram in known)
            shared |= {gram for gram in known if 2 * common[place_of[gram]] < len(grams)}
            for gram in grams:
                place_of.setdefault(gram, (name, problem.id))
    return {gram: place for gram, place in place_of.items() if not (distinctive and gram in shared)}


def grams_of(text: str, words: int) -> Iterator[Gram]:
    """Returns every run of `words` words in a normalised text, or the whole text if it has fewer words."""
    listed = words_of(text)
    if len(listed) < words:
        return iter([tuple(listed)] if listed else [])
    return zip(*(listed[start:] for start in range(words)), strict=False)


@dataclass(frozen=True)
class Contained:
    """A benchmark problem, prepared for the rule `contained`."""

    benchmark: str
    id: str
    shingles: frozenset[Gram]
    words: int
    signs: str
    """The letters, digits and signs of the problem."""


def rarest_shingles(
    measured: Mapping[str, Iterable[Problem]], share: float
) -> dict[Gram, tuple[Contained, ...]]:
    """Returns a dict from rare shingles to the benchmark problems that contain them.

    A text may lack `missing` shingles of a problem and still contain the required share. Each problem is therefore
    listed under its `missing + 1` rarest shingles: a text that contains none of these shingles cannot contain the
    required share. The rarest shingles are used, because few texts contain rare shingles.
    """
    problems = [
        _contained(name, problem, normalized_problem(problem.problem))
        for name, listed in measured.items()
        for problem in listed
    ]
    frequency = Counter(chain.from_iterable(problem.shingles for problem in problems))
    listed_by: dict[Gram, list[Contained]] = {}
    for problem in problems:
        missing = len(problem.shingles) - ceil(share * len(problem.shingles) - _ROUNDING)
        by_rarity = sorted(problem.shingles, key=lambda gram: (frequency[gram], gram))
        for gram in by_rarity[: missing + 1]:
            listed_by.setdefault(gram, []).append(problem)
    return {gram: tuple(those) for gram, those in listed_by.items()}


def _contained(benchmark: str, problem: Problem, text: str) -> Contained:
    return Contained(
        benchmark, problem.id, frozenset(grams_of(text, SHINGLE)), len(words_of(text)), signs_of(text)
    )


@dataclass(frozen=True)
class ContainedFilter:
    """Drops a row if one of its texts contains at least the share `share` of a benchmark problem's shingles.

    For a problem with fewer than `SHORT` words there are two more conditions, because many unrelated texts contain the
    few shingles of such a problem. The text must contain the problem's letters, digits and signs without a gap. It
    must have at most `LONGER` times as many words as the problem.
    """

    share: float
    problems: Mapping[Gram, tuple[Contained, ...]]
    """The index that `rarest_shingles` returned."""
    columns: tuple[str, ...] = ("text",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        texts, rows = _parts(batch)
        dropped_rows: set[int] = set()
        for at in self._index.suspects(texts):
            row = int(rows[at])
            if row not in dropped_rows and (detail := self._largest_match(texts[at])):
                dropped_rows.add(row)
                yield row, detail

    def _largest_match(self, text: str) -> dict[str, Any] | None:
        """Finds the benchmark problem with the largest share of its shingles in the text, and returns details about it.

        Returns None if no benchmark problem meets the conditions of the filter.
        """
        listed = list(grams_of(text, SHINGLE))
        shingles, words, signs = set(listed), len(words_of(text)), signs_of(text)
        suspects = {
            (problem.benchmark, problem.id): problem
            for gram in shingles
            for problem in self.problems.get(gram, ())
        }
        best: tuple[float, Contained] | None = None
        for problem in suspects.values():
            value = len(shingles & problem.shingles) / len(problem.shingles)
            if value + _ROUNDING < self.share or (best is not None and value <= best[0]):
                continue
            if problem.words >= SHORT or (words <= LONGER * problem.words and problem.signs in signs):
                best = value, problem
        if best is None:
            return None
        value, problem = best
        return {
            "words": _longest_run(listed, problem.shingles),
            "share": round(value, 3),
            "benchmark": problem.benchmark,
            "benchmark_id": problem.id,
        }

    @cached_property
    def _index(self) -> _GramIndex:
        return _GramIndex(list(self.problems), SHINGLE)


def _longest_run(listed: list[Gram], shared: Set[Gram]) -> str:
    """Returns the longest run of a text's words in which every shingle is one of the `shared` shingles."""
    runs = [list(run) for inside, run in groupby(listed, shared.__contains__) if inside]
    longest = max(runs, key=len)
    return " ".join([*longest[0], *(gram[-1] for gram in longest[1:])])[:MAX_WORDS_CHARS]


@dataclass(frozen=True)
class GramFilter:
    """Drops a row if one of its texts shares a gram with a benchmark. The details name the first shared gram."""

    words: int
    grams: Mapping[Gram, tuple[str, str]]
    columns: tuple[str, ...] = ("text",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        texts, rows = _parts(batch)
        dropped_rows: set[int] = set()
        for at in self._index.suspects(texts):
            gram = next((gram for gram in grams_of(texts[at], self.words) if gram in self.grams), None)
            if gram is not None and (row := int(rows[at])) not in dropped_rows:
                dropped_rows.add(row)
                benchmark, problem = self.grams[gram]
                yield row, {"words": " ".join(gram), "benchmark": benchmark, "benchmark_id": problem}

    @cached_property
    def _index(self) -> _GramIndex:
        return _GramIndex(list(self.grams), self.words)


class _GramIndex:
    """Uses hashes of words to find the texts that may contain one of many grams."""

    def __init__(self, grams: list[Gram], words: int) -> None:
        self._words = words
        self._short = list({len(gram) for gram in grams if len(gram) < words})
        """The lengths, in words, of all grams that have fewer than `words` words. Each of these grams is a whole
        problem."""
        whole = [" ".join(gram) for gram in grams if len(gram) == words]
        hashes = _hashes(_heads(whole), words)[:: words + 1]
        self._begins = np.zeros(2**_BITS, dtype=np.bool_)
        """For each prefix: whether the hash of any gram begins with this prefix."""
        self._begins[hashes >> _SHIFT] = True
        self._known: Hashes = np.sort(hashes)

    def suspects(self, texts: list[str]) -> list[int]:
        """Returns the indices of all texts that contain a gram, and of a few other texts whose hashes collide with the
        hash of a gram."""
        heads = _heads(texts)
        ends = np.flatnonzero(heads == _END)
        hashes = _hashes(heads, self._words)
        at = np.flatnonzero(self._begins[hashes >> _SHIFT])
        at = at[
            np.searchsorted(self._known, hashes[at], "left")
            < np.searchsorted(self._known, hashes[at], "right")
        ]
        short = np.flatnonzero(np.isin(np.diff(ends, prepend=-1) - 1, self._short))
        places: list[int] = np.union1d(np.searchsorted(ends, at), short).tolist()
        return places


def _parts(batch: Any) -> tuple[list[str], Places]:
    """Returns the normalised texts of a batch, and the row index of each text.

    The texts are the problems, or all messages and all strings in the arguments of calls.
    """
    if "problem" in batch.schema.names:
        problems = texts_of(batch)
        return list(map(normalized_problem, problems)), np.arange(len(problems))
    messages = batch.column("messages")
    flat = pc.list_flatten(messages)
    texts: list[str] = flat.field("content").fill_null("").to_pylist()
    row_of_message = pc.list_parent_indices(messages).to_numpy()
    calls = flat.field("tool_calls")
    row_of_call = row_of_message[pc.list_parent_indices(calls).to_numpy()]
    arguments = pc.list_flatten(calls).field("function").field("arguments").to_pylist()
    texts_of_calls = [list(_texts_in(parsed(text))) for text in arguments]
    rows = np.concatenate([row_of_message, np.repeat(row_of_call, list(map(len, texts_of_calls)))])
    return list(map(normalized, chain(texts, *texts_of_calls))), rows


def _texts_in(value: Any) -> Iterator[str]:
    """Yields every string in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(each)


def _heads(texts: Iterable[str]) -> Hashes:
    """Returns the first eight bytes of each word of the texts, as numbers. `_END` follows each text."""
    plain = b"".join(b" %b \n" % plain_of(text) for text in texts) + b" " * 8
    space = np.frombuffer(plain, dtype=np.uint8) == ord(" ")
    edges = np.flatnonzero(space[1:] != space[:-1])
    starts, lengths = edges[::2] + 1, edges[1::2] - edges[::2]
    eight: Hashes = np.ndarray(len(plain) - 7, dtype="<u8", buffer=plain, strides=(1,))
    heads: Hashes = eight[starts] & _FIRST_BYTES[np.minimum(lengths, 8)]
    return heads


def _hashes(heads: Hashes, words: int) -> Hashes:
    """Returns a hash of each run of `words` words, in the order of the runs' first words."""
    count = max(0, len(heads) - words + 1)
    hashes = np.zeros(count, dtype=np.uint64)
    for at in range(words):
        hashes = (hashes ^ heads[at : at + count]) * _FACTOR
    return hashes
