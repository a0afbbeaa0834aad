"""Splits the text of a model's turn into thought, tool calls with their results, answer and other text."""

from __future__ import annotations

import re
from typing import Any

from rstar2.loop.formats.calls import REASONING_ENDS, parted
from rstar2.loop.trace import ToolCall, Turn
from rstar2.report.formulas import with_formulas

_KINDS = {
    "<reason>": "thought",
    "</reason>": "text",
    "<think>": "thought",
    "</think>": "text",
    "<answer>": "answer",
    "</answer>": "text",
}
_TAGS = re.compile(f"({'|'.join(_KINDS)})")

Part = dict[str, Any]
"""JSON-able. `kind` is thought, text or answer, with `text`, a RichText; or call, with `code`, `input` (its
standard input), `status`, `output` and, where it ran, `wall_s` in seconds."""


def turn_parts(turn: Turn, chat: bool = False) -> list[Part]:
    """The parts of one turn, in order.

    Text before any tag is thought, but for a `chat` reply of a server, which need not think: there it is where its end
    comes first, since a template that begins the thought does not send its tag.
    """
    parts: list[Part] = []
    calls = iter(turn.calls)
    texts = parted(turn.text)
    first = next((tag for text in texts[::2] for tag in _TAGS.findall(text)), "")
    kind = "text" if chat and first not in REASONING_ENDS else "thought"
    for place, text in enumerate(texts):
        if place % 2:
            parts.append(_call_part(next(calls, None), text))
            continue
        for piece in _TAGS.split(text):
            if piece in _KINDS:
                kind = _KINDS[piece]
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
