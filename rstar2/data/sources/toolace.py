"""ToolACE: function calls of the form `[Name(arg=value), …]`. The system text lists the functions."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from rstar2.data.conversations import (
    BAD_CALL,
    KEPT_TOOLS,
    Message,
    Tools,
    call,
    call_message,
    conversation_row,
    paragraphs,
    prose_message,
    refuse_unread_tools,
    text_message,
    tool_reply,
    without_introduction,
)
from rstar2.data.rows import Refused, list_of, parsed, strict_json, text_of
from rstar2.data.source import HubSet, Row, Source

_JSON = re.compile(r"\[\s*[{\]]|\{\s*\"")
"""Matches the start of a list of objects, an empty list, or an object."""
_NEXT_OBJECT = re.compile(r"[\s,]*(?=\{\s*\")")
_INSTRUCTIONS = re.compile(
    r"You are an expert in composing functions\.|You are given a question and a set of possible functions\."
    r"|Based on the question, you will need to make one or more function/tool calls to achieve the purpose\."
    r"|If none of the functions can be used, (?:please )?point it out\."
    r"|If the given question lacks the parameters required by the function, (?:please )?also point it out\."
    r"|You should only return the function calls? in (?:the )?tools? calls? sections?\."
    r"|Here is a list of functions (?:in JSON format )?that you can invoke[:.]?"
    r"|Should you decide to return the function call\(s\)[.,]?\s*put it in the format of \[func\d?[^\n]*\]\.?"
    r"|NO other text MUST be included\.?",
    re.IGNORECASE,
)
"""Matches sentences about the functions and the syntax of calls. These sentences are removed, because they are wrong if
the column `tools` lists the functions."""
_CALL_FORM = re.compile(
    r"[\[<({]\s*func\w*\s*\([^\n]*|\[\s*\w+\((?:params?_?name|name|arg\w*)\s*=[^\n]*|\bparams?_?name\d?\s*=[^\n]*"
    r"|Should you decide to return the function call[^\n]*",
    re.IGNORECASE,
)
_CALLS = re.compile(r"(\[.*\)\s*\])[\s.;,]*", re.DOTALL)
_WORDS = {"true": True, "false": False, "null": None}
_CLOSES = {")": "(", "]": "[", "}": "{"}


def _read(row: Row) -> dict[str, Any]:
    tools, instructions = _system(text_of(row, "system"))
    messages: list[Message] = [text_message("system", instructions)] if instructions else []
    for turn in list_of(row, "conversations"):
        if not isinstance(turn, dict):
            raise Refused("malformed", "a turn is not an object")
        role, value = turn.get("from"), turn.get("value")
        if role == "tool":
            messages += _replies(value, messages)
        elif role == "assistant" and isinstance(value, str):
            messages.append(_answer(value.strip(), tools))
        elif role in ("user", "assistant"):
            messages.append(text_message(role, value))
        else:
            raise Refused("malformed", f"a turn is from {role!r}")
    return conversation_row(messages, tools)


@lru_cache(KEPT_TOOLS)
def _system(text: str) -> tuple[Tools, str]:
    """Returns the functions in a system text, and the text's instructions without the sentences about functions and
    calls."""
    listed = _functions(text)
    functions: list[Any] = []
    if listed is None:
        refuse_unread_tools(text, _INSTRUCTIONS.sub("", text))
    else:
        functions, start, end = listed
        text = f"{without_introduction(text[:start])}\n{text[end:].removeprefix('.')}"
    rest = _INSTRUCTIONS.sub("", text)
    if form := _CALL_FORM.search(rest):
        raise Refused(
            "another call format", f"the system text asks for calls in another form: {form[0][:80]}"
        )
    return Tools(functions), paragraphs(rest)


def _functions(text: str) -> tuple[list[Any], int, int] | None:
    """Returns the functions in a system text, and the start and end of their JSON. Returns None if the text contains no
    functions in JSON.

    The JSON is a list of objects, a sequence of objects with a name, or an object that contains a list of tools.
    """
    decoder = json.JSONDecoder(strict=False)
    at = 0
    try:
        while start := _JSON.search(text, at):
            value, at = decoder.raw_decode(text, start.start())
            listed = value.get("tools", value.get("functions")) if isinstance(value, dict) else value
            if isinstance(listed, list):
                return listed, start.start(), at
            if "name" in value or "function" in value:
                functions = [value]
                while following := _NEXT_OBJECT.match(text, at):
                    value, at = decoder.raw_decode(text, following.end())
                    functions.append(value)
                return functions, start.start(), at
    except ValueError as error:
        raise Refused("malformed", f"the functions in system are not JSON: {error}") from error
    return None


def _answer(text: str, tools: Tools) -> Message:
    """Returns a message of the assistant: calls if the text is a list of calls, and otherwise prose.

    Raises:
        Refused: a call has text around it, has no brackets, or has another form.
    """
    if calls := _CALLS.fullmatch(text):
        return call_message(list(_calls(calls[1])))
    for name in (each for each in tools.names if each in text):
        if re.search(rf"\[\s*{re.escape(name)}\s*\(", text):
            raise Refused(BAD_CALL, f"a call with text around it: {text[:80]}")
        if re.match(rf"{re.escape(name)}\s*\(", text):
            raise Refused(BAD_CALL, f"a call without brackets: {text[:80]}")
    return prose_message(text, tools)


def _calls(value: str) -> Iterator[dict[str, Any]]:
    for part in _split(value.strip()[1:-1]):
        name, opened, arguments = part.strip().partition("(")
        if not opened or not arguments.endswith(")"):
            raise Refused(BAD_CALL, f"not a call: {part.strip()[:80]}")
        pairs = [pair.partition("=") for pair in _split(arguments[:-1])]
        yield call(name.strip(), {key.strip(): _value(text.strip()) for key, _, text in pairs})


def _split(text: str) -> Iterator[str]:
    """Yields the parts of a text between commas. Commas inside brackets or quotes do not separate parts."""
    opened: list[str] = []
    quote, before, start, skip = "", "", 0, False
    for at, char in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = char == "\\"
            quote = "" if char == quote else quote
        elif char in "\"'" and before in "=[({,:":
            quote = char
        elif char in "([{":
            opened.append(char)
        elif char in _CLOSES:
            if not opened or opened.pop() != _CLOSES[char]:
                raise Refused(BAD_CALL, f"its brackets do not match: {text[:80]}")
        elif char == "," and not opened:
            yield text[start:at]
            start = at + 1
        before = char if not char.isspace() else before
    if opened or quote:
        raise Refused(BAD_CALL, f"a bracket or quote is not closed: {text[:80]}")
    if text[start:].strip():
        yield text[start:]


def _value(text: str) -> Any:
    """Parses a value in the syntax of JSON or Python."""
    if text in _WORDS:
        return _WORDS[text]
    try:
        return parsed(text)
    except ValueError:
        pass
    try:
        value = ast.literal_eval(text)
        json.dumps(value)
        return value
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise Refused(BAD_CALL, f"not a value: {text[:80]}") from error


def _replies(value: Any, messages: list[Message]) -> list[Message]:
    """Returns one reply per call of the last message. If there are several calls, `value` is a JSON list of the
    replies."""
    calls = len(messages[-1].get("tool_calls") or ()) if messages else 0
    if calls == 1:
        return [tool_reply(value)]
    try:
        parts = parsed(value) if isinstance(value, str) else value
    except ValueError:
        parts = None
    if not isinstance(parts, list) or len(parts) != calls or not calls:
        raise Refused("malformed", f"the number of replies is not the number of calls ({calls})")
    return [
        tool_reply(part if isinstance(part, str) else strict_json(part, "a tool's reply")) for part in parts
    ]


SOURCE = Source(
    kind="conversations",
    family="function-calls",
    licence="Apache-2.0 (its card; not checked)",
    columns=(("system", "conversations"),),
    read=_read,
    rows="11,300",
    left_out="the sentences of system texts about their functions and the form of calls",
    download="37 MB",
    disk="about 80 MB",
    hub=(HubSet("Team-ACE/ToolACE", None, "train"),),
    paper="11K",
)
