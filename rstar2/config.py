"""Reads recipes from TOML and `--set a.b=c`, and checks them with pydantic models that reject unknown keys."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError, ValidationInfo, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

import rstar2
from rstar2.errors import UserError, did_you_mean, most_similar


class Strict(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """The base class of recipe models. A recipe model is immutable, and rejects unknown keys and infinite numbers."""

    @field_validator("*", mode="before")
    @classmethod
    def _no_number_is_true(cls, value: object, info: ValidationInfo) -> object:
        """Reject true and false where a number is expected, because pydantic would read them as 1 and 0."""
        kind = cls.model_fields[str(info.field_name)].annotation
        kinds = {kind, *get_args(kind)}
        if isinstance(value, bool) and kinds & {int, float} and bool not in kinds:
            raise PydanticCustomError("number_type", "must be a number")
        return value


Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class KeysOf:
    """Annotates a table whose keys are the fields of another model, so that error messages can suggest a similar
    key.
    """

    model: type[BaseModel]


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Returns `base` with the values of `over` added to it. For a key that both tables have, the result has the value
    in `over`. Nested tables are merged in the same way.
    """
    result = dict(base)
    for key, value in over.items():
        current = result.get(key)
        if isinstance(current, dict) and isinstance(value, dict):
            value = merged(current, value)
        result[key] = value
    return result


def dotted(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Returns nested tables as one table with dotted keys, so that nested and dotted keys can be compared."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= dotted(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def resolve(
    model: type[Model],
    values: dict[str, Any],
    overrides: list[str],
    where: str,
    within: tuple[str, ...] = (),
    before: str = "",
) -> Model:
    """Makes a model from values and overrides.

    Args:
        overrides: the user's changes, each as `a.b=c`. The value `null` unsets a key that may be absent.
        where: names the source of the values in error messages, such as a file.
        within: the path of the values in a larger model, if the overrides were already applied to that larger model.
            If `within` is given, the overrides are only used to find the source of a wrong value.
        before: an optional prefix of the overrides' keys, such as `stage2.`.

    Raises:
        UserError: there is an unknown key or a wrong value. The message names the first wrong key or value and its
            source.
    """
    changed: dict[str, Any] = json.loads(json.dumps(values))
    for override in () if within else overrides:
        _apply(changed, override, before)
    try:
        return model.model_validate(changed)
    except ValidationError as error:
        tables = within or (("", before[:-1]) if before else ("",))
        raise _refusal(model, error, overrides, where, tables) from error


def _apply(values: dict[str, Any], override: str, before: str) -> None:
    key, equals, text = override.partition("=")
    parts = key.strip().removeprefix(before).split(".")
    if not equals or not all(parts):
        raise UserError(f"--set {override}: not of the form a.b=c", "Example: --set rollout.prompts=64.")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        # TOML cannot express an absent value.
        value = None if text.strip() == "null" else text
    node = values
    for part in parts[:-1]:
        child = node.setdefault(part, {})
        if not isinstance(child, dict):
            message = f"--set {override}: {part} is a value, not a table"
            raise UserError(message, f"Set {part} itself, or check the key's spelling.")
        node = child
    node[parts[-1]] = value


def _refusal(
    model: type[BaseModel], error: ValidationError, overrides: list[str], where: str, tables: tuple[str, ...]
) -> UserError:
    item = error.errors()[0]
    path = tuple(str(part) for part in item["loc"])
    override, table = _source(".".join(path), item["msg"], overrides, tables) or ("", "")
    source = f"--set {override}" if override else where
    key = _dotted(table, *path)
    siblings = _fields(model, path[:-1])
    field = siblings.get(path[-1]) if path else None
    hint = "Correct the value, then run the command again."
    if item["type"] == "extra_forbidden":
        fault = f"unknown key {key}"
        typed = override.partition("=")[0].strip().removeprefix(f"{table}.")
        if near := _nearest(max(typed, ".".join(path), key=len), _all_fields(model)):
            name, near_field = near
            fault += f"; did you mean {_dotted(table, name)} ({_kind(near_field)})?"
        hint = f"Known keys in that table: {', '.join(siblings)}."
    elif item["type"] == "missing":
        fault = f"{key} is missing"
    elif field is None or item["type"] == "value_error":
        fault = item["msg"].removeprefix("Value error, ")
        if item["type"] != "value_error" and key:
            fault = f"{key}: {fault}"
    else:
        value = item["input"]
        value_text = "a table" if isinstance(value, dict) else "null" if value is None else repr(value)[:60]
        names = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        fault = f"{key} must be {_kind(field)}, not {value_text}{did_you_mean(str(value), names)}"
    return UserError(f"{source}: {fault}", hint)


