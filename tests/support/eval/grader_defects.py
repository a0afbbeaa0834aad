"""Records verdicts that show an error in the grader's code, in this process and in its grading processes."""

from __future__ import annotations

from typing import Any

from rstar2.eval.grader import Verdict
from rstar2.eval.grader.outcomes import is_defect

noted: list[Verdict] = []
"""The recorded verdicts since the list was last emptied."""


def note_defects() -> None:
    """Start to append every such verdict to `noted`. A pool creates the verdicts of its processes in this process."""
    original = Verdict.__init__

    def init(self: Verdict, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if is_defect(self.rule):
            noted.append(self)

    Verdict.__init__ = init  # type: ignore[method-assign]


def refuse_defects() -> None:
    """Raise an AssertionError if such a verdict was recorded."""
    assert not noted, f"the grader met an exception that is no judgement: {noted[0]}"
