"""Magicoder's programming tasks in Python, the solution's code moved into a call of the Python tool."""

from __future__ import annotations

import re
from typing import Any

from rstar2.data.conversations import Tools, call, called, conversation_row, said
from rstar2.data.rows import Refused, text_of
from rstar2.data.source import HubSet, Row, Source
from rstar2.loop.tools.python_code_with_standard_io import NAME, python_code_with_standard_io

_BLOCK = re.compile(r"```(\w*)[^\n]*\n(.*?)\n?```", re.DOTALL)
_TOOLS = Tools([python_code_with_standard_io.schema])


def _read(row: Row) -> dict[str, Any]:
    task, solution = ("problem", "solution") if "problem" in row else ("instruction", "response")
    if "lang" in row and row["lang"] != "python":
        raise Refused("not Python", f"lang is {row['lang']}")
    text = text_of(row, solution)
    block = _BLOCK.search(text)
    if block is None:
        raise Refused("no code", "the solution has no block of code")
    # Without a language it is Python where `lang` says so.
    if block[1].lower() not in ("python", "py", "python3") and not (block[1] == "" and "lang" in row):
        raise Refused("not Python", f"the code is {block[1] or 'in no named language'}")
    if not block[2].strip():
        raise Refused("no code", "the block of code is empty")
    program = call(NAME, {"code": block[2], "input": ""})
    messages = [said("user", row.get(task)), called([program], text[: block.start()])]
    return conversation_row(messages, _TOOLS)


SOURCE = Source(
    kind="conversations",
    family="code",
    licence="MIT and Apache-2.0 (their cards; not checked)",
    columns=(("problem", "solution", "lang"), ("instruction", "response")),
    read=_read,
    rows="75K and 110K, of all languages",
    download="about 430 MB, estimated",
    disk="about 900 MB",
    hub=(
        HubSet("ise-uiuc/Magicoder-OSS-Instruct-75K", None, "train"),
        HubSet("ise-uiuc/Magicoder-Evol-Instruct-110K", None, "train"),
    ),
    paper="48K, rewritten as JSON calls",
)