def _dotted(*parts: str) -> str:
    return ".".join(filter(None, parts))


def _source(key: str, message: str, overrides: list[str], tables: tuple[str, ...]) -> tuple[str, str] | None:
    """Returns the last override that set `key` or a key inside it, and the name in `tables` that contains the
    overridden key. Returns None if there is no such override.
    """
    for override in reversed(overrides):
        changed_key = override.partition("=")[0].strip()
        for table in tables:
            full_key = _dotted(table, key)
            if not key:
                # The error is about keys that contradict each other, and its message names them.
                is_source = changed_key.removeprefix(f"{table}.") in message
            else:
                is_source = f"{changed_key}.".startswith(f"{full_key}.") or f"{full_key}.".startswith(
                    f"{changed_key}."
                )
            if is_source:
                return override, table
    return None


def _table(field: FieldInfo) -> type[BaseModel] | None:
    for each in field.metadata:
        if isinstance(each, KeysOf):
            return each.model
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _fields(model: type[BaseModel], path: Iterable[str]) -> dict[str, FieldInfo]:
    """Returns the fields of the table at a path, or no fields if no model describes this table."""
    parts = iter(path)
    for part in parts:
        field = model.model_fields.get(part)
        inner = None if field is None else _table(field)
        if field is not None and get_origin(field.annotation) is dict and next(parts, None) is not None:
            # This field is a table of tables, by name.
            inner = get_args(field.annotation)[1]
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return {}
        model = inner
    return dict(model.model_fields)


def _all_fields(model: type[BaseModel], prefix: str = "") -> dict[str, FieldInfo]:
    """Returns a dict from dotted key to field, for the fields of a model and of the tables in it."""
    fields: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        key = _dotted(prefix, name)
        fields[key] = field
        if (inner := _table(field)) is not None:
            fields |= _all_fields(inner, key)
    return fields


def _nearest(key: str, fields: dict[str, FieldInfo]) -> tuple[str, FieldInfo] | None:
    """Returns the most similar key: a key with the same last word, or else a key with a similar spelling."""
    last_words = {each: each.rpartition(".")[2] for each in fields}
    word = key.rpartition(".")[2]
    same = [each for each in fields if last_words[each] == word]
    near = most_similar(word, last_words.values())
    name = next(iter(same), None) or most_similar(key, fields)
    name = name or next((each for each in fields if last_words[each] == near), None)
    return (name, fields[name]) if name else None


def _kind(field: FieldInfo) -> str:
    """Returns a phrase that describes the type and the bounds of a key's value."""
    kind: Any = field.annotation
    if get_origin(kind) in (Union, UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    name = words.get(kind, "a table" if _table(field) or get_origin(kind) is dict else "a list")
    bounds = [
        f"{word} {getattr(limit, name)}"
        for limit in field.metadata
        for name, word in (("ge", "of at least"), ("gt", "above"), ("le", "of at most"), ("lt", "below"))
        if hasattr(limit, name)
    ]
    return " ".join([name, " and ".join(bounds)]) if bounds else name


def recipes_folder() -> Path:
    """Returns the folder of the recipes: beside the package in a checkout, inside the package in a wheel."""
    package = Path(rstar2.__file__).parent
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def read_toml(path: Path) -> dict[str, Any]:
    """Returns the values of a TOML file. Raises UserError if the file cannot be read or is not TOML."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the recipe {path}: {error.strerror}", "Check the path.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not TOML: {error}", "Correct the line that the error names.") from error
