"""Drops rows that share words with a benchmark: decontamination.

Texts are normalised first, so that markup hides no copy. There are three rules:

- `literal` is the paper's (arXiv 2508.20722): eight words in a row. It also drops problems that share only a formula of
  contest language, such as 'm and n are relatively prime positive integers'.
- `distinctive` leaves out the grams that two or more benchmark problems have.
- `contained` measures how much of a benchmark problem is in a text: the share of its runs of three words.
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
"""Words in a row whose runs the rule `contained` counts."""
SHORT, LONGER = 8, 3
MAX_WORDS_CHARS = 200
_ROUNDING = 1e-9
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BITS = 20
"""The number of leading bits of a hash that the table of beginnings is indexed by."""
_SHIFT = np.uint64(64 - _BITS)
_FIRST_BYTES = np.array([2 ** (8 * count) - 1 for count in range(9)], dtype=np.uint64)
"""Masks that keep the first `count` bytes of a little-endian number, by count."""
_END = ord("\n")
"""Stands after each text; it is in no word."""


def benchmark_grams(
    measured: Mapping[str, Iterable[Problem]], words: int, distinctive: bool
) -> dict[Gram, tuple[str, str]]:
    """Each gram of the benchmarks with the benchmark and the id of the first problem that has it.

    A problem of fewer words is one gram as a whole. With `distinctive`, a gram that another problem has too is left
    out; two problems that share half of their grams are one, set in another way.
    """
    place_of: dict[Gram, tuple[str, str]] = {}
    shared: set[Gram] = set()
    for name, problems in measured.items():
        for problem in problems:
            own = set(grams_of(normalized_problem(problem.problem), words))
            known = own & place_of.keys()
            common = Counter(place_of[gram] for gram in known)
            shared |= {gram for gram in known if 2 * common[place_of[gram]] < len(own)}
            for gram in own:
                place_of.setdefault(gram, (name, problem.id))
    return {gram: place for gram, place in place_of.items() if not (distinctive and gram in shared)}


def grams_of(text: str, words: int) -> Iterator[Gram]:
    """Every run of `words` words of a normalised text, or the whole text if it has fewer."""
    listed = words_of(text)
    if len(listed) < words:
        return iter([tuple(listed)] if listed else [])
    return zip(*(listed[start:] for start in range(words)), strict=False)


@dataclass(frozen=True)
class Contained:
    """A benchmark problem, as the rule `contained` looks for it."""

    benchmark: str
    id: str
    shingles: frozenset[Gram]
    words: int
    signs: str
    """Its letters, digits and signs."""


def rarest_shingles(
    measured: Mapping[str, Iterable[Problem]], share: float
) -> dict[Gram, tuple[Contained, ...]]:
    """The benchmark problems by a few of their shingles, one of which every text has that contains the share of them.

    A text that lacks all of a problem's `missing + 1` rarest shingles lacks too many. Shingles that few problems have
    are looked for, since few texts have them.
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
    """Drops rows of which a part contains at least this share of a benchmark problem's shingles, and names it.

    Of problems with fewer than `SHORT` words, the text must also have the signs and be no more than `LONGER` times as
    long: three words alone are in many texts.
    """

    share: float
    problems: Mapping[Gram, tuple[Contained, ...]]
    """From `rarest_shingles`."""
    columns: tuple[str, ...] = ("text",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        texts, rows = _parts(batch)
        done: set[int] = set()
        for at in self._index.suspects(texts):
            row = int(rows[at])
            if row not in done and (detail := self._largest(texts[at])):
                done.add(row)
                yield row, detail

    def _largest(self, text: str) -> dict[str, Any] | None:
        """What a text shares with the benchmark problem that it contains most of."""
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
    """The longest run of words whose shingles are all shared."""
    runs = [list(run) for inside, run in groupby(listed, shared.__contains__) if inside]
    longest = max(runs, key=len)
    return " ".join([*longest[0], *(gram[-1] for gram in longest[1:])])[:MAX_WORDS_CHARS]


@dataclass(frozen=True)
class GramFilter:
    """Drops rows of which a part shares a gram with a benchmark, and names the first that is shared."""

    words: int
    grams: Mapping[Gram, tuple[str, str]]
    columns: tuple[str, ...] = ("text",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        texts, rows = _parts(batch)
        done: set[int] = set()
        for at in self._index.suspects(texts):
            gram = next((gram for gram in grams_of(texts[at], self.words) if gram in self.grams), None)
            if gram is not None and (row := int(rows[at])) not in done:
                done.add(row)
                benchmark, problem = self.grams[gram]
                yield row, {"words": " ".join(gram), "benchmark": benchmark, "benchmark_id": problem}

    @cached_property
    def _index(self) -> _GramIndex:
        return _GramIndex(list(self.grams), self.words)


class _GramIndex:
    """Finds the texts that have one of many grams by the hashes of their words."""

    def __init__(self, grams: list[Gram], words: int) -> None:
        self._words = words
        self._short = list({len(gram) for gram in grams if len(gram) < words})
        """How many words the grams have that are whole problems."""
        whole = [" ".join(gram) for gram in grams if len(gram) == words]
        hashes = _hashes(_heads(whole), words)[:: words + 1]
        self._begins = np.zeros(2**_BITS, dtype=np.bool_)
        """For each beginning of a hash whether a gram has it."""
        self._begins[hashes >> _SHIFT] = True
        self._known: Hashes = np.sort(hashes)

    def suspects(self, texts: list[str]) -> list[int]:
        """The places of all texts that share a gram, and of few others."""
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
    """The normalised texts of a batch, and the row of each: a problem, or each message and each text in a call."""
    if "problem" in batch.schema.names:
        problems = texts_of(batch)
        return list(map(normalized_problem, problems)), np.arange(len(problems))
    messages = batch.column("messages")
    said = pc.list_flatten(messages)
    texts: list[str] = said.field("content").fill_null("").to_pylist()
    row_of_message = pc.list_parent_indices(messages).to_numpy()
    calls = said.field("tool_calls")
    row_of_call = row_of_message[pc.list_parent_indices(calls).to_numpy()]
    arguments = pc.list_flatten(calls).field("function").field("arguments").to_pylist()
    texts_of_calls = [list(_texts_in(parsed(text))) for text in arguments]
    rows = np.concatenate([row_of_message, np.repeat(row_of_call, list(map(len, texts_of_calls)))])
    return list(map(normalized, chain(texts, *texts_of_calls))), rows


def _texts_in(value: Any) -> Iterator[str]:
    """Every text in a value of JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts_in(each)


def _heads(texts: Iterable[str]) -> Hashes:
    """The first eight bytes of each word of the texts, as numbers; `_END` stands after each text."""
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
