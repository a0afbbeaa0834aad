"""Curricula: functions that choose the problems of each step. Each module of this package holds one curriculum.

A curriculum is a function `choose(problems, count, rng)`. The function returns `count` indices into `problems.ids` (see
`rstar2.train.outcomes.Problems`). `problems` has the outcomes of all earlier rollouts, and a curriculum keeps no state
of its own. The function's keyword-only parameters are the settings of the curriculum.

A recipe names a curriculum under the key `curriculum`: `curriculum = "posterior"`, or a table `[curriculum]` with
`name = "posterior"` and settings such as `explore = 0.2`. A function in a user's own module is named `module:object`.
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
"""The key within VERL's `data` section that holds the settings of `rstar2.train.verl.problem_sampler`."""
CURRICULA = NamedFunctions(
    __name__, "curriculum", ROLE, "choose", ("problems", "count", "rng"), default=UNIFORM
)


class CurriculumFunction(Protocol):
    """The signature of a curriculum. `settings` are the curriculum's keyword-only parameters."""

    def __call__(
        self, problems: Problems, count: int, rng: np.random.Generator, **settings: Any
    ) -> Sequence[int]: ...


class CurriculumSettings(Strict, extra="allow"):
    """The name and the settings of the curriculum, which chooses the problems of each step. `curriculum = "uniform"` is
    short for a table that has only a name."""

    name: str = CURRICULA.default
    """The name of a curriculum. uniform: uses all problems equally often. posterior: prefers problems that are likely
    to have both correct and wrong rollouts. easy_to_hard: like posterior, from easy to hard problems over the stage.
    pools: uses all problems equally often, but problems that are always solved rest for some steps. `module:object`: a
    function of your own."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Turns a name into a table, checks the settings, and adds the defaults of missing settings."""
        return CURRICULA.completed(values)

    @property
    def reads_outcomes(self) -> bool:
        """Whether the choice depends on the outcomes of rollouts. Only the curriculum `uniform` ignores outcomes."""
        return self.name != UNIFORM

    @property
    def discount(self) -> float:
        """The discount that the metrics `rstar2/problems/…` apply to older outcomes.

        If a shipped curriculum has a setting `discount`, its value is used. Otherwise the default is used.
        """
        users = is_reference(self.name)
        return DISCOUNT if users else float((self.model_extra or {}).get("discount", DISCOUNT))


class Curriculum:
    """A recipe's curriculum, ready to be applied.

    Raises:
        UserError: the curriculum is a user's own function and cannot be loaded.
    """

    def __init__(self, settings: CurriculumSettings) -> None:
        self.name = settings.name
        self._settings = settings.model_extra or {}
        self._function: CurriculumFunction = CURRICULA.load(settings.name)

    def choose(
        self, problems: Problems, count: int, rng: np.random.Generator, under_way: Collection[int] = ()
    ) -> list[int]:
        """Returns the indices of the problems to use next, in the order of use.

        Args:
            problems: all problems of the stage.
            count: number of problems to choose.
            rng: the source of randomness.
            under_way: indices of problems whose rollouts are running. Problems whose rollouts are running are left out,
                unless fewer than `count` other problems remain.

        Raises:
            Failure: a user's curriculum raised an error, or did not return `count` different indices.
        """
        excluded = set(under_way)
        others = [i for i in range(len(problems)) if i not in excluded]
        if len(others) < count:
            others = list(range(len(problems)))
        with failures_named(self.name, ROLE):
            returned = self._function(problems.only(others), count, rng, **self._settings)
        return [others[i] for i in self._checked(returned, len(others), count)]

    def _checked(self, returned: Any, size: int, count: int) -> list[int]:
        """Checks the return value of a curriculum, and returns it as a list of indices."""
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
            fault = f"which has {len(indices)} indices instead of count = {count}"
        if fault:
            raise Failure(
                f"{ROLE} {self.name} returned {returned!r:.200} for {size} problems, {fault}",
                "Return `count` different indices into `problems.ids`.",
            )
        return indices
