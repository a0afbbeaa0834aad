"""Drops rows whose text is nearly that of an earlier one: MinHash finds the pairs, their shingles decide.

Two texts are near duplicates where the Jaccard similarity of their three-word shingles is high *and* they have the same
numbers in the same order and, for problems, the same operators and the same answer: 'the remainder of 2^10 by 7' is
another problem than 'the remainder of 2^11 by 7'. Signatures are rensa's (R-MinHash); rows that share one of `BANDS`
bands of a signature are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rensa import RMinHash

from rstar2.data.candidates import Candidates, Drop, Group, Keys, Numbers
from rstar2.data.rows import key_of, words_of
from rstar2.data.workers import mapped

BANDS = 21
ROWS = 6
"""Of a band: at a similarity of 0.8 a pair shares no band with probability (1 - 0.8^6)^21 = 0.2 %."""
SHINGLE = 3
_SEED = 1
_NUMBER = re.compile(r"\d+")
_DIGITS = bytes(code if chr(code) in "0123456789" else ord(" ") for code in range(256))
"""ASCII with a space for what is no digit."""
_OPERATOR = re.compile(
    # The first character is from one set, which is searched for quickly.
    r"[-+*/^<>=|!\\×·⋅÷−≤≥≠±](?:(?<=[<>])=|(?<=\\)(?:cdot|times|div|pm|[lgn]eq?|[lg]t)(?![A-Za-z])|(?<![-!\\])"
    # No hyphens, and no exclamation marks of sentences.
    r"|(?<=-)(?:(?<![^\W\d]{2}-)|(?![^\W\d]{2}))|(?<=!)(?<![^\W\d]{2}!))"
)
_OTHERWISE = {
    **dict.fromkeys(("\\cdot", "\\times", "×", "·", "⋅"), "*"),
    **dict.fromkeys(("\\le", "\\leq", "≤"), "<="),
    **dict.fromkeys(("\\ge", "\\geq", "≥"), ">="),
    **dict.fromkeys(("\\ne", "\\neq"), "≠"),
    **dict.fromkeys(("\\div", "÷"), "/"),
    **{"\\lt": "<", "\\gt": ">", "\\pm": "±", "−": "-"},
}
"""How operators are written otherwise."""

Shingles = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class _Sketch:
    """The bands of the rows of a group, in the process that reads it."""

    columns: tuple[str, ...]

    def __call__(self, group: Group) -> tuple[Numbers, Keys]:
        """Row numbers, and for each row BANDS keys."""
        numbers, batch = group.read(self.columns)
        texts = _said(batch)
        signatures = np.array(
            RMinHash.digests_from_token_sets([_shingled(text) for text in texts], BANDS * ROWS, _SEED),
            dtype=np.uint64,
        ).reshape(len(texts), BANDS, ROWS)
        must = np.array(
            [key_of(" ".join(must_be_equal(*row))) for row in zip(texts, _answers(batch), strict=True)],
            dtype=np.uint64,
        )
        bands = np.broadcast_to(must[:, None], (len(texts), BANDS)).copy()
        for at in range(ROWS):
            bands = (bands ^ signatures[:, :, at]) * np.uint64(0x9E3779B97F4A7C15)
            bands ^= bands >> np.uint64(29)
        return numbers, bands


def _said(batch: Any) -> list[str]:
    """A problem; or all that is said in a conversation, calls included."""
    if "problem" in batch.schema.names:
        problems: list[str] = batch.column("problem").to_pylist()
        return problems
    return ["\n".join(map(_message_text, messages)) for messages in batch.column("messages").to_pylist()]


def _message_text(message: dict[str, Any]) -> str:
    functions = [each["function"] for each in message["tool_calls"] or ()]
    return " ".join(
        [message["content"] or "", *(f"{each['name']} {each['arguments']}" for each in functions)]
    )


def _answers(batch: Any) -> list[str]:
    return batch.column("answer").to_pylist() if "answer" in batch.schema.names else [""] * batch.num_rows


def must_be_equal(text: str, answer: str) -> list[str]:
    """What near duplicates have in common in any case: the numbers; of problems, the answer and the operators too."""
    # The same, several times as fast.
    numbers = text.encode().translate(_DIGITS).decode().split() if text.isascii() else _NUMBER.findall(text)
    # Conversations, which have no answer, hold operators as marks of lists and tables.
    operators = _OPERATOR.findall(text) if answer else ()
    return [answer, *numbers, *(_OTHERWISE.get(each, each) for each in operators)]


def _shingled(text: str) -> list[str]:
    words = words_of(text)
    if len(words) < SHINGLE:
        # Texts without words, such as of emoji, are not all the same.
        return [" ".join(words) or text]
    return list(map(" ".join, zip(*(words[at:] for at in range(SHINGLE)), strict=False)))


def near_duplicates(rows: Candidates, similarity: float, scratch: Path) -> Iterator[Drop]:
    """All rows that are near duplicates of an earlier one that is kept; `scratch` is a file for the bands."""
    live = rows.live_numbers()
    if not len(live):
        return
    columns = ("problem", "answer") if rows.kind == "problems" else ("messages",)
    bands = np.lib.format.open_memmap(scratch, mode="w+", dtype=np.uint64, shape=(BANDS, len(live)))
    for numbers, found in mapped(_Sketch(columns), rows.groups()):
        start = int(np.searchsorted(live, numbers[0]))
        bands[:, start : start + len(numbers)] = found.T
    pairs = _pairs(bands)
    del bands
    scratch.unlink()
    yield from _verified(rows, live, pairs, similarity, columns)


def _pairs(bands: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Places of rows that share a band, as (earlier, later), each pair once, by the later: (P, 2).

    In a band, a row is paired with the first that has the same key and with the one just before it.
    """
    found = [np.empty((0, 2), dtype=np.int64)]
    for band in bands:
        order = np.argsort(band, kind="stable")
        same = np.flatnonzero(band[order][1:] == band[order][:-1]) + 1
        starts = np.ones(len(order), dtype=np.bool_)
        starts[same] = False
        first = np.maximum.accumulate(np.where(starts, np.arange(len(order)), 0))
        found.append(np.stack([order[first[same]], order[same]], axis=1))
        found.append(np.stack([order[same - 1], order[same]], axis=1))
        found = [np.unique(np.concatenate(found), axis=0)]
    pairs = found[0]
    return pairs[np.lexsort((pairs[:, 0], pairs[:, 1]))]


