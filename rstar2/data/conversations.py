"""Converts the tools, calls and turns of a source to messages in the form of OpenAI's API, and checks every call.

The names that sources use for types, such as `dict`, `float` or `list of strings`, are converted to JSON Schema. A row
is refused if a call does not match the schema of its tool.
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
"""Keywords of JSON Schema whose value is an object from names to schemas."""
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
"""Keywords of JSON Schema whose value is a list of schemas."""
_SCHEMAS = frozenset(
    {"items", "contains", "not", "if", "then", "else", "additionalProperties", "propertyNames"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
"""Keywords of JSON Schema whose value is a schema."""
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
"""Keywords of JSON Schema whose value is not a schema."""

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
"""Matches the start of a tool call, in the tags, JSON or brackets that any source or model family writes."""
_ASCII_BRACKETS = str.maketrans("（）［］｛｝：＝", "()[]{}:=")

KEPT_TOOLS = 4096
"""Maximum number of parsed tool lists that a source caches. Rows of a source often have the same tool list."""


class Tools:
    """The tools of a conversation.

    The schemas have the form `{name, description, parameters}`, or the form of OpenAI's API.

    Raises:
        Refused: a schema has neither the form `{name, description, parameters}` nor the form of OpenAI's API.
    """

    def __init__(self, schemas: Iterable[Any] = ()) -> None:
        listed = [_tool(schema) for schema in schemas]
        self.text = strict_json(listed, "the tools")
        """The tools as JSON text, in the form of OpenAI's API."""
        self._parameters = {tool["function"]["name"]: tool["function"]["parameters"] for tool in listed}
        self._validators: dict[str, Any] = {}

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._parameters)

    def check(self, name: str, arguments: Mapping[str, Any]) -> None:
        """Raise Refused if the tool does not exist, its schema is invalid, or the arguments do not match the schema."""
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
    """Refuse a `$ref` to another document, because a row must not make this machine fetch a document."""
    raise ValueError(f"$ref {uri} points outside the tool's schema")


