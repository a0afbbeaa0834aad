"""The problem record that data, evaluation and training share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Problem:
    """A problem a model is asked to solve."""

    id: str
    problem: str
    answer: str
