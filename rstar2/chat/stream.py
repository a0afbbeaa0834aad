"""Turns streamed token ids into what a person is shown: text as it is generated, and whole tool calls."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from rstar2.prompts import ChatCodec

Kind = Literal["thought", "text", "call"]
_CLOSE = "</tool_call>"
_TAGS: dict[str, Kind] = {
    "<reason>": "thought",
    "</reason>": "text",
    "<answer>": "text",
    "</answer>": "text",
    "<tool_call>": "call",
    _CLOSE: "text",
    "<tool_response>": "text",
    "</tool_response>": "text",
}
"""What stands between a tag and the next one."""
_ANY_TAG = re.compile("|".join(map(re.escape, _TAGS)))


@dataclass(frozen=True)
class Piece:
    """Something to show: a thought, other text, or the whole body of a tool call."""

    kind: Kind
    content: str


def without_tags(text: str) -> str:
    """A text with no tag in it."""
    return _ANY_TAG.sub("", text)


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


class TagSplitter:
    """Splits a turn, which arrives in pieces of any size, at its tags, and leaves the tags out.

    Every turn begins inside `<reason>`, because that is where generation starts.
    """

    def __init__(self) -> None:
        self._pending = ""
        self._kind: Kind = "thought"

    def add(self, text: str) -> list[Piece]:
        """What can be shown now; the start of a tag and an unfinished call are withheld."""
        self._pending += text
        pieces: list[Piece] = []
        while tag := _first_tag(self._pending, [_CLOSE] if self._kind == "call" else _TAGS):
            before, _, self._pending = self._pending.partition(tag)
            pieces += self._piece(before)
            self._kind = _TAGS[tag]
        if self._kind != "call":
            ready = len(self._pending) - _tag_start(self._pending)
            pieces += self._piece(self._pending[:ready])
            self._pending = self._pending[ready:]
        return pieces

    def end(self) -> list[Piece]:
        """What is left at the end of a turn; the splitter is then ready for the next."""
        pieces = self._piece(self._pending)
        self._pending, self._kind = "", "thought"
        return pieces

    def _piece(self, content: str) -> list[Piece]:
        return [Piece(self._kind, content)] if content else []


def _first_tag(text: str, tags: Iterable[str]) -> str | None:
    """The tag that comes first in `text`; None where none does."""
    return min((tag for tag in tags if tag in text), key=text.index, default=None)


def _tag_start(text: str) -> int:
    """How many characters at the end of `text` may be the start of a tag."""
    longest = max(map(len, _TAGS))
    starts = (text[-size:] for size in range(min(longest - 1, len(text)), 0, -1))
    return next((len(start) for start in starts if any(tag.startswith(start) for tag in _TAGS)), 0)
