"""Checks that SFT conversations agree with their own system texts, and with the form that RL rewards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rstar2.data.taught import FormCounts, count_form
from rstar2.loop.turns import tags
from rstar2.loop.turns.demands import Demands, FormatTexts


@dataclass(frozen=True)
class FormCheck:
    """Counts how many turns have the form that their system text or question asks for, and how many do not."""

    counts: FormCounts = field(default_factory=FormCounts)
    first_fault: int | None = None
    """The 1-based number of the first conversation with a turn that does not have the requested form."""
    rewarded: Demands = field(default_factory=Demands)
    """The form of a final turn that RL rewards."""

    def __add__(self, other: FormCheck) -> FormCheck:
        faults = [each for each in (self.first_fault, other.first_fault) if each is not None]
        return FormCheck(
            self.counts + other.counts, min(faults, default=None), self.rewarded | other.rewarded
        )

    def as_json(self) -> dict[str, Any]:
        """Returns the check in the JSON form that `of_json` reads."""
        return asdict(self)

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> FormCheck:
        """Returns the check from the JSON that `as_json` returned."""
        return cls(FormCounts(**stored["counts"]), stored["first_fault"], Demands(**stored["rewarded"]))

    def warnings(self) -> Iterator[str]:
        """Yields a warning for each of these faults:

        - Turns do not have the form that their system text or question asks for.
        - SFT would leave out parts of conversations.
        - No conversation ends in the form that RL rewards.
        """
        counts = self.counts
        if ignoring := counts.demanded_turns - counts.compliant_turns:
            yield (
                f"{ignoring:,} of {counts.demanded_turns:,} turns {_verb(ignoring, 'do')} not keep the form that their "
                f"own system text or question asks for, the first in conversation {self.first_fault}: the model would "
                "learn to ignore such text. Remove the text from these conversations, or write the turns in the form "
                "that the text asks for."
            )
        if mixed := counts.mixed:
            yield (
                f"{mixed:,} of {counts.conversations:,} conversations {_verb(mixed, 'have')} some turns in the "
                "format's form and some turns in another form: SFT teaches these conversations without the format's "
                "system text. Write all turns in the format's form, or set answer_form to true in these rows."
            )
        if lost := counts.lost_thoughts:
            yield (
                f"{lost:,} of {counts.turns:,} turns {_verb(lost, 'have')} a thought that is left out, because the "
                "format has no place for thoughts. Teach a format that has thoughts (--set format=…)."
            )
        if unlearnt := counts.unlearnt_turns:
            yield (
                f"{unlearnt:,} of {unlearnt + counts.turns:,} turns {_verb(unlearnt, 'be')} not trained on: another "
                "question follows, and the format removes thoughts before a new question. To train on every turn, make "
                "a separate conversation that ends with each turn."
            )
        if self.rewarded and not counts.rewarded_endings:
            yield (
                f"none of the {counts.conversations:,} conversations ends in the form that RL rewards, "
                f"{_described(self.rewarded)}: the model would have to discover this form in RL. Prepare the data with "
                "a share of conversations in this form (rstar2 data prepare … --set answer_form=0.5), or add your own."
            )


def check_form(rows: Iterable[Mapping[str, Any]], texts: FormatTexts, first: int = 1) -> FormCheck:
    """Converts conversations to a format as SFT does, and checks the form of their turns.

    Args:
        texts: the texts of the format.
        first: the number of the first conversation.
    """
    total, fault = FormCounts(), None
    for number, row in enumerate(rows, first):
        counts = count_form(row, texts)
        total += counts
        if counts.compliant_turns < counts.demanded_turns and fault is None:
            fault = number
    return FormCheck(total, fault, texts.rewarded)


_SINGULAR = {"do": "does", "have": "has", "be": "is"}
_PLURAL = {"do": "do", "have": "have", "be": "are"}


def _verb(count: int, verb: str) -> str:
    return (_SINGULAR if count == 1 else _PLURAL)[verb]


def _described(demands: Demands) -> str:
    """Describes the form of a final turn in words."""
    box = "\\boxed{}" if demands.box else ""
    return f"{box} inside {tags.ANSWER}" if box and demands.answer else box or tags.ANSWER
