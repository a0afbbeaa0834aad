"""Chooses the conversations that SFT teaches in the answer form (the form that RL rewards), and counts them per
source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from rstar2.data.answer_form import questions
from rstar2.data.candidates import Candidates, Group
from rstar2.data.rows import key_of
from rstar2.data.taught import ANSWER_FORM, FormCounts, count_form
from rstar2.data.workers import mapped
from rstar2.loop.formats.format import default_format
from rstar2.loop.turns.demands import FormatTexts, format_texts


@dataclass(frozen=True)
class _Marked:
    """Which rows of a record batch are marked for the answer form. All rows of the batch are of one source."""

    source: str
    marks: list[bool]
    suitable: int
    counts: FormCounts


@dataclass(frozen=True)
class _Marking:
    """Marks rows of a record batch for the answer form, in the process that reads the batch."""

    shares: Mapping[str, float]
    seed: int
    texts: FormatTexts

    def __call__(self, group: Group) -> _Marked:
        _, batch = group.read(["id", "messages", "tools", "source", "tokens"])
        rows = batch.to_pylist()
        source, suitable, marks, counts = rows[0]["source"], 0, list[bool](), FormCounts()
        for row in rows:
            suits = questions(row["messages"]) is not None
            suitable += suits
            marks.append(suits and self._draw(row["id"]) < self.shares[source])
            counts += count_form({**row, ANSWER_FORM: marks[-1]}, self.texts)
        return _Marked(source, marks, suitable, counts)

    def _draw(self, name: str) -> float:
        """Returns a pseudo-random number from 0 to 1, which depends only on the row's id and the seed."""
        return key_of(f"{self.seed} {name}") / 2**64


class AnswerForm:
    """Marks conversations for the answer form, which is the form that RL rewards.

    A share of the suitable conversations is marked. The same seed marks the same conversations. The turns are counted
    in the format `rstar2`, before a model rewrites texts.

    Args:
        shares: dict from each source to the share of its conversations to mark, from 0 to 1.
        seed: the seed of the random choice.
    """

    def __init__(self, shares: Mapping[str, float], seed: int) -> None:
        self._shares = shares
        self._seed = seed
        self._suitable = dict.fromkeys(shares, 0)
        self._marked = dict.fromkeys(shares, 0)
        self._counts = dict.fromkeys(shares, FormCounts())

    def marks(self, rows: Candidates) -> Iterator[Any]:
        """Yields the column of marks of each record batch. Batches in which all rows are dropped are skipped."""
        for marked in mapped(
            _Marking(self._shares, self._seed, format_texts(default_format())), rows.groups()
        ):
            self._suitable[marked.source] += marked.suitable
            self._marked[marked.source] += sum(marked.marks)
            self._counts[marked.source] += marked.counts
            yield pa.array(marked.marks, pa.bool_())

    def card(self, source: str) -> dict[str, int | float]:
        """Returns the entry of a source for the card.

        The entry contains the `share`, the numbers of `suitable` and `marked` conversations, and the counts of
        `FormCounts`.
        """
        return {
            "share": self._shares[source],
            "suitable": self._suitable[source],
            "marked": self._marked[source],
            **asdict(self._counts[source]),
        }
