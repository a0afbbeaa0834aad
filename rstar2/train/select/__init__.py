"""Selections: which of a problem's rollouts are trained on. One module per selection, named in recipes as `select`.

A selection is a function `select(group, rng)` that returns indices into `group.rollouts`, at most `group.keep` of them
(see `rstar2.train.group.Group`). Its keyword-only parameters are its settings, which a recipe writes beside its name:
`select = "roc"`, or a table `[select]` with `name = "roc"` and `penalty_floor = 0.01`. A function of a user's own
module is named `module:object` instead.
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
    """What a selection is; `settings` are its keyword-only parameters."""

    def __call__(self, group: Group, rng: np.random.Generator, **settings: Any) -> Sequence[int]: ...


class SelectSettings(Strict, extra="allow"):
    """The selection by its name, and the settings of that selection."""

    name: str = SELECTIONS.default
    """A selection of `rstar2.train.select`, or `module:object` for a function of your own."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """The name alone as a table, checked and completed with the defaults of the selection's settings."""
        return SELECTIONS.completed(values)


class Selection:
    """A recipe's selection, ready to be applied. A UserError if it is a user's own and cannot be loaded."""

    def __init__(self, settings: SelectSettings) -> None:
        self.name = settings.name
        self._settings = settings.model_extra or {}
        self._function: SelectFunction = SELECTIONS.load(settings.name)
        module = SELECTIONS.module(settings.name)
        self._excludes: Callable[[Rollout], bool] | None = getattr(module, "excludes", None)

    def excludes(self, rollout: Rollout) -> bool:
        """Whether a rule of the selection keeps the rollout from ever being trained on."""
        return self._excludes is not None and self._excludes(rollout)

    def choose(self, rollouts: Sequence[Rollout], keep: int, rng: np.random.Generator) -> list[int]:
        """The indices of the rollouts to train on, in order, at most `keep`; none that lost a call to the judge.

        What the judge lost says nothing about the policy: it is left out before anything is counted.

        Raises:
            Failure: a user's selection failed, or returned something else than such indices.
        """
        usable = [i for i, rollout in enumerate(rollouts) if not rollout.lost_calls]
        group = Group(tuple(rollouts[i] for i in usable), keep)
        with failures_named(self.name, ROLE):
            returned = self._function(group, rng, **self._settings)
        return [usable[i] for i in self._checked(returned, group)]

    def _checked(self, returned: Any, group: Group) -> list[int]:
        """What a selection returned, as sorted indices."""
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
                "Return indices into group.rollouts, each once, and at most group.keep of them.",
            )
        return indices
