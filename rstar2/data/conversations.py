"""Turns a source's tools, calls and turns into messages as OpenAI's API writes them, and checks every call.

Sources write types as `dict`, `float` or `list of strings`; they become JSON Schema, and a row is refused whose call
does not fit its tool's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema_rs

from rstar2.data.rows import Refused, as_json, parsed, unicode_text

Message = dict[str, Any]
BAD_CALL = "bad call"

_TYPES = {
    "dict": "object",
    "map": "object",
    "hashmap": "object",
    "float": "number",
    "double": "number",
    "decimal": "number",
    "long": "integer",
    "int": "integer",
    "str": "string",
    "char": "string",
    "date": "string",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "set": "array",
}
_JSON_TYPES = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})


KEPT_TOOLS = 4096
"""How many texts of tools a source keeps read: its rows often list the same ones."""


class Tools:
    """The tools of a conversation, from `{name, description, parameters}` or the form of OpenAI's API.

    Refused where one is neither.
    """

    def __init__(self, schemas: Iterable[Any] = ()) -> None:
        listed = [_tool(schema) for schema in schemas]
        self.text = unicode_text(as_json(listed), "the tools")
        """JSON of the list, as OpenAI's API has it."""
        self._parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in listed}
        self._validators: dict[str, Any] = {}

    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Refused where there is no such tool, its parameters are no JSON Schema, or the arguments do not fit them."""
        if name not in self._validators:
            self._validators[name] = self._validator(name)
        try:
            self._validators[name].validate(arguments)
        except jsonschema_rs.ValidationError as error:
            raise Refused(BAD_CALL, f"{name}: {error.message[:200]}") from error

    def _validator(self, name: str) -> Any:
        if name not in self._parameters:
            known = ", ".join(self._parameters) or "there are none"
            raise Refused(BAD_CALL, f"{name} is not one of the tools ({known})")
        try:
            return jsonschema_rs.validator_for(self._parameters[name])
        except jsonschema_rs.ValidationError as error:
            raise Refused(
                "malformed", f"a tool's parameters are not JSON Schema: {error.message[:120]}"
            ) from error


def _tool(schema: Any) -> dict[str, Any]:
    function = schema.get("function", schema) if isinstance(schema, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refused("malformed", f"a tool without a name: {json.dumps(schema, default=str)[:80]}")
    parameters = function.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise Refused("malformed", f"the parameters of {function['name']} are not an object")
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": str(function.get("description") or ""),
            "parameters": {"properties": {}, **_schema(parameters), "type": "object"},
        },
    }


def _schema(node: Mapping[str, Any]) -> dict[str, Any]:
    """A source's schema as JSON Schema: known names of types; what it does not say is not asked of a call."""
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key == "type":
            kinds = [_type(kind) for kind in (value if isinstance(value, list) else [value])]
            if None not in kinds:
                kept["type"] = kinds if isinstance(value, list) else kinds[0]
        elif key == "properties" and isinstance(value, dict):
            kept[key] = {
                name: _schema(part) if isinstance(part, dict) else {} for name, part in value.items()
            }
        elif key == "items":
            kept[key] = _schema(value) if isinstance(value, dict) else {}
        elif key == "required":
            if isinstance(value, list):
                kept[key] = [name for name in dict.fromkeys(value) if isinstance(name, str)]
        elif key == "enum":
            if isinstance(value, list) and value:
                kept[key] = value
        elif key in ("description", "default", "anyOf", "minimum", "maximum"):
            kept[key] = value
    return kept


def _type(name: Any) -> str | None:
    """The JSON type that a source's word means; None where it means any."""
    word = str(name).lower()
    word = _TYPES.get(word, word)
    return word if word in _JSON_TYPES else None


def call(name: Any, arguments: Any) -> dict[str, Any]:
    """A call of a tool; `arguments` is an object or its JSON text. Refused where it is neither.

    `conversation_row` writes the arguments as text, once it has checked them.
    """
    if isinstance(arguments, str):
        try:
            arguments = parsed(arguments)
        except ValueError as error:
            raise Refused(BAD_CALL, f"{name}: its arguments are not JSON: {error}") from error
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Refused(BAD_CALL, f"{name}: its arguments are not an object")
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def said(role: str, content: Any) -> Message:
    """A message of the system, the user or the assistant; Refused where it is not text or is empty."""
    if not isinstance(content, str) or not content.strip():
        raise Refused("malformed", f"a {role} message is {'empty' if content == '' else 'not text'}")
    return {"role": role, "content": unicode_text(content.strip(), "a message")}


def called(calls: list[dict[str, Any]], content: str = "") -> Message:
    """A message of the assistant that calls tools, perhaps after a text."""
    return {
        "role": "assistant",
        "content": unicode_text(content.strip(), "a message") or None,
        "tool_calls": calls,
    }


def replied(content: Any) -> Message:
    """A tool's reply: text, or a value that becomes JSON."""
    text = content if isinstance(content, str) else as_json(content)
    return {"role": "tool", "content": unicode_text(text, "a tool's reply")}


def conversation_row(messages: list[Message], tools: Tools) -> dict[str, Any]:
    """The columns of a conversation that its source decides.

    What follows the assistant's last message is left out, since nothing is learnt from it. Refused where no assistant's
    message is left, a call fits no tool, or calls and replies do not correspond.
    """
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if not any(message["role"] == "user" for message in messages):
        raise Refused("malformed", "no assistant message that answers a user")
    number = 0
    waiting: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            if not waiting:
                raise Refused("malformed", "a tool's reply without a call")
            message["tool_call_id"] = waiting.pop(0)
            continue
        if waiting:
            raise Refused("malformed", "a call has no reply, but the conversation continues")
        for each in message.get("tool_calls") or ():
            number += 1
            each["id"] = f"call_{number}"
            waiting.append(each["id"])
            function = each["function"]
            tools.check(function["name"], function["arguments"])
            function["arguments"] = unicode_text(as_json(function["arguments"]), "a call")
    return {"messages": messages, "tools": tools.text}
