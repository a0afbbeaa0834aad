"""Turns a source's tools, calls and turns into messages as OpenAI's API writes them, and checks every call.

Sources write types as `dict`, `float` or `list of strings`; they become JSON Schema, and a row is refused whose call
does not fit its tool's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

import jsonschema_rs

from rstar2.data.rows import Refused, parsed, strict_json, unicode_text
from rstar2.loop.turns.tags import THOUGHT_TAG

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
_OF_SCHEMAS = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Keywords of JSON Schema that hold schemas by name."""
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
"""Those that hold a list of schemas."""
_SCHEMAS = frozenset(
    {"items", "contains", "not", "if", "then", "else", "additionalProperties", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
"""Those that hold one."""
_VALUES = frozenset(
    {
        "title",
        "description",
        "default",
        "examples",
        "enum",
        "const",
        "pattern",
        "format",
        "$ref",
        "multipleOf",
    }
    | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "uniqueItems"}
    | {"minItems", "maxItems", "minContains", "maxContains", "minProperties", "maxProperties"}
    | {"dependentRequired"}
)
"""Other keywords."""

_GAP = re.compile(r"\s*\n\s*\n\s*")
_INTRODUCTION = re.compile(
    r"(?:(?<=[.!?\n])|^)(?!\s*You are)[^.!?\n]*\b(?:functions?|tools?|APIs?)\b[^.!?\n]*[:-]\s*$",
    re.IGNORECASE,
)
_EMPTY_THOUGHT = re.compile(rf"\s*{THOUGHT_TAG.pattern}\s*</(?P=name)>\s*")

_NAMED_TOOLS = re.compile(
    r"\b(?:functions?|tools?|APIs?)\b|</?(?:function|tool)|\bdef \w+\(|\"name\"\s*:", re.IGNORECASE
)
_DENIAL = re.compile(r"\b(?:no|not|without|cannot)\b[^.\n]*|n['’]t\b[^.\n]*", re.IGNORECASE)
_MARKED_CALL = re.compile(
    r"</?\|?(?:tool_?calls?|function_?calls?|function)\b|\bfunction_?call>?\s*\{"
    r"|\[\s*[a-z_][\w. ]*\(\s*\w+\s*=|[\"']name[\"']\s*:\s*[\"'][^{}]*[\"'](?:arguments|parameters)[\"']\s*:",
    re.IGNORECASE,
)
"""Calls by the tags, the JSON and the brackets that sources and families of models write them with."""
_ASCII_BRACKETS = str.maketrans("（）［］｛｝：＝", "()[]{}:=")

KEPT_TOOLS = 4096
"""How many texts of tools a source keeps read: its rows often list the same ones."""


class Tools:
    """The tools of a conversation, from `{name, description, parameters}` or the form of OpenAI's API.

    Raises:
        Refused: a tool is in neither form.
    """

    def __init__(self, schemas: Iterable[Any] = ()) -> None:
        listed = [_tool(schema) for schema in schemas]
        self.text = strict_json(listed, "the tools")
        """JSON of the list, as OpenAI's API has it."""
        self._parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in listed}
        self._validators: dict[str, Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parameters)

    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raise Refused if there is no such tool, its parameters are no JSON Schema, or the arguments do not fit."""
        if name not in self._validators:
            self._validators[name] = self._validator(name)
        try:
            self._validators[name].validate(arguments)
        except ValueError as error:
            raise Refused(BAD_CALL, f"{name}: {_first_line(error)}") from error

    def _validator(self, name: str) -> Any:
        if name not in self._parameters:
            known = ", ".join(self._parameters) or "there are none"
            raise Refused(BAD_CALL, f"{name} is not one of the tools ({known})")
        try:
            return jsonschema_rs.validator_for(self._parameters[name], retriever=_retrieve_nothing)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise Refused(
                "malformed", f"a tool's parameters are not JSON Schema: {_first_line(error)}"
            ) from error


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def _retrieve_nothing(uri: str) -> Any:
    """For a `$ref` to another document: a row must not make this machine fetch what it names."""
    raise ValueError(f"{uri} is not in the tool")


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
            # In this order a tool of ours is listed as the format lists it.
            "parameters": {"type": "object", "properties": {}} | _schema(parameters) | {"type": "object"},
        },
    }


def _schema(node: Mapping[str, Any]) -> dict[str, Any]:
    """A source's schema as JSON Schema: known names of types, and all else that is valid; the rest is left out."""
    kept: dict[str, Any] = {}
    for key, value in node.items():
        if key == "type":
            kinds = [_type(kind) for kind in (value if isinstance(value, list) else [value])]
            if None not in kinds:
                kept["type"] = kinds if isinstance(value, list) else kinds[0]
        elif key in _OF_SCHEMAS and isinstance(value, dict):
            kept[key] = {name: _subschema(part) for name, part in value.items()}
        elif key in _SCHEMAS:
            kept[key] = _subschema(value)
        elif key in _LISTS and isinstance(value, list) and value:
            kept[key] = [_subschema(part) for part in value]
        elif key == "required":
            if isinstance(value, list):
                kept[key] = [name for name in dict.fromkeys(value) if isinstance(name, str)]
        elif key == "enum":
            if isinstance(value, list) and value:
                kept[key] = value
        elif key in ("description", "default") or (
            key in _VALUES and jsonschema_rs.meta.is_valid({key: value})
        ):
            kept[key] = value
    return kept