def _tool(schema: Any) -> dict[str, Any]:
    function = schema.get("function", schema) if isinstance(schema, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise Refused("malformed", f"a tool has no name: {json.dumps(schema, default=str)[:80]}")
    parameters = function.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise Refused("malformed", f"the parameters of {function['name']} are not an object")
    return {
        "type": "function",
        "function": {
            "name": function["name"],
            "description": str(function.get("description") or ""),
            # This order of the keys is that of the format, so that a tool of rstar2 has the same text in both.
            "parameters": {"type": "object", "properties": {}} | _schema(parameters) | {"type": "object"},
        },
    }


def _schema(node: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a source's schema to JSON Schema. Unknown types and invalid parts are left out."""
    converted: dict[str, Any] = {}
    for key, value in node.items():
        if key == "type":
            kinds = [_type(kind) for kind in (value if isinstance(value, list) else [value])]
            if None not in kinds:
                converted["type"] = kinds if isinstance(value, list) else kinds[0]
        elif key in _OF_SCHEMAS and isinstance(value, dict):
            converted[key] = {name: _subschema(part) for name, part in value.items()}
        elif key in _SCHEMAS:
            converted[key] = _subschema(value)
        elif key in _LISTS and isinstance(value, list) and value:
            converted[key] = [_subschema(part) for part in value]
        elif key == "required":
            if isinstance(value, list):
                converted[key] = [name for name in dict.fromkeys(value) if isinstance(name, str)]
        elif key == "enum":
            if isinstance(value, list) and value:
                converted[key] = value
        elif key in ("description", "default") or (
            key in _VALUES and jsonschema_rs.meta.is_valid({key: value})
        ):
            converted[key] = value
    return converted


def _subschema(value: Any) -> Any:
    """Converts a schema inside another schema. A value that is not a schema becomes the empty schema, which accepts
    everything."""
    return _schema(value) if isinstance(value, dict) else value if isinstance(value, bool) else {}


def _type(name: Any) -> str | None:
    """Returns the JSON type for the name that a source uses for a type. Returns None if the name means any type."""
    word = str(name).lower()
    word = _TYPES.get(word, word)
    return word if word in _JSON_TYPES else None


def call(name: Any, arguments: Any) -> dict[str, Any]:
    """Returns a tool call. `conversation_row` later checks the call's arguments and writes the arguments as text.

    Raises:
        Refused: `arguments` is neither an object nor the JSON text of an object, or the name is not text.
    """
    if isinstance(arguments, str):
        try:
            arguments = parsed(arguments)
        except ValueError as error:
            raise Refused(BAD_CALL, f"{name}: its arguments are not JSON: {error}") from error
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise Refused(BAD_CALL, f"{name}: its arguments are not an object")
    return {"type": "function", "function": {"name": name, "arguments": arguments}}


def text_message(role: str, content: Any) -> Message:
    """Returns a message that contains only text, from the system, the user or the assistant.

    Raises Refused if the content is not text, or is empty.
    """
    if not isinstance(content, str) or not content.strip():
        fault = "empty" if isinstance(content, str) else "not text"
        raise Refused("malformed", f"a message of the {role} is {fault}")
    return {"role": role, "content": unicode_text(content.strip(), "a message")}


def paragraphs(text: str) -> str:
    """Returns the text with exactly one empty line between its paragraphs."""
    return _GAP.sub("\n\n", text).strip()


def without_introduction(text: str) -> str:
    """Returns the text before a list of functions, without the sentence that introduces the list."""
    return _INTRODUCTION.sub("", text)


def without_empty_thought(answer: Any) -> Any:
    """Returns an answer without the empty thought at its start. Models write an empty thought, such as
    `<think></think>`, if reasoning is off.

    Raises:
        Refused: the answer contains a thought that is not empty.
    """
    if not isinstance(answer, str):
        return answer
    empty = _EMPTY_THOUGHT.match(answer)
    text = answer[empty.end() :] if empty else answer
    if tag := THOUGHT_TAG.search(text):
        raise Refused("reasoning", f"the answer contains {tag[0]}, although reasoning is off")
    return text


def prose_message(content: Any, tools: Tools) -> Message:
    """Returns a message of the assistant without a tool call.

    Raises:
        Refused: the content is not text, it is empty, or it looks like a call. SFT would teach such a call as prose.
    """
    message = text_message("assistant", content)
    if tools.names and (written := _call_in(message["content"], tools)):
        raise Refused(BAD_CALL, f"a call in an unknown form: {written}")
    return message


def _call_in(text: str, tools: Tools) -> str:
    """Finds a passage in a text that looks like a call of one of the tools, and returns the passage's first 80
    characters.

    Returns an empty text if no passage looks like a call.
    """
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
    """Raise Refused if a system text mentions tools. Call this function if no tools could be read from the text. A
    sentence such as 'There are no tools' does not count as a mention.

    The message of the error quotes `rest`, which is a part of the system text.
    """
    if _NAMED_TOOLS.search(_DENIAL.sub("", system)):
        quoted = " ".join(rest.split())[:80]
        raise Refused("unreadable tools", f"system mentions functions, but none could be read: {quoted}")


def call_message(calls: list[dict[str, Any]], content: Any = None) -> Message:
    """Returns a message of the assistant with tool calls, optionally after a text.

    Raises:
        Refused: `content` is not text.
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


def tool_reply(content: Any) -> Message:
    """Returns a tool's reply. A value that is not text becomes JSON text. Raises Refused if the value is None."""
    if content is None:
        raise Refused("malformed", "a tool's reply is null")
    text = content if isinstance(content, str) else strict_json(content, "a tool's reply")
    return {"role": "tool", "content": unicode_text(text, "a tool's reply")}


def conversation_row(messages: list[Message], tools: Tools) -> dict[str, Any]:
    """Returns the columns `messages` and `tools` of a conversation.

    A tool's reply may name the call that it answers: the reply's `tool_call_id` is then the `id` of the call. A reply
    without `tool_call_id` answers the earliest call that has no reply yet. The returned replies are always in the order
    of the calls. Messages after the assistant's last message are left out, because SFT learns nothing from them.

    Raises:
        Refused: no message of the assistant answers a user, the assistant wrote the first message, a call does not
            match a tool, or calls and replies do not correspond.
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
            number = _call_number(message, waiting)
            message["tool_call_id"] = f"call_{number}"
            placed.append(((turn, number), message))
            continue
        if waiting:
            raise Refused("malformed", "a call has no reply, but the conversation continues")
        turn = len(placed)
        placed.append(((turn, 0), message))
        for each in message.get("tool_calls") or ():
            calls += 1
            call_id = each.get("id") or f"call_{calls}"
            if call_id in waiting:
                raise Refused("malformed", f"two calls have the id {call_id!r}")
            waiting[call_id] = calls
            each["id"] = f"call_{calls}"
            function = each["function"]
            tools.check(function["name"], function["arguments"])
            function["arguments"] = strict_json(function["arguments"], "a call")
    ordered = [message for _, message in sorted(placed, key=lambda each: each[0])]
    return {"messages": ordered, "tools": tools.text}


def _call_number(reply: Message, waiting: dict[str, int]) -> int:
    """Finds the call that a tool's reply answers. Removes the call from `waiting`, and returns its number."""
    if not waiting:
        raise Refused(
            "malformed",
            "a tool's reply has no call, neither in tool_calls nor in tags at the end of a message",
        )
    call_id = reply.get("tool_call_id") or next(iter(waiting))
    if call_id not in waiting:
        raise Refused(
            "malformed",
            f"a tool's reply names the call {call_id!r}, but this call is not waiting for a reply",
        )
    return waiting.pop(call_id)
