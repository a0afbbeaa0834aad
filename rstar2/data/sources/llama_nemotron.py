"""Llama-Nemotron's chats without reasoning."""

from __future__ import annotations

import re
from typing import Any

from rstar2.data.conversations import Tools, conversation_row, said, without_empty_thought
from rstar2.data.rows import Refused, list_of, text_of, unicode_text
from rstar2.data.source import HubSet, Row, Source

_SWITCH = re.compile(r"\s*detailed thinking off\s*", re.IGNORECASE)
"""The system text that switches the reasoning of Nemotron models off."""


def _read(row: Row) -> dict[str, Any]:
    if row.get("reasoning") != "off":
        raise Refused("reasoning", f"reasoning is {row.get('reasoning')}")
    if row.get("category", "chat") != "chat":
        raise Refused("not chat", f"category is {row['category']}")
    messages = []
    system = row.get("system_prompt")
    if isinstance(system, str) and system.strip() and not _SWITCH.fullmatch(system):
        messages.append(said("system", system))
    for message in list_of(row, "input"):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("system", "user", "assistant"):
            raise Refused("malformed", f"a message has role {role!r}")
        content = message.get("content")
        messages.append(said(role, without_empty_thought(content) if role == "assistant" else content))
    messages.append(said("assistant", without_empty_thought(text_of(row, "output"))))
    licence = row.get("license")
    own = {"licence": unicode_text(licence, "license")} if isinstance(licence, str) and licence else {}
    return {**conversation_row(messages, Tools()), **own}


SOURCE = Source(
    kind="conversations",
    family="chat",
    licence="by row, in its column license",
    columns=(("input", "output", "reasoning"),),
    more=("category", "license", "system_prompt"),
    read=_read,
    rows="39,792 in its split chat, with and without reasoning",
    download="about 300 MB of the set's 33M rows, estimated",
    disk="about 600 MB",
    hub=(HubSet("nvidia/Llama-Nemotron-Post-Training-Dataset", "SFT", "chat"),),
    left_out="the system text 'detailed thinking off' and empty <think></think>",
    rewritten="prompts",
    paper="27K, the prompts rewritten with o4-mini",
)
