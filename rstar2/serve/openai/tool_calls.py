"""The tool calls in the text of a turn, as OpenAI's chat format has them, while it is generated."""

from __future__ import annotations

import json
import uuid
from typing import Any

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class ToolCallSplitter:
    """Parts text that arrives in pieces into content and calls; a call that is no JSON stays content."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self._pending = ""

    def add(self, text: str) -> str:
        """The content that can be shown now; calls that are complete are in `calls`."""
        self._pending += text
        shown = ""
        while _OPEN in self._pending:
            before, _, rest = self._pending.partition(_OPEN)
            shown += before
            self._pending = _OPEN + rest
            body, closed, after = rest.partition(_CLOSE)
            if not closed:
                return shown
            shown += self._call(body, f"{_OPEN}{body}{_CLOSE}")
            self._pending = after
        kept = next((n for n in range(len(_OPEN) - 1, 0, -1) if self._pending.endswith(_OPEN[:n])), 0)
        ready = len(self._pending) - kept
        shown, self._pending = shown + self._pending[:ready], self._pending[ready:]
        return shown

    def end(self) -> str:
        """The content that is left; the end of the turn closes a call."""
        rest, self._pending = self._pending, ""
        return self._call(rest.removeprefix(_OPEN), rest) if rest.startswith(_OPEN) else rest

    def _call(self, body: str, written: str) -> str:
        """Add a call; the text as it was written where it is none."""
        try:
            call = json.loads(body)
            function = {
                "name": str(call["name"]),
                "arguments": json.dumps(call["arguments"], ensure_ascii=False),
            }
        except (ValueError, LookupError, TypeError, RecursionError):
            return written
        self.calls.append({"id": f"call_{uuid.uuid4().hex[:24]}", "type": "function", "function": function})
        return ""
