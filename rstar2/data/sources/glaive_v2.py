"""Glaive's function calls, version 2. Each row has a whole chat as one text, with calls as `<functioncall> {…}`."""

from __future__ import annotations

import json
import re
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
from rstar2.data.rows import Refused, parsed, text_of
from rstar2.data.source import HubSet, Row, Source

_SPEAKER = re.compile(r"\n\s*(USER|ASSISTANT|FUNCTION RESPONSE):")
_CALL = "<functioncall>"
_ARGUMENTS = re.compile(
    r"""\{\s*"name":\s*"(?P<name>[^"]+)",\s*"arguments":\s*'(?P<arguments>.*)'\s*\}""", re.DOTALL
)
_END = "<|endoftext|>"
_USUAL_WORDS = re.compile(
    r"^\s*SYSTEM:|You are a helpful assistant with access to (?:the following|these) functions(?:\.| -)?"
    r"|Use them if required -"
    r"|You are a helpful assistant, with no access to external functions\."
)
"""Matches the standard sentences of a system text about its functions."""


def _read(row: Row) -> dict[str, Any]:
    tools, instructions = _system(text_of(row, "system"))
    parts = _SPEAKER.split("\n" + text_of(row, "chat"))
    if parts[0].strip() or len(parts) < 3:
        raise Refused("malformed", "chat does not begin with USER:")
    messages: list[Message] = [text_message("system", instructions)] if instructions else []
    for speaker, text in zip(parts[1::2], parts[2::2], strict=True):
        text = text.replace(_END, "").strip()
        if speaker == "FUNCTION RESPONSE":
            messages.append(tool_reply(text))
        elif speaker == "ASSISTANT" and _CALL in text:
            before, *calls = text.split(_CALL)
            messages.append(call_message([_one_call(each.strip()) for each in calls], before))
        elif speaker == "ASSISTANT":
            messages.append(prose_message(text, tools))
        else:
            messages.append(text_message(speaker.lower(), text))
    return conversation_row(messages, tools)


def _one_call(text: str) -> dict[str, Any]:
    if match := _ARGUMENTS.fullmatch(text):
        return call(match["name"], match["arguments"].replace("\\'", "'"))
    try:
        value = parsed(text)
    except ValueError as error:
        raise Refused(BAD_CALL, f"not JSON: {error}: {text[:80]}") from error
    if not isinstance(value, dict):
        raise Refused(BAD_CALL, f"not an object with name and arguments: {text[:80]}")
    return call(value.get("name"), value.get("arguments", {}))


@lru_cache(KEPT_TOOLS)
def _system(text: str) -> tuple[Tools, str]:
    """Returns the functions in a system text, and the text's instructions that do not introduce the functions.

    The functions are JSON objects that follow each other.
    """
    functions: list[Any] = []
    rest = ""
    decoder = json.JSONDecoder(strict=False)
    end = 0
    while (at := text.find("{", end)) >= 0:
        rest += text[end:at] if functions else without_introduction(text[:at])
        try:
            function, end = decoder.raw_decode(text, at)
        except ValueError as error:
            raise Refused("malformed", f"a function in system is not JSON: {error}") from error
        functions.append(function)
    if not functions:
        refuse_unread_tools(text, _USUAL_WORDS.sub("", text))
    rest = _USUAL_WORDS.sub("", rest + text[end:])
    return Tools(functions), paragraphs(rest)


SOURCE = Source(
    kind="conversations",
    family="function-calls",
    licence="Apache-2.0 (its card; not checked)",
    columns=(("system", "chat"),),
    read=_read,
    rows="112,960",
    download="271 MB",
    disk="about 550 MB",
    hub=(HubSet("glaiveai/glaive-function-calling-v2", None, "train"),),
    left_out="the standard sentences of system texts about their functions",
    paper="101K",
)
