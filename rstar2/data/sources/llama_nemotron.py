"""Llama-Nemotron's chats without reasoning."""

from __future__ import annotations

import re
from typing import Any

from rstar2.data.conversations import (
    Message,
    Tools,
    conversation_row,
    paragraphs,
    text_message,
    without_empty_thought,
)
from rstar2.data.rows import Refused, list_of, text_of, unicode_text
from rstar2.data.source import HubSet, Row, Source

_SWITCH = re.compile(r"\s*\bdetailed thinking (?P<state>on|off)\b[.:]?\s*", re.IGNORECASE)
"""Matches the sentence of a system text that switches the reasoning of Nemotron models on or off."""


def _read(row: Row) -> dict[str, Any]:
    if row.get("reasoning") != "off":
        raise Refused("reasoning", f"reasoning is {row.get('reasoning')}")
    if row.get("category", "chat") != "chat":
        raise Refused("not chat", f"category is {row['category']}")
    system = row.get("system_prompt")
    messages = _system(system) if isinstance(system, str) else []
    for message in list_of(row, "input"):
        role = message.get("role") if isinstance(message, dict) else None
        content = message.get("content") if isinstance(message, dict) else None
        if role == "system" and isinstance(content, str):
            messages += [each for each in _system(content) if each not in messages]
        elif role in ("system", "user"):
            messages.append(text_message(role, content))
        elif role == "assistant":
            messages.append(text_message(role, without_empty_thought(content)))
        else:
            raise Refused("malformed", f"a message has role {role!r}")
    messages.append(text_message("assistant", without_empty_thought(text_of(row, "output"))))
    licence = row.get("license")
    columns = {"licence": unicode_text(licence, "license")} if isinstance(licence, str) and licence else {}
    return {**conversation_row(messages, Tools()), **columns}


def _system(text: str) -> list[Message]:
    """Returns a system message without the sentence that switches reasoning off.

    The result is empty if the text contains nothing else.

    Raises:
        Refused: the text switches the reasoning on.
    """
    if any(switch["state"].lower() == "on" for switch in _SWITCH.finditer(text)):
        raise Refused("reasoning", "a system text says 'detailed thinking on'")
    rest = paragraphs(_SWITCH.sub("\n\n", text))
    return [text_message("system", rest)] if rest else []


SOURCE = Source(
    kind="conversations",
    family="chat",
    licence="per row, in the column license",
    columns=(("input", "output", "reasoning"),),
    more=("category", "license", "system_prompt"),
    read=_read,
    rows="39,792 in its split chat, with and without reasoning",
    download="about 300 MB of the set's 33M rows, estimated",
    disk="about 600 MB",
    hub=(HubSet("nvidia/Llama-Nemotron-Post-Training-Dataset", "SFT", "chat"),),
    left_out="'detailed thinking off' in system texts, and empty thoughts such as <think></think>",
    rewritten="prompts",
    paper="27K, with prompts that o4-mini rewrote",
)
