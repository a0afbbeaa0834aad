"""Chooses the conversations that SFT teaches in the form that RL rewards, and counts what becomes of each source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import pyarrow as pa

from rstar2.data.answer_form import questions
from rstar2.data.rows import key_of
from rstar2.data.taught import ANSWER_FORM, FormCounts, count_form
from rstar2.loop.formats.format import ours
from rstar2.loop.turns.demands import wording_of


class AnswerForm:
    """Marks a share of the conversations that can be taught so, the same ones each time.

    Args:
        shares: by source, from 0 to 1.
    """

    def __init__(self, shares: Mapping[str, float], seed: int) -> None:
        self._shares = shares
        self._seed = seed
        self._wording = wording_of(ours())
        self._counts = {name: FormCounts() for name in shares}
        self._marked = dict.fromkeys(shares, 0)
        self._suitable = dict.fromkeys(shares, 0)

    def mark(self, source: str, table: Any) -> Any:
        """A table of conversations of one source with the column that says which are taught so."""
        marks = []
        columns = table.select(["id", "messages", "tools"]).to_pylist()
        for row in columns:
            suitable = questions(row["messages"]) is not None
            self._suitable[source] += suitable
            marks.append(suitable and self._draw(row["id"]) < self._shares[source])
            self._counts[source] += count_form({**row, ANSWER_FORM: marks[-1]}, self._wording)
        self._marked[source] += sum(marks)
        place = table.schema.get_field_index(ANSWER_FORM)
        return table.set_column(place, ANSWER_FORM, pa.array(marks, pa.bool_()))

    def _draw(self, name: str) -> float:
        """A number from 0 to 1 that the row's id and the seed decide."""
        return key_of(f"{self._seed} {name}") / 2**64

    def card(self, source: str) -> dict[str, int | float]:
        """What the card says of a source: the share, `suitable` and `marked` conversations, and their turns."""
        return {
            "share": self._shares[source],
            "suitable": self._suitable[source],
            "marked": self._marked[source],
            **asdict(self._counts[source]),
        }
