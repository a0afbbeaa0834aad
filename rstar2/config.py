"""Reads recipes: values from TOML and `--set a.b=c`, checked by pydantic models that refuse unknown keys."""

from __future__ import annotations

import json
import tomllib
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from rstar2.errors import UserError


class Strict(BaseModel, extra="forbid", frozen=True):
    """The base of every recipe model: unknown keys are refused, values do not change later."""


Model = TypeVar("Model", bound=BaseModel)


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`base` with the values of `over` on top, table by table."""
    result = dict(base)
    for key, value in over.items():
        current = result.get(key)
        if isinstance(current, dict) and isinstance(value, dict):
            value = merged(current, value)
        result[key] = value
    return result


def resolve(model: type[Model], values: dict[str, Any], overrides: list[str], where: str) -> Model:
    """Values and overrides into a model; a UserError names each unknown key and wrong value."""
    merged: dict[str, Any] = json.loads(json.dumps(values))
    for override in overrides:
        _apply(merged, override)
    try:
        return model.model_validate(merged)
    except ValidationError as error:
        raise UserError(f"{where}: {_first_errors(error)}", _known_keys(model, error)) from error


def _apply(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise UserError(f"--set {override}: not of the form a.b=c", "Example: --set trainer.steps=20")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    node = values
    for part in parts[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            message = f"--set {override}: {part} is a value, not a table"
            raise UserError(message, "Name the key that holds it.")
        node = child
    node[parts[-1]] = value


def _first_errors(error: ValidationError) -> str:
    shown = []
    for item in error.errors()[:5]:
        key = ".".join(str(part) for part in item["loc"])
        if item["type"] == "extra_forbidden":
            shown.append(f"unknown key {key}")
        elif item["type"] == "missing":
            shown.append(f"{key} is missing")
        else:
            shown.append(f"{key} = {item['input']!r}: {item['msg']}")
    return "; ".join(shown)


def _known_keys(model: type[BaseModel], error: ValidationError) -> str:
    for item in error.errors():
        if item["type"] != "extra_forbidden":
            continue
        node: Any = model
        for part in item["loc"][:-1]:
            fields = getattr(node, "model_fields", {})
            node = fields[str(part)].annotation if str(part) in fields else None
        known = ", ".join(getattr(node, "model_fields", {}))
        if known:
            return f"Known keys there: {known}."
    return "Correct the value and start again."