def _verified(
    rows: Candidates,
    live: Numbers,
    pairs: npt.NDArray[np.int64],
    similarity: float,
    columns: tuple[str, ...],
) -> Iterator[Drop]:
    wanted = live[np.unique(pairs)]
    ids = rows.values("id", wanted)
    shingles: dict[int, Shingles] = {}
    equal: dict[int, int] = {}
    for numbers, table in rows.batches(columns, wanted):
        (batch,) = table.combine_chunks().to_batches()
        for number, text, answer in zip(numbers.tolist(), _said(batch), _answers(batch), strict=True):
            hashed = [key_of(shingle) for shingle in _shingled(text)]
            shingles[number] = np.unique(np.array(hashed, dtype=np.uint64))
            equal[number] = key_of(" ".join(must_be_equal(text, answer)))
    kept_as: dict[int, int] = {}
    for earlier, later in live[pairs].tolist():
        original = kept_as.get(earlier, earlier)
        if later in kept_as or equal[original] != equal[later]:
            continue
        value = _jaccard(shingles[original], shingles[later])
        if value >= similarity:
            kept_as[later] = original
    for later, original in sorted(kept_as.items()):
        value = _jaccard(shingles[original], shingles[later])
        yield later, {"near": ids[original], "similarity": round(value, 3)}


def _jaccard(one: Shingles, other: Shingles) -> float:
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)
