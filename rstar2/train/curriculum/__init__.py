"""Curricula: which problems a step asks. One module per curriculum, named in recipes as `curriculum`.

A curriculum is a function `choose(problems, count, rng)` that returns `count` indices into `problems.ids` (see
`rstar2.train.outcomes.Problems`). It knows how all earlier rollouts ended, and keeps no state of its own. Its
keyword-only parameters are its settings, which a recipe writes beside its name: `curriculum = "posterior"`, or a table
`[curriculum]` with `name = "posterior"` and `explore = 0.2`. A function of a user's own module is named `module:object`
instead.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any, Protocol

import numpy as np
from pydantic import model_validator

from rstar2.config import Strict
from rstar2.errors import Failure
from rstar2.plugins import failures_named, is_reference
from rstar2.train.named_functions import NamedFunctions
from rstar2.train.outcomes import DISCOUNT, Problems

ROLE = "the curriculum"
UNIFORM = "uniform"
PROBLEM_SAMPLER = "rstar2_problem_sampler"
"""The key within VERL's `data` with the settings of `rstar2.train.verl.problem_sampler`."""
CURRICULA = NamedFunctions(
    __name__, "curriculum", ROLE, "choose", ("problems", "count", "rng"), default=UNIFORM
)


class CurriculumFunction(Protocol):
    """What a curriculum is; `settings` are its keyword-only parameters."""

    def __call__(
        self, problems: Problems, count: int, rng: np.random.Generator, **settings: Any
    ) -> Sequence[int]: ...


class CurriculumSettings(Strict, extra="allow"):
    """The curriculum by its name, and the settings of that curriculum."""

    name: str = CURRICULA.default
    """A curriculum of `rstar2.train.curriculum`, or `module:object` for a function of your own."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """The name alone as a table, checked and completed with the defaults of the curriculum's settings."""
        return CURRICULA.completed(values)

    @property
    def reads_outcomes(self) -> bool:
        """Whether the choice depends on how rollouts ended; that of `uniform` does not."""
        return self.name != UNIFORM

    @property
    def discount(self) -> float:
        """The discount by which problems are judged in the metrics: that of a shipped curriculum, or the default."""
        own = is_reference(self.name)
        return DISCOUNT if own else float((self.model_extra or {}).get("discount", DISCOUNT))


class Curriculum:
    """A recipe's curriculum, ready to be applied. A UserError if it is a user's own and cannot be loaded."""

    def __init__(self, settings: CurriculumSettings) -> None:
        self.name = settings.name
        self._settings = settings.model_extra or {}
        self._function: CurriculumFunction = CURRICULA.load(settings.name)

    def choose(
        self, problems: Problems, count: int, rng: np.random.Generator, under_way: Collection[int] = ()
    ) -> list[int]:
        """The indices of the problems to ask, in the order in which they are handed out.

        Problems that are `under_way`, which were handed out and have no outcome yet, are not asked again unless fewer
        than `count` others are left.

        Raises:
            Failure: a user's curriculum failed, or returned something else than such indices.
        """
        excluded = set(under_way)
        others = [i for i in range(len(problems)) if i not in excluded]
        if len(others) < count:
            others = list(range(len(problems)))
        with failures_named(self.name, ROLE):
            returned = self._function(problems.only(others), count, rng, **self._settings)
        return [others[i] for i in self._checked(returned, len(others), count)]

    def _checked(self, returned: Any, size: int, count: int) -> list[int]:
        """What a curriculum returned, as indices."""
        indices, fault = [], ""
        try:
            indices = [operator.index(i) for i in returned]
        except TypeError:
            fault = "which is not a list of whole numbers"
        if indices and not 0 <= min(indices) <= max(indices) < size:
            fault = f"which is not within 0 to {size - 1}"
        elif len(set(indices)) < len(indices):
            fault = "which has an index twice"
        elif not fault and len(indices) != count:
            fault = f"which are {len(indices)}, not count = {count}"
        if fault:
            raise Failure(
                f"{ROLE} {self.name} returned {returned!r:.200} for {size} problems, {fault}",
                "Return count indices into problems.ids, each once.",
            )
        return indices
