"""Splits the text of a model's turn into thought, tool calls with their results, answer and other text."""

from __future__ import annotations

import re
from typing import Any

from rstar2.report.formulas import with_formulas
from rstar2.trace import ToolCall, Turn

_TAGS = re.compile(r"(<reason>|</reason>|<answer>|</answer>|<tool_call>.*?(?:</tool_call>|\Z))", re.DOTALL)
_KINDS = {"<reason>": "thought", "</reason>": "text", "<answer>": "answer", "</answer>": "text"}

Part = dict[str, Any]
"""JSON-able. `kind` is thought, text or answer, with `text`, a RichText; or call, with `code`, `input` (its
standard input), `status`, `output` and, where it ran, `wall_s` in seconds."""


def turn_parts(turn: Turn) -> list[Part]:
    """The parts of one turn, in order. Text before any tag is thought."""
    parts: list[Part] = []
    calls = iter(turn.calls)
    kind = "thought"
    for piece in _TAGS.split(turn.text):
        if piece in _KINDS:
            kind = _KINDS[piece]
        elif piece.startswith("<tool_call>"):
            parts.append(_call_part(next(calls, None), piece))
        elif piece.strip():
            parts.append({"kind": kind, "text": with_formulas(piece.strip("\n"))})
    return parts


def _call_part(call: ToolCall | None, written: str) -> Part:
    """A call and its result. A call that was `written` but not run before the rollout ended has no `call`."""
    if call is None:
        return {"kind": "call", "code": written, "input": "", "status": "not run", "output": ""}
    arguments = call.arguments or {}
    code = arguments.get("code")
    return {
        "kind": "call",
        "code": code if isinstance(code, str) else written,
        "input": str(arguments.get("input") or ""),
        "status": call.status,
        "output": call.output,
        "wall_s": round(call.wall_s, 3),
    }
