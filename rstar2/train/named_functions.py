"""Functions that a recipe names, each in a module of its own: those of a package, or a user's as `module:object`.

A function's keyword-only parameters are its settings. A recipe writes them beside the name in one table, or the name
alone: `select = "roc"`, or `[select]` with `name = "roc"` and `penalty_floor = 0.01`. Selections
(`rstar2.train.select`) and curricula (`rstar2.train.curriculum`) are such functions.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, get_type_hints

from pydantic import create_model

from rstar2.config import Strict, resolve
from rstar2.errors import UserError, did_you_mean
from rstar2.plugins import is_reference, load_function


@dataclass(frozen=True)
class NamedFunctions:
    """The functions of one recipe key."""

    package: str
    """The package with one module for each function."""
    key: str
    """The recipe's key."""
    role: str
    """What a function is, as a noun phrase that starts a message: "the selection"."""
    function: str
    """The function's name in its module."""
    parameters: tuple[str, ...]
    """Names of the positional parameters."""
    default: str
    """The name of the function of a recipe that names none."""

    def shipped(self) -> list[str]:
        """The names of the functions of the package."""
        return sorted(
            module.name for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__)
        )

    def module(self, name: str) -> ModuleType | None:
        """The module of a function of the package; None for a user's own."""
        return None if is_reference(name) else importlib.import_module(f"{self.package}.{name}")

    def load(self, name: str) -> Callable[..., Any]:
        """The function `name`. Raises a UserError if it is a user's own and cannot be loaded."""
        module = self.module(name)
        if module is None:
            return load_function(name, self.role, self.parameters)
        function: Callable[..., Any] = getattr(module, self.function)
        return function

    def settings_of(self, name: str) -> type[Strict]:
        """The model of the settings of the function `name`, which are its keyword-only parameters."""
        function = self.load(name)
        try:
            hints = get_type_hints(function, include_extras=True)
        except NameError as error:
            raise UserError(
                f"{self.role} {name}: the type of a parameter is unknown: {error}",
                "Import it in the module.",
            ) from error
        fields: dict[str, Any] = {
            parameter.name: (hints.get(parameter.name, Any), parameter.default)
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        return create_model("Settings", __base__=Strict, **fields)

    def completed(self, values: Any) -> Any:
        """A recipe's value, also a name alone, as a table completed with the defaults of the function's settings.

        Raises a ValueError for a name that is not known, or for a wrong setting.
        """
        values = {"name": values} if isinstance(values, str) else values
        name = values.get("name", self.default) if isinstance(values, dict) else None
        if not isinstance(name, str):
            return values
        if not is_reference(name) and name not in (known := self.shipped()):
            raise ValueError(
                f"{self.key} must be one of {', '.join(map(repr, known))}, or 'module:object', "
                f"not {name!r}{did_you_mean(name, known)}"
            )
        settings = {key: value for key, value in values.items() if key != "name"}
        fields: dict[str, Any] = {self.key: (self.settings_of(name), ...)}
        table: Any = create_model("Table", __base__=Strict, **fields)
        try:
            checked = resolve(table, {self.key: settings}, [], self.role)
        except UserError as error:
            # Whoever validates the recipe names what gave the value.
            raise ValueError(error.message.removeprefix(f"{self.role}: ")) from error
        return {"name": name, **checked.model_dump()[self.key]}
