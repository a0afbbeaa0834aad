"""A turn's text, cut into what a reader tells apart: thought, code with its result, answer, the rest."""

from __future__ import annotations

import re
from typing import Any

from rstar2.trace import ToolCall, Trace, Turn

_TAGS = re.compile(r"(<reason>|</reason>|<answer>|</answer>|<tool_call>.*?(?:</tool_call>|\Z))", re.DOTALL)
_KINDS = {"<reason>": "thought", "</reason>": "text", "<answer>": "answer", "</answer>": "text"}

Part = dict[str, Any]
"""JSON-able: `kind` is thought, text, answer or call; a call has code, input, status, output and wall_s."""


def trace_parts(trace: Trace) -> list[list[Part]]:
    """The parts of each turn."""
    return [turn_parts(turn) for turn in trace.turns]


def turn_parts(turn: Turn) -> list[Part]:
    """The parts of one turn, in order. What stands before any tag is thought."""
    parts: list[Part] = []
    calls = iter(turn.calls)
    kind = "thought"
    for piece in _TAGS.split(turn.text):
        if piece in _KINDS:
            kind = _KINDS[piece]
        elif piece.startswith("<tool_call>"):
            parts.append(_call(next(calls, None), piece))
        elif piece.strip():
            parts.append({"kind": kind, "text": piece.strip("\n")})
    return parts


def _call(call: ToolCall | None, written: str) -> Part:
    """A call and its result; a call that the rollout's end left unanswered has no status."""
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
