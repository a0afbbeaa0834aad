"""Whether what SFT teaches agrees with the system text that it shows, and with what RL rewards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from rstar2.data.taught import FormCounts, count_form
from rstar2.loop.turns import tags
from rstar2.loop.turns.demands import Demands, Wording


class FormCheck:
    """Counts the turns of conversations that keep the form that they are asked for."""

    def __init__(self, wording: Wording) -> None:
        self._wording = wording
        self.counts = FormCounts()
        self._first: int | None = None
        """The number of the first conversation with a turn that does not keep the form, from 1."""

    def over(self, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The rows themselves, counted on their way."""
        for number, row in enumerate(rows, 1):
            counts = count_form(row, self._wording)
            self.counts += counts
            if counts.compliant_turns < counts.demanded_turns and self._first is None:
                self._first = number
            yield row

    def warnings(self) -> Iterator[str]:
        """What SFT would teach against the system text or the reward, and what to do about it."""
        counts = self.counts
        if ignoring := counts.demanded_turns - counts.compliant_turns:
            yield (
                f"{ignoring:,} of {counts.demanded_turns:,} turns do not keep the form that their own system text or "
                f"question asks for, the first in conversation {self._first}: the model would learn to ignore that "
                "text. Take the text out of these conversations, or write their turns as it asks."
            )
        rewarded = self._wording.rewarded
        if rewarded and not counts.rewarded_endings:
            yield (
                f"none of the {counts.conversations:,} conversations ends in the form that RL rewards, "
                f"{_described(rewarded)}: the model would have to find it in RL. Prepare the data with a share of "
                "conversations in this form (rstar2 data prepare … --set answer_form=0.5), or add some of your own."
            )


def _described(demands: Demands) -> str:
    """The form of a final turn that is asked for."""
    box = "\\boxed{}" if demands.box else ""
    return f"{box} inside {tags.ANSWER}" if box and demands.answer else box or tags.ANSWER
