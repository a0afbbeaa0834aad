"""Functions that recipes name: selections (`rstar2.train.select`) and curricula (`rstar2.train.curriculum`).

A shipped function has its own module in the package `rstar2.train.select` or `rstar2.train.curriculum`. A user's
function is named as `module:object`. The keyword-only parameters of a function are its settings. A recipe writes only
the name, as in `select = "roc"`, or a table `[select]` with `name = "roc"` and settings such as `penalty_floor = 0.01`.
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
    """The functions that one recipe key can name."""

    package: str
    """The package of the shipped functions, with one module per function."""
    key: str
    """The recipe key that names one of the functions."""
    role: str
    """A noun phrase for messages, such as "the selection"."""
    function: str
    """The name of the function in each module."""
    parameters: tuple[str, ...]
    """Names of the positional parameters of each function."""
    default: str
    """The name of the function that is used if a recipe names no function."""

    def shipped(self) -> list[str]:
        """Returns the names of the shipped functions."""
        return sorted(
            module.name for module in pkgutil.iter_modules(importlib.import_module(self.package).__path__)
        )

    def module(self, name: str) -> ModuleType | None:
        """Returns the module of a shipped function, or None for a user's own function."""
        return None if is_reference(name) else importlib.import_module(f"{self.package}.{name}")

    def load(self, name: str) -> Callable[..., Any]:
        """Returns the function with the given name. Raises UserError if a user's own function cannot be loaded."""
        module = self.module(name)
        if module is None:
            return load_function(name, self.role, self.parameters)
        function: Callable[..., Any] = getattr(module, self.function)
        return function

    def settings_of(self, name: str) -> type[Strict]:
        """Returns a pydantic model for the settings of a function, which are the function's keyword-only parameters."""
        function = self.load(name)
        try:
            hints = get_type_hints(function, include_extras=True)
        except NameError as error:
            raise UserError(
                f"{self.role} {name}: the type of a parameter is unknown: {error}",
                "Import the type in the module.",
            ) from error
        fields: dict[str, Any] = {
            parameter.name: (hints.get(parameter.name, Any), parameter.default)
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        return create_model("Settings", __base__=Strict, **fields)

    def completed(self, values: Any) -> Any:
        """Returns a recipe's value as a table with a value for every setting of the function.

        Args:
            values: the recipe's value: a name, or a table.

        Raises:
            ValueError: the name is unknown, or a setting is wrong.
        """
        values = {"name": values} if isinstance(values, str) else values
        name = values.get("name", self.default) if isinstance(values, dict) else None
        if not isinstance(name, str):
            return values
        if not is_reference(name) and name not in (names := self.shipped()):
            raise ValueError(
                f"{self.key} must be one of {', '.join(map(repr, names))}, or 'module:object', "
                f"not {name!r}{did_you_mean(name, names)}"
            )
        settings = {key: value for key, value in values.items() if key != "name"}
        fields: dict[str, Any] = {self.key: (self.settings_of(name), ...)}
        table: Any = create_model("Table", __base__=Strict, **fields)
        try:
            checked = resolve(table, {self.key: settings}, [], self.role)
        except UserError as error:
            # The caller, which validates the whole recipe, adds the origin of the value to the message.
            raise ValueError(error.message.removeprefix(f"{self.role}: ")) from error
        return {"name": name, **checked.model_dump()[self.key]}
