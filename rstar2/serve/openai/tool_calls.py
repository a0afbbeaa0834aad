"""The tool calls in the text of a turn, as OpenAI's chat format has them, while it is generated."""

from __future__ import annotations

import json
import uuid
from typing import Any

from rstar2.loop.turns.tags import CLOSE, OPEN, begins_object, read_call


class ToolCallSplitter:
    """Parts text that arrives in pieces into content and calls; a call that is no JSON stays content."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self._pending = ""

    def add(self, text: str) -> str:
        """The content that can be shown now; calls that are complete are in `calls`."""
        self._pending += text
        shown = ""
        while OPEN in self._pending:
            before, _, rest = self._pending.partition(OPEN)
            shown += before
            self._pending = OPEN + rest
            if begins_object(rest) is False:
                shown, self._pending = shown + OPEN, rest
                continue
            body, closed, after = rest.partition(CLOSE)
            if not closed:
                return shown
            shown += self._call(f"{OPEN}{body}{CLOSE}")
            self._pending = after
        kept = next((n for n in range(len(OPEN) - 1, 0, -1) if self._pending.endswith(OPEN[:n])), 0)
        ready = len(self._pending) - kept
        shown, self._pending = shown + self._pending[:ready], self._pending[ready:]
        return shown

    def end(self) -> str:
        """The content that is left; the end of the turn closes a call."""
        rest, self._pending = self._pending, ""
        return self._call(rest) if rest.startswith(OPEN) else rest

    def _call(self, written: str) -> str:
        """Add a call; returns the text as it was written if it is none."""
        call = read_call(written)
        if call.fault:
            return written
        function = {"name": call.name, "arguments": json.dumps(call.arguments, ensure_ascii=False)}
        self.calls.append({"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function})
        return ""
