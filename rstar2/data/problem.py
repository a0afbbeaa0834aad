"""The class `Problem`, which data, evaluation and training share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """A problem that a model has to solve, and its correct answer."""

    id: str
    """The id of the problem."""
    problem: str
    """The text of the problem."""
    answer: str
    """The correct answer."""
