"""Drops near duplicates of earlier rows. MinHash finds candidate pairs, and the shingles of a pair decide whether the
later row is dropped.

Two normalised texts are near duplicates if the Jaccard similarity of their shingles is high *and* they have the same
numbers in the same order. Problems must also have the same operators, and answers that the grader finds equal.
Therefore 'the remainder of 2^10 by 7' and 'the remainder of 2^11 by 7' are different problems.

By default, a shingle is three consecutive words. One changed word changes three shingles of three words, and three
shingles are a large share of a short problem. Therefore the filter drops more short problems if a shingle is one word.
Signatures come from rensa (R-MinHash). Two rows are compared if at least one of the `BANDS` bands of their signatures
is the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from rstar2.data.candidates import Candidates, Drop, Group, Keys, Numbers
from rstar2.data.filters.settings import Near
from rstar2.data.normalize import normalized, normalized_problem, words_of
from rstar2.data.rows import key_of
from rstar2.data.workers import mapped
from rstar2.eval.grader.grading import same_answer

BANDS = 21
MAX_ROWS = 6
MAX_MISSED = 0.005
"""Maximum probability that a pair with exactly the required similarity shares no band.

At a similarity of 0.8 the probability is (1 - 0.8^6)^21 = 0.2 %.
"""
MAX_ORIGINALS = 8
"""A later row is compared with at most this many earlier rows that have similar texts and unequal answers."""
_SEED = 1
_NUMBER = re.compile(r"\d+")
_DIGITS = bytes(code if chr(code) in "0123456789" else ord(" ") for code in range(256))
"""Translation table for ASCII that replaces each character except digits by a space."""
_OPERATOR = re.compile(
    # The pattern begins with one character class, because that search is fast. Hyphens in words and exclamation marks
    # of sentences do not match.
    r"[-+*/^<>=|!](?:(?<![-!])|(?<=-)(?:(?<![^\W\d]{2}-)|(?![^\W\d]{2}))|(?<=!)(?<![^\W\d]{2}!))"
)

Shingles = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Sketch:
    """Computes the bands of the rows of a record batch, in the process that reads the batch."""

    columns: tuple[str, ...]
    words: int
    """The number of words in a shingle."""
    rows: int
    """The number of hashes of a signature in a band."""

    def __call__(self, group: Group) -> tuple[Numbers, Keys]:
        """Returns the row numbers, shape (N,), and the keys of the bands, shape (N, BANDS)."""
        numbers, batch = group.read(self.columns)
        texts = _normalized_texts(batch)
        signatures = np.array(
            RMinHash.digests_from_token_sets(
                [_shingled(text, self.words) for text in texts], BANDS * self.rows, _SEED
            ),
            dtype=np.uint64,
        ).reshape(len(texts), BANDS, self.rows)
        equal = np.array(list(map(_equal_key, texts, repeat(_has_problems(batch)))), dtype=np.uint64)
        bands = np.broadcast_to(equal[:, None], (len(texts), BANDS)).copy()
        for at in range(self.rows):
            bands = (bands ^ signatures[:, :, at]) * np.uint64(0x9E3779B97F4A7C15)
            bands ^= bands >> np.uint64(29)
        return numbers, bands


def _normalized_texts(batch: Any) -> list[str]:
    """Returns the normalised text of each row: the problem, or the whole conversation with its calls."""
    if _has_problems(batch):
        return [normalized_problem(text) for text in batch.column("problem").to_pylist()]
    conversations = batch.column("messages").to_pylist()
    return [normalized("\n".join(map(_message_text, messages))) for messages in conversations]


def _message_text(message: dict[str, Any]) -> str:
    functions = [each["function"] for each in message["tool_calls"] or ()]
    return " ".join(
        [message["content"] or "", *(f"{each['name']} {each['arguments']}" for each in functions)]
    )


def _has_problems(batch: Any) -> bool:
    return "problem" in batch.schema.names


def _answers(batch: Any) -> list[str]:
    """Returns the answers of problems, or empty strings for conversations."""
    answers: list[str] = batch.column("answer").to_pylist() if _has_problems(batch) else [""] * batch.num_rows
    return answers


def must_be_equal(text: str, is_problem: bool) -> list[str]:
    """Returns the numbers in a text, and for a problem also the operators. Near duplicates must have the same ones."""
    # For ASCII, the translation has the same result as the pattern, and is several times as fast.
    numbers = text.encode().translate(_DIGITS).decode().split() if text.isascii() else _NUMBER.findall(text)
    # Conversations use these characters for lists and tables.
    operators = _OPERATOR.findall(text) if is_problem else ()
    return [*numbers, *operators]


def _equal_key(text: str, is_problem: bool) -> int:
    return key_of(" ".join(must_be_equal(text, is_problem)))


def _shingled(text: str, size: int) -> list[str]:
    words = words_of(text)
    if len(words) < size or not words:
        # Texts without words, such as those of emoji, must not all become equal.
        return [" ".join(words) or text]
    return list(map(" ".join, zip(*(words[at:] for at in range(size)), strict=False)))


def _rows_of_a_band(similarity: float) -> int:
    """Returns the number of hashes per band: the largest number up to `MAX_ROWS` with a low miss probability.

    The miss probability is the probability that a pair of this similarity shares no band. It is low if it is at most
    `MAX_MISSED`.
    """
    fitting = (rows for rows in range(MAX_ROWS, 1, -1) if (1 - similarity**rows) ** BANDS <= MAX_MISSED)
    return next(fitting, 1)


def near_duplicates(rows: Candidates, near: Near, scratch: Path) -> Iterator[Drop]:
    """Yields each row that is a near duplicate of an earlier row, if the earlier row is kept.

    `scratch` is the path of a temporary file.
    """
    live = rows.live_numbers()
    if not len(live):
        return
    columns = ("problem", "answer") if rows.kind == "problems" else ("messages",)
    sketch = _Sketch(columns, near.words, _rows_of_a_band(near.similarity))
    bands = np.lib.format.open_memmap(scratch, mode="w+", dtype=np.uint64, shape=(BANDS, len(live)))
    for numbers, keys in mapped(sketch, rows.groups()):
        start = int(np.searchsorted(live, numbers[0]))
        bands[:, start : start + len(numbers)] = keys.T
    pairs = _pairs(bands)
    del bands
    scratch.unlink()
    yield from _verified(rows, live, pairs, near, columns)


def _pairs(bands: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Returns the pairs (earlier, later) of indices of rows that share a band, shape (P, 2), sorted by the later row.

    In each band, a row is paired with two rows that have the same key: the first one and the previous one.
    """
    pairs = np.empty((0, 2), dtype=np.int64)
    for band in bands:
        order = np.argsort(band, kind="stable")
        same = np.flatnonzero(band[order][1:] == band[order][:-1]) + 1
        starts = np.ones(len(order), dtype=np.bool_)
        starts[same] = False
        first = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
        of_band = [np.stack([order[earlier], order[same]], axis=1) for earlier in (first[same], same - 1)]
        pairs = np.unique(np.concatenate([pairs, *of_band]), axis=0)
    return pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))]


