"""Parses further fields of requests, which a user sets as `key=value` on the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rstar2.errors import UserError

_OPTION = "--request-body"
_EXAMPLE = "Example: --request-body chat_template_kwargs.enable_thinking=false"
_OPTIONS = {
    "model": "--model-name",
    "temperature": "--temperature",
    "top_p": "--top-p",
    "top_k": "--top-k",
    "seed": "--seed",
    "max_tokens": "--max-tokens",
    "max_completion_tokens": "--max-tokens",
    "tools": "--no-tools or --tools-in-text",
}
"""Maps each field that has its own option on the command line to that option."""
_RESERVED = frozenset(
    {"messages", "prompt", "stream", "stream_options", "n", "logprobs", "return_token_ids", "stop_token_ids"}
)
"""Fields that rstar2 sets in every request. With other values of these fields, rstar2 could not parse the answers."""


def request_fields(texts: Sequence[str]) -> dict[str, Any]:
    """Parse texts such as `reasoning.effort=high`. A dot separates the keys of nested objects.

    A value is parsed as JSON if possible, and otherwise used as text.

    Raises:
        UserError: a text is not `key=value`, or the user cannot set this field.
    """
    fields: dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        names = key.strip().split(".")
        if not equals or not all(names):
            raise UserError(f"`{_OPTION} {text}` is not key=value", _EXAMPLE)
        if names[0] in _RESERVED:
            raise UserError(f"`{_OPTION} {names[0]}`: rstar2 sets this field itself", "Remove this option.")
        if names[0] in _OPTIONS:
            raise UserError(
                f"`{_OPTION} {names[0]}`: this field has its own option", f"Use {_OPTIONS[names[0]]}."
            )
        _put(fields, names, _value(value), text)
    return fields


def _put(fields: dict[str, Any], names: Sequence[str], value: Any, text: str) -> None:
    for name in names[:-1]:
        fields = fields.setdefault(name, {})
        if not isinstance(fields, dict):
            raise UserError(
                f"`{_OPTION} {text}`: {name} is already set to a value that is not an object", _EXAMPLE
            )
    if names[-1] in fields:
        raise UserError(f"`{_OPTION} {text}`: the field is set twice", "Set each field once.")
    fields[names[-1]] = value


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
