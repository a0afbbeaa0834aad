"""The problem record that data, evaluation and training share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """A problem a model is asked to solve.

    `family` groups problems of one kind, where the source has kinds.
    """

    id: str
    problem: str
    answer: str
    family: str = ""
