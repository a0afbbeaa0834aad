"""Splits the text of a model's turn into thought, tool calls with their results, answer and other text."""

from __future__ import annotations

from typing import Any

from rstar2.loop.trace import ToolCall, Turn
from rstar2.report.formulas import with_formulas

Part = dict[str, Any]
"""JSON-able. `kind` is thought, text or answer, with `text`, a RichText; or call, with `code`, `input` (its
standard input), `status`, `output` and, where it ran, `wall_s` in seconds."""


def turn_parts(turn: Turn, chat: bool = False) -> list[Part]:
    """The parts of one turn, in order.

    In traces of earlier versions, text before any tag is thought, but for a `chat` reply of a server, which need not
    think: there it is only if its end comes first.
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
    """A call and its result. A call that was `written` but not run before the rollout ended has no `call`."""
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
