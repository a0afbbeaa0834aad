"""Selections: which of a problem's rollouts are trained on. One module per selection, named in recipes as `select`.

A selection is a function `select(group, rng)` that returns indices into `group.rollouts`, at most `group.keep` of them
(see `rstar2.train.group.Group`). Its keyword-only parameters are its settings, which a recipe writes beside its name:
`select = "roc"`, or a table `[select]` with `name = "roc"` and `penalty_floor = 0.01`. A function of a user's own
module is named `module:object` instead.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import pkgutil
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Protocol, get_type_hints

import numpy as np
from pydantic import create_model, model_validator

from rstar2.config import Strict, resolve
from rstar2.errors import Failure, UserError, did_you_mean
from rstar2.plugins import failures_named, is_reference, load_function
from rstar2.train.group import Group, Rollout

ROLE = "the selection"
PARAMETERS = ("group", "rng")


class SelectFunction(Protocol):
    """What a selection is; `settings` are its keyword-only parameters."""

    def __call__(self, group: Group, rng: np.random.Generator, **settings: Any) -> Sequence[int]: ...


class SelectSettings(Strict, extra="allow"):
    """The selection by its name, and the settings of that selection."""

    name: str = "roc"
    """A selection of `rstar2.train.select`, or `module:object` for a function of your own."""

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: Any) -> Any:
        """The name alone as a table, checked and completed with the defaults of the selection's settings."""
        values = {"name": values} if isinstance(values, str) else values
        name = values.get("name", "roc") if isinstance(values, dict) else None
        if not isinstance(name, str):
            return values
        if not is_reference(name) and name not in (known := shipped()):
            raise ValueError(
                f"select must be one of {', '.join(map(repr, known))}, or 'module:object', "
                f"not {name!r}{did_you_mean(name, known)}"
            )
        settings = {key: value for key, value in values.items() if key != "name"}
        table: Any = create_model("Table", __base__=Strict, select=(settings_of(name), ...))
        try:
            checked = resolve(table, {"select": settings}, [], ROLE)
        except UserError as error:
            # Whoever validates the recipe names what gave the value.
            raise ValueError(error.message.removeprefix(f"{ROLE}: ")) from error
        return {"name": name, **checked.model_dump()["select"]}


class Selection:
    """A recipe's selection, ready to be applied. A UserError if it is a user's own and cannot be loaded."""

    def __init__(self, settings: SelectSettings) -> None:
        self.name = settings.name
        self._settings = settings.model_extra or {}
        self._function = _function(settings.name)
        module = None if is_reference(settings.name) else _module(settings.name)
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


def shipped() -> list[str]:
    """The names of the selections of this package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def settings_of(name: str) -> type[Strict]:
    """The model of the settings of the selection `name`, which are its keyword-only parameters."""
    function = _function(name)
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise UserError(
            f"{ROLE} {name}: the type of a parameter is unknown: {error}",
            "Import it in the module.",
        ) from error
    fields: dict[str, Any] = {
        parameter.name: (hints.get(parameter.name, Any), parameter.default)
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    return create_model("Settings", __base__=Strict, **fields)


def _function(name: str) -> SelectFunction:
    if is_reference(name):
        return load_function(name, ROLE, PARAMETERS)
    function: SelectFunction = _module(name).select
    return function


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{name}")