def _subschema(value: Any) -> Any:
    """A schema in another; a value that is none asks nothing."""
    return _schema(value) if isinstance(value, dict) else value if isinstance(value, bool) else {}


def _type(name: Any) -> str | None:
    """The JSON type that a source's word means; None if it means any."""
    word = str(name).lower()
    word = _TYPES.get(word, word)
    return word if word in _JSON_TYPES else None


def call(name: Any, arguments: Any) -> dict[str, Any]:
    """Returns a call of a tool. `conversation_row` writes the arguments as text, once it has checked them.

    Raises:
        Refused: `arguments` is neither an object nor its JSON text, or the name is not text.
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
    """Returns a message of the system, the user or the assistant. Raises Refused if it is not text or is empty."""
    if not isinstance(content, str) or not content.strip():
        fault = "empty" if isinstance(content, str) else "not text"
        raise Refused("malformed", f"a message of the {role} is {fault}")
    return {"role": role, "content": unicode_text(content.strip(), "a message")}


def paragraphs(text: str) -> str:
    """A text of which parts were left out, with one empty line between its paragraphs."""
    return _GAP.sub("\n\n", text).strip()


def without_introduction(text: str) -> str:
    """A text that ends where a list of functions begins, without the sentence that introduces the list."""
    return _INTRODUCTION.sub("", text)


def without_empty_thought(answer: Any) -> Any:
    """An answer without the empty thought, such as `<think></think>`, that models write if reasoning is off.

    Raises:
        Refused: the answer has a thought.
    """
    if not isinstance(answer, str):
        return answer
    empty = _EMPTY_THOUGHT.match(answer)
    text = answer[empty.end() :] if empty else answer
    if tag := THOUGHT_TAG.search(text):
        raise Refused("reasoning", f"the answer has {tag[0]}, though its reasoning is off")
    return text


def answered(content: Any, tools: Tools) -> Message:
    """A message of the assistant that calls no tool.

    Raises:
        Refused: as `said`; or the text looks like a call, which would be taught as prose.
    """
    message = said("assistant", content)
    if tools.names and (written := _call_in(message["content"], tools)):
        raise Refused(BAD_CALL, f"a call in a form that is not read: {written}")
    return message


def _call_in(text: str, tools: Tools) -> str:
    """The beginning of what looks like a call of one of the tools; empty if nothing does."""
    plain = text.translate(_ASCII_BRACKETS)
    if marked := _MARKED_CALL.search(plain):
        return text[marked.start() :][:80]
    for name in (each for each in tools.names if each in text):
        written = (
            rf"(?<!\w){re.escape(name)}\s*\(\s*(?:\)|[\w-]+\s*[=:]|[\"'“{{\[])|[\[(]\s*{re.escape(name)}\s*:"
        )
        if match := re.search(written, plain):
            return text[match.start() :][:80]
    return ""


def refuse_unread_tools(system: str, rest: str) -> None:
    """Raise Refused if a system text in which no tool was found speaks of tools, other than that there are none.

    `rest` is the part of the text to quote.
    """
    if _NAMED_TOOLS.search(_DENIAL.sub("", system)):
        quoted = " ".join(rest.split())[:80]
        raise Refused("unreadable tools", f"system speaks of functions, but none could be read: {quoted}")


def called(calls: list[dict[str, Any]], content: Any = None) -> Message:
    """Returns a message of the assistant that calls tools, perhaps after a text.

    Raises:
        Refused: that text is not text.
    """
    if content is None:
        content = ""
    if not isinstance(content, str):
        raise Refused("malformed", "an assistant message is not text")
    return {
        "role": "assistant",
        "content": unicode_text(content.strip(), "a message") or None,
        "tool_calls": calls,
    }


def replied(content: Any) -> Message:
    """Returns a tool's reply: text, or a value that becomes JSON. Raises Refused if there is none."""
    if content is None:
        raise Refused("malformed", "a tool's reply is null")
    text = content if isinstance(content, str) else strict_json(content, "a tool's reply")
    return {"role": "tool", "content": unicode_text(text, "a tool's reply")}


