"""Records verdicts that show an error in the grader's code, in this process and in its grading processes."""

from __future__ import annotations

from typing import Any

from rstar2.eval.grader import Verdict
from rstar2.eval.grader.outcomes import is_defect

noted: list[Verdict] = []
"""The recorded verdicts since the list was last emptied."""


def note_defects() -> None:
    """Start to append every verdict that shows an error in the grader's code to `noted`.

    This includes verdicts of grading processes, because a pool creates their `Verdict` objects in this process.
    """
    original = Verdict.__init__

    def init(self: Verdict, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if is_defect(self.rule):
            noted.append(self)

    Verdict.__init__ = init  # type: ignore[method-assign]


def refuse_defects() -> None:
    """Raise AssertionError if a verdict shows an error in the grader's code."""
    assert not noted, f"the grader's code raised an unexpected exception: {noted[0]}"
