"""Selections: functions that choose which rollouts of a problem are trained on. Each module of this package contains
one selection.

A selection is a function `select(group, rng)`. The function returns at most `group.keep` indices into `group.rollouts`
(see `rstar2.train.group.Group`). The function's keyword-only parameters are the settings of the selection.

A recipe names a selection under the key `select`: `select = "roc"`, or a table `[select]` with `name = "roc"` and
settings such as `penalty_floor = 0.01`. A function in a user's own module is named `module:object`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from pydantic import model_validator

from rstar2.config import Strict
from rstar2.errors import Failure
from rstar2.plugins import failures_named
from rstar2.train.group import Group, Rollout
from rstar2.train.named_functions import NamedFunctions

ROLE = "the selection"
SELECTIONS = NamedFunctions(__name__, "select", ROLE, "select", ("group", "rng"), default="roc")


class SelectFunction(Protocol):
    """The signature of a selection. `settings` are the selection's keyword-only parameters."""

    def __call__(self, group: Group, rng: np.random.Generator, **settings: Any) -> Sequence[int]: ...


class SelectSettings(Strict, extra="allow"):
    """The name and the settings of the selection, which chooses, for each problem, the rollouts to train on. `select =
    "roc"` is short for a table that has only a name."""

    name: str = SELECTIONS.default
    """The name of a selection. roc: Resampling on Correct (RoC) as the paper describes it. release: RoC as in the
    authors' code. random: draws rollouts at random, as in plain GRPO. all_failed: draws at random, but never a rollout
    whose tool calls all failed. void_turn: draws at random, but never a rollout that has a turn with neither a call nor
    an answer. `module:object`: a function of your own."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """Turns a name into a table, checks the settings, and adds the defaults of missing settings."""
        return SELECTIONS.completed(values)


class Selection:
    """A recipe's selection, ready to be applied.

    Raises:
        UserError: the selection is a user's own function and cannot be loaded.
    """

    def __init__(self, settings: SelectSettings) -> None:
        self.name = settings.name
        self._settings = settings.model_extra or {}
        self._function: SelectFunction = SELECTIONS.load(settings.name)
        module = SELECTIONS.module(settings.name)
        self._excludes: Callable[[Rollout], bool] | None = getattr(module, "excludes", None)

    def excludes(self, rollout: Rollout) -> bool:
        """Whether the selection always excludes a rollout, regardless of the other rollouts in its group."""
        return self._excludes is not None and self._excludes(rollout)

    def choose(self, rollouts: Sequence[Rollout], keep: int, rng: np.random.Generator) -> list[int]:
        """Returns the indices of at most `keep` rollouts to train on, in ascending order.

        Rollouts with a call that the judge lost are left out first, because these rollouts say nothing about the
        policy. The function of the selection does not see the rollouts that are left out.

        Raises:
            Failure: a user's selection raised an error, or did not return at most `keep` different indices.
        """
        usable = [i for i, rollout in enumerate(rollouts) if not rollout.lost_calls]
        group = Group(tuple(rollouts[i] for i in usable), keep)
        with failures_named(self.name, ROLE):
            returned = self._function(group, rng, **self._settings)
        return [usable[i] for i in self._checked(returned, group)]

    def _checked(self, returned: Any, group: Group) -> list[int]:
        """Checks the return value of a selection, and returns it as sorted indices."""
        size, indices, fault = len(group.rollouts), [], ""
        try:
            indices = sorted(operator.index(i) for i in returned)
        except TypeError:
            fault = "which is not a list of whole numbers"
        if indices and not 0 <= indices[0] <= indices[-1] < size:
            fault = f"which is not within 0 to {size - 1}"
        elif len(set(indices)) < len(indices):
            fault = "which has an index twice"
        elif len(indices) > group.keep:
            fault = f"which is more than groups.keep = {group.keep}"
        if fault:
            raise Failure(
                f"{ROLE} {self.name} returned {returned!r:.200} for a group of {size} rollouts, {fault}",
                "Return at most `group.keep` different indices into `group.rollouts`.",
            )
        return indices
