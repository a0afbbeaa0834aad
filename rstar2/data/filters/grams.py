"""Drops rows that share words in a row with a benchmark: decontamination by n-grams (arXiv 2508.20722).

`literal` is the paper's rule. It also drops problems that share only a formula of contest language, such as 'm and n
are relatively prime positive integers'; `distinctive` leaves out the grams that two or more benchmark problems have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from rstar2.data.problem import Problem
from rstar2.data.rows import parsed, plain_of, texts_of, words_of

Gram = tuple[str, ...]
Hashes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_BITS = 20
"""Of a hash, its beginning."""
_SHIFT = np.uint64(64 - _BITS)
_FIRST_BYTES = np.array([2 ** (8 * count) - 1 for count in range(9)], dtype=np.uint64)
"""Leaves so many bytes of a little-endian number."""
_END = ord("\n")
"""Stands after each text; it is in no word."""


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
    listed = words_of(text)
    if len(listed) < words:
        return iter([tuple(listed)] if listed else [])
    return zip(*(listed[start:] for start in range(words)), strict=False)


@dataclass(frozen=True)
class GramFilter:
    """Drops rows of which a part shares a gram with a benchmark, and names the first that is shared."""

    words: int
    grams: Mapping[Gram, tuple[str, str]]
    columns: tuple[str, ...] = ("text",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        texts, rows = _parts(batch)
        done: set[int] = set()
        for at in self._suspects(texts):
            gram = next((gram for gram in grams_of(texts[at], self.words) if gram in self.grams), None)
            if gram is not None and (row := int(rows[at])) not in done:
                done.add(row)
                benchmark, problem = self.grams[gram]
                yield row, {"words": " ".join(gram), "benchmark": benchmark, "benchmark_id": problem}

    def _suspects(self, texts: list[str]) -> list[int]:
        """The places of all texts that share a gram, and of few others, found by the hashes of their grams."""
        heads = _heads(texts)
        ends = np.flatnonzero(heads == _END)
        hashes = _hashes(heads, self.words)
        known, begins = self._hashed
        at = np.flatnonzero(begins[hashes >> _SHIFT])
        at = at[np.searchsorted(known, hashes[at], "left") < np.searchsorted(known, hashes[at], "right")]
        short = np.flatnonzero(np.isin(np.diff(ends, prepend=-1) - 1, self._short))
        found: list[int] = np.union1d(np.searchsorted(ends, at), short).tolist()
        return found

    @cached_property
    def _short(self) -> list[int]:
        """How many words the benchmark problems of less than a gram have."""
        return list({len(gram) for gram in self.grams if len(gram) < self.words})

    @cached_property
    def _hashed(self) -> tuple[Hashes, npt.NDArray[np.bool_]]:
        """The hashes of the grams, sorted, and for each beginning of a hash whether one of them has it."""
        whole = [" ".join(gram) for gram in self.grams if len(gram) == self.words]
        hashes = _hashes(_heads(whole), self.words)[:: self.words + 1]
        begins = np.zeros(2**_BITS, dtype=np.bool_)
        begins[hashes >> _SHIFT] = True
        return np.sort(hashes), begins


def _parts(batch: Any) -> tuple[list[str], Places]:
    """The texts of a batch, and the row of each: a problem; or each message, and each text in a call's arguments."""
    if "problem" in batch.schema.names:
        problems = texts_of(batch)
        return problems, np.arange(len(problems))
    messages = batch.column("messages")
    said = pc.list_flatten(messages)
    texts: list[str] = said.field("content").fill_null("").to_pylist()
    row_of_message = pc.list_parent_indices(messages).to_numpy()
    calls = said.field("tool_calls")
    row_of_call = row_of_message[pc.list_parent_indices(calls).to_numpy()]
    arguments = pc.list_flatten(calls).field("function").field("arguments").to_pylist()
    given = [list(_texts_in(parsed(text))) for text in arguments]
    rows = np.concatenate([row_of_message, np.repeat(row_of_call, list(map(len, given)))])
    return [*texts, *chain(*given)], rows


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
    """A hash of each run of so many words, by its first."""
    count = max(0, len(heads) - words + 1)
    found = np.zeros(count, dtype=np.uint64)
    for at in range(words):
        found = (found ^ heads[at : at + count]) * _FACTOR
    return found
