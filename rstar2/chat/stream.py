"""Turns streamed token ids into what a person is shown: text as it is generated, and whole tool calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rstar2.prompts import ChatCodec

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


@dataclass(frozen=True)
class Piece:
    """Something to show: text, or the whole body of a tool call."""

    kind: Literal["text", "call"]
    content: str


class TextStream:
    """Decodes token ids as they are generated, and withholds what is not yet a whole character."""

    def __init__(self, codec: ChatCodec) -> None:
        self._codec = codec
        self._ids: list[int] = []
        self._shown = 0
        """How many ids are in the text given so far."""
        self._from = 0
        """Where decoding starts: a few ids earlier, because a token's text can hang on the one before."""

    def add(self, token_ids: list[int]) -> str:
        """The text that the new ids complete."""
        self._ids += token_ids
        before = self._codec.decode(self._ids[self._from : self._shown])
        now = self._codec.decode(self._ids[self._from :])
        if now.endswith("\ufffd") or len(now) <= len(before):
            return ""
        self._from, self._shown = self._shown, len(self._ids)
        return now[len(before) :]


class CallSplitter:
    """Splits text that arrives in pieces of any size into words and tool calls."""

    def __init__(self) -> None:
        self._pending = ""
        self._in_call = False

    def add(self, text: str) -> list[Piece]:
        """What can be shown now; the start of a tag and an unfinished call are withheld."""
        self._pending += text
        pieces: list[Piece] = []
        while True:
            tag = _CLOSE if self._in_call else _OPEN
            before, found, after = self._pending.partition(tag)
            if not found:
                break
            pieces += self._piece(before)
            self._pending = after
            self._in_call = not self._in_call
        if not self._in_call:
            ready = len(self._pending) - _tag_start(self._pending)
            pieces += self._piece(self._pending[:ready])
            self._pending = self._pending[ready:]
        return pieces

    def end(self) -> list[Piece]:
        """What is left at the end of a turn; the splitter is then ready for the next."""
        pieces = self._piece(self._pending)
        self._pending, self._in_call = "", False
        return pieces

    def _piece(self, content: str) -> list[Piece]:
        return [Piece("call" if self._in_call else "text", content)] if content else []


def _tag_start(text: str) -> int:
    """How many characters at the end of `text` may be the start of a call."""
    return next((size for size in range(len(_OPEN) - 1, 0, -1) if text.endswith(_OPEN[:size])), 0)