@dataclass(frozen=True)
class _Row:
    """A row of a candidate pair, with the values that the comparison needs."""

    shingles: Shingles
    equal: int
    """Hash of the numbers and operators that near duplicates must have in common."""
    answer: str

    def similarity(self, other: _Row) -> float:
        """Returns the Jaccard similarity of the texts, or 0 if the numbers or operators of the rows differ."""
        if self.equal != other.equal:
            return 0.0
        common = len(np.intersect1d(self.shingles, other.shingles, assume_unique=True))
        return common / (len(self.shingles) + len(other.shingles) - common)


def _verified(
    rows: Candidates,
    live: Numbers,
    pairs: npt.NDArray[np.int64],
    near: Near,
    columns: tuple[str, ...],
) -> Iterator[Drop]:
    paired = live[np.unique(pairs)]
    ids = rows.values("id", paired)
    compared: dict[int, _Row] = {}
    for numbers, table in rows.batches(columns, paired):
        (batch,) = table.combine_chunks().to_batches()
        is_problem = _has_problems(batch)
        rows_of_batch = zip(numbers.tolist(), _normalized_texts(batch), _answers(batch), strict=True)
        for number, text, answer in rows_of_batch:
            hashes = [key_of(shingle) for shingle in _shingled(text, near.words)]
            shingles = np.unique(np.array(hashes, dtype=np.uint64))
            compared[number] = _Row(shingles, _equal_key(text, is_problem), answer)
    original_of: dict[int, tuple[int, float]] = {}
    leader_of: dict[int, int] = {}
    """Similar rows with unequal answers form a group. This dict maps each later row of a group to the group's first
    row."""
    led: dict[int, list[int]] = {}
    for earlier, later in live[pairs].tolist():
        if later in original_of:
            continue
        leader = leader_of.get(earlier, earlier)
        candidates = (original_of.get(each, (each,))[0] for each in (earlier, leader, *led.get(leader, ())))
        for original in dict.fromkeys(candidates):
            value = compared[original].similarity(compared[later])
            if value < near.similarity or original == later:
                continue
            if same_answer(compared[original].answer, compared[later].answer):
                original_of[later] = (original, value)
                break
            if later not in leader_of and len(led.setdefault(leader, [])) < MAX_ORIGINALS:
                leader_of[later] = leader
                led[leader].append(later)
    for later, (original, value) in sorted(original_of.items()):
        yield later, {"near": ids[original], "similarity": round(value, 3)}
