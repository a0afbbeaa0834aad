"""Whether what SFT teaches agrees with the system text that it shows, and with what RL rewards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rstar2.data.taught import FormCounts, count_form
from rstar2.loop.turns import tags
from rstar2.loop.turns.demands import Demands, Wording


@dataclass(frozen=True)
class FormCheck:
    """How many turns of some conversations keep the form that they are asked for."""

    counts: FormCounts = field(default_factory=FormCounts)
    first_fault: int | None = None
    """The number of the first conversation with a turn that does not keep the form, from 1."""
    rewarded: Demands = field(default_factory=Demands)
    """What RL rewards in a final turn."""

    def __add__(self, other: FormCheck) -> FormCheck:
        faults = [each for each in (self.first_fault, other.first_fault) if each is not None]
        return FormCheck(
            self.counts + other.counts, min(faults, default=None), self.rewarded | other.rewarded
        )

    def as_json(self) -> dict[str, Any]:
        """The check as JSON, see `of_json`."""
        return asdict(self)

    @classmethod
    def of_json(cls, stored: Mapping[str, Any]) -> FormCheck:
        """The check that `as_json` wrote."""
        return cls(FormCounts(**stored["counts"]), stored["first_fault"], Demands(**stored["rewarded"]))

    def warnings(self) -> Iterator[str]:
        """What SFT would teach against the system text or the reward, and what to do about it."""
        counts = self.counts
        if ignoring := counts.demanded_turns - counts.compliant_turns:
            yield (
                f"{ignoring:,} of {counts.demanded_turns:,} turns {_verb(ignoring, 'do')} not keep the form that their "
                f"own system text or question asks for, the first in conversation {self.first_fault}: the model would "
                "learn to ignore that text. Take the text out of these conversations, or write their turns as it asks."
            )
        if mixed := counts.mixed:
            yield (
                f"{mixed:,} of {counts.conversations:,} conversations {_verb(mixed, 'have')} turns in the format's "
                "form and others outside it: the format's system text stands before none of these turns. Write all "
                "turns in the form, or set answer_form to true in these rows."
            )
        if lost := counts.lost_thoughts:
            yield (
                f"{lost:,} of {counts.turns:,} turns {_verb(lost, 'have')} a thought, for which the format has no "
                "place: it is left out. Teach a format that has thoughts (--set format=…)."
            )
        if unlearnt := counts.unlearnt_turns:
            yield (
                f"{unlearnt:,} of {unlearnt + counts.turns:,} turns {_verb(unlearnt, 'be')} followed by another "
                "question, before which the format leaves out their thoughts: nothing is learnt from them. To learn "
                "from every turn, end a conversation of its own with each."
            )
        if self.rewarded and not counts.rewarded_endings:
            yield (
                f"none of the {counts.conversations:,} conversations ends in the form that RL rewards, "
                f"{_described(self.rewarded)}: the model would have to find it in RL. Prepare the data with a share of "
                "conversations in this form (rstar2 data prepare … --set answer_form=0.5), or add some of your own."
            )


def check_form(rows: Iterable[Mapping[str, Any]], wording: Wording, first: int = 1) -> FormCheck:
    """Check conversations that SFT would teach with a format's wording; `first` is the number of the first one."""
    total, fault = FormCounts(), None
    for number, row in enumerate(rows, first):
        counts = count_form(row, wording)
        total += counts
        if counts.compliant_turns < counts.demanded_turns and fault is None:
            fault = number
    return FormCheck(total, fault, wording.rewarded)


_SINGULAR = {"do": "does", "have": "has", "be": "is"}
_PLURAL = {"do": "do", "have": "have", "be": "are"}


def _verb(count: int, verb: str) -> str:
    return (_SINGULAR if count == 1 else _PLURAL)[verb]


def _described(demands: Demands) -> str:
    """The form of a final turn that is asked for."""
    box = "\\boxed{}" if demands.box else ""
    return f"{box} inside {tags.ANSWER}" if box and demands.answer else box or tags.ANSWER
