"""Notes the verdicts that tell of an error in the grader's code, in this process and in its grading processes."""

from __future__ import annotations

from typing import Any

from rstar2.eval.grader import Verdict
from rstar2.eval.grader.outcomes import is_defect

noted: list[Verdict] = []
"""The verdicts with such a rule since the list was last emptied."""


def note_defects() -> None:
    """From now on put every such verdict into `noted`; a pool makes those of its processes in this one."""
    original = Verdict.__init__

    def init(self: Verdict, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if is_defect(self.rule):
            noted.append(self)

    Verdict.__init__ = init  # type: ignore[method-assign]


def refuse_defects() -> None:
    """Raise an AssertionError if there is such a verdict."""
    assert not noted, f"the grader met an exception that is no judgement: {noted[0]}"
