"""What grading one answer came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

VerdictName = Literal["correct", "wrong", "unparsed", "timeout", "invalid"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What grading one answer came to, and why."""

    verdict: VerdictName
    """`correct`, or `wrong`: an answer was understood and differs. `unparsed`: no answer was found, or it
    could not be understood, so nothing was verified. `timeout`: the deadline passed. `invalid`: the gold
    answer itself is missing or cannot be used."""
    extracted: str | None
    """The answer found in the model's output, or None where none was found."""
    rule: str
    """The name of the rule that decided, such as `integer`, `text`, `number`, `interval`."""

    @property
    def correct(self) -> bool:
        """Whether the answer is verified to equal the gold answer; the reward is 1.0 exactly then."""
        return self.verdict == "correct"
