"""Splits the text of a model's turn into thought, tool calls with their results, answer and other text."""

from __future__ import annotations

from typing import Any

from rstar2.loop.trace import ToolCall, Turn
from rstar2.report.formulas import with_formulas

Part = dict[str, Any]
"""A JSON-able part of a turn. A part whose `kind` is thought, text or answer has `text` (a RichText). A part whose
`kind` is call has `code`, `input` (standard input), `status`, `output` and, if the call ran, `wall_s` in seconds."""


def turn_parts(turn: Turn, chat: bool = False) -> list[Part]:
    """The parts of one turn, in order.

    In traces of earlier versions, text before the first tag counts as thought. In a server's `chat` reply, which may
    have no thought, text before the first tag counts as thought only if that tag ends a thought.
    """
    parts: list[Part] = []
    calls = iter(turn.calls)
    for kind, start, end in turn.read_parts(thinking=not chat):
        text = turn.text[start:end]
        if kind == "call":
            parts.append(_call_part(next(calls, None), text))
        elif text.strip():
            parts.append({"kind": kind, "text": with_formulas(text.strip("\n"))})
    return parts


def _call_part(call: ToolCall | None, written: str) -> Part:
    """The part for a call and its result. `call` is None if the rollout ended before the call ran."""
    if call is None:
        return {"kind": "call", "code": written, "input": "", "status": "not run", "output": ""}
    arguments = call.arguments or {}
    return {
        "kind": "call",
        "code": written if call.code is None else call.code,
        "input": str(arguments.get("input") or ""),
        "status": call.status,
        "output": call.output,
        "wall_s": round(call.wall_s, 3),
    }
