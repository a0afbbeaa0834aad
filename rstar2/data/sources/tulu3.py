"""Tulu 3's instructions with verifiable constraints, and their answers."""

from __future__ import annotations

from typing import Any

from rstar2.data.conversations import Tools, conversation_row, text_message
from rstar2.data.rows import Refused, list_of
from rstar2.data.source import HubSet, Row, Source


def _read(row: Row) -> dict[str, Any]:
    messages = []
    for message in list_of(row, "messages"):
        role = message.get("role") if isinstance(message, dict) else None
        if role not in ("system", "user", "assistant"):
            raise Refused("malformed", f"a message has role {role!r}")
        messages.append(text_message(role, message.get("content")))
    return conversation_row(messages, Tools())


SOURCE = Source(
    kind="conversations",
    family="instructions",
    licence="ODC-BY-1.0 (its card; not checked)",
    columns=(("messages",),),
    read=_read,
    download="39 MB",
    disk="about 80 MB",
    rows="29,980",
    hub=(HubSet("allenai/tulu-3-sft-personas-instruction-following", None, "train"),),
    rewritten="answers",
    paper="30K, with answers that o4-mini rewrote",
)
