"""Generates pairs of formulas in LaTeX for which the evaluator knows whether they are equal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias

from formulas.alter import altered
from formulas.generate import formula
from formulas.latex import latex
from formulas.letters import KINDS, Kind, points
from formulas.rewrite import rewritten
from formulas.trees import Tree, letters_of
from formulas.values import decision

Relation: TypeAlias = Literal["altered", "equal"]
_PLAIN_SHARE = 0.85
"""Share of the pairs that are bare formulas. In the others, both formulas stand in the same larger answer."""
_WHOLE_ANSWERS = (
    "(@, 3)",
    r"\{@, \pi\}",
    "S = @",
    r"\begin{pmatrix} @ \\ 1 \end{pmatrix}",
    "[@, \\infty)",
    "@, \\sqrt{2}",
)
"""Larger answers. The formula replaces @."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A gold answer and an answer to grade, which is either altered and wrong, or equal and correct."""

    kind: Kind
    relation: Relation
    gold: str
    answer: str


def _answers(gold: Tree, other: Tree, random: Random) -> tuple[str, str]:
    """Return two formulas in LaTeX, either bare or both in the same larger answer."""
    around = "@" if random.random() < _PLAIN_SHARE else random.choice(_WHOLE_ANSWERS)
    return around.replace("@", latex(gold)), around.replace("@", latex(other, random))


@dataclass(slots=True)
class Pairs:
    """Generates pairs from a seed, and counts the pairs that it drops because the evaluator cannot decide them."""

    seed: int
    dropped: Counter[tuple[Relation, Kind]] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[Pair]:
        """Yield pairs endlessly: for each kind in turn, an altered pair and an equal pair."""
        random = Random(self.seed)
        while True:
            for kind in KINDS:
                yield self._altered(kind, random)
                yield self._equal(kind, random)

    def _altered(self, kind: Kind, random: Random) -> Pair:
        """A third of the altered formulas are also rewritten, so that not all of them resemble the gold answer."""
        while True:
            gold = formula(kind, random)
            other = altered(gold, random)
            if random.random() < 1 / 3:
                other = rewritten(other, random)
            names = letters_of(gold) | letters_of(other)
            if decision(gold, other, points(kind, names, random)) == "differs":
                return Pair(kind, "altered", *_answers(gold, other, random))
            self.dropped["altered", kind] += 1

    def _equal(self, kind: Kind, random: Random) -> Pair:
        while True:
            gold = formula(kind, random)
            other = rewritten(gold, random)
            names = letters_of(gold) | letters_of(other)
            if decision(gold, other, points(kind, names, random)) == "equal":
                return Pair(kind, "equal", *_answers(gold, other, random))
            self.dropped["equal", kind] += 1