def conversation_row(messages: list[Message], tools: Tools) -> dict[str, Any]:
    """Returns the columns of a conversation that its source decides.

    A call may have an `id`, and a reply the `tool_call_id` that it answers; replies without are in the order of the
    calls, and all are put into it. What follows the assistant's last message is left out, since nothing is learnt from
    it.

    Raises:
        Refused: no message of the assistant is left, the first one is the assistant's, a call fits no tool, or calls
            and replies do not correspond.
    """
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if not any(message["role"] == "user" for message in messages):
        raise Refused("malformed", "no assistant message that answers a user")
    if messages[0]["role"] == "assistant":
        raise Refused("malformed", "the first message is the assistant's")
    calls = turn = 0
    waiting: dict[str, int] = {}
    placed: list[tuple[tuple[int, int], Message]] = []
    for message in messages:
        if message["role"] == "tool":
            number = _answered(message, waiting)
            message["tool_call_id"] = f"call_{number}"
            placed.append(((turn, number), message))
            continue
        if waiting:
            raise Refused("malformed", "a call has no reply, but the conversation continues")
        turn = len(placed)
        placed.append(((turn, 0), message))
        for each in message.get("tool_calls") or ():
            calls += 1
            given = each.get("id") or f"call_{calls}"
            if given in waiting:
                raise Refused("malformed", f"two calls have the id {given!r}")
            waiting[given] = calls
            each["id"] = f"call_{calls}"
            function = each["function"]
            tools.check(function["name"], function["arguments"])
            function["arguments"] = strict_json(function["arguments"], "a call")
    ordered = [message for _, message in sorted(placed, key=lambda each: each[0])]
    return {"messages": ordered, "tools": tools.text}


def _answered(reply: Message, waiting: dict[str, int]) -> int:
    """The number of the call that a tool's reply answers, taken out of those that wait for theirs."""
    if not waiting:
        raise Refused(
            "malformed", "a tool's reply without a call in tool_calls, or in tags that end a message"
        )
    given = reply.get("tool_call_id") or next(iter(waiting))
    if given not in waiting:
        raise Refused("malformed", f"a tool's reply to {given!r}, which is no open call")
    return waiting.pop(given)
