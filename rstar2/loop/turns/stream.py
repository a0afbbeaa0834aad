"""Splits streamed token ids into pieces to show to a person: text while it is generated, and whole tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from rstar2.loop.turns import tags
from rstar2.loop.turns.tags import CLOSE, OPEN, begins_object
from rstar2.loop.turns.turn import WrittenCall

Kind = Literal["thought", "text", "code", "call"]
_TAGS: dict[str, Kind] = {
    tags.REASON: "thought",
    tags.REASON_END: "text",
    tags.THINK: "thought",
    tags.THINK_END: "text",
    tags.ANSWER: "text",
    tags.ANSWER_END: "text",
    OPEN: "call",
    CLOSE: "text",
    tags.REPLY: "text",
    tags.REPLY_END: "text",
}
"""The kind of text that follows each tag, up to the next tag."""
_CODE = re.compile(r'"code"\s*:\s*"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*)')
"""Matches the code in the JSON of a call, even if the JSON is still incomplete."""


@dataclass(frozen=True)
class Piece:
    """A piece of a turn to show.

    A piece is part of a thought, part of other text, part of the code of a call, or the text of a whole call.
    """

    kind: Kind
    content: str
    call: WrittenCall | None = field(default=None, compare=False)
    """The parsed call, if the kind is `call`."""


class TurnStream(Protocol):
    """Splits turns into pieces while they are generated, one turn after another."""

    def add(self, token_ids: list[int]) -> list[Piece]:
        """Add generated token ids. Returns the new pieces that can already be shown."""
        ...

    def end(self) -> list[Piece]:
        """End the turn.

        Returns the remaining pieces of the turn. After this call, the stream is ready for the next turn.
        """
        ...


class TagStream:
    """Splits turns in formats with rstar2's tags."""

    def __init__(self, decode: Callable[[list[int]], str], thinking: bool) -> None:
        self._decode = decode
        self._text = TextStream(decode)
        self._splitter = TagSplitter(thinking)

    def add(self, token_ids: list[int]) -> list[Piece]:
        return self._splitter.add(self._text.add(token_ids))

    def end(self) -> list[Piece]:
        self._text = TextStream(self._decode)
        return self._splitter.end()


class TextStream:
    """Decodes token ids while they are generated, and holds back the bytes of an incomplete character."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._returned = 0
        """Number of token ids whose text has been returned."""
        self._start = 0
        """Index of the first token id that is decoded. This index is before `_returned`, because a token's text can
        depend on earlier ids."""

    def add(self, token_ids: list[int]) -> str:
        """Returns the text that is complete now that the new ids have been added."""
        self._ids += token_ids
        before = self._decode(self._ids[self._start : self._returned])
        now = self._decode(self._ids[self._start :])
        if now.endswith("\ufffd") or len(now) <= len(before):
            return ""
        self._start, self._returned = self._returned, len(self._ids)
        return now[len(before) :]


def code_of(body: str) -> str:
    """Returns the code in the body of a call, which may be incomplete.

    The code is empty if the body contains no code yet.
    """
    match = _CODE.search(body)
    if match is None:
        return ""
    try:
        code = str(json.loads(f'"{match[1]}"', strict=False))
    except ValueError:
        return ""
    # The text may end between the two escapes of a surrogate pair.
    return code[:-1] if "\ud800" <= code[-1:] <= "\udbff" else code


class TagSplitter:
    """Splits the text of a turn at its tags, and leaves the tags out. The text may arrive in parts of any size.

    If no JSON object stands between `<tool_call>` and `</tool_call>`, the turn may only mention the tags. Whether it
    does is known only at the end of the turn (see `rstar2.loop.turns.tags`). The splitter therefore returns text
    without a JSON object as ordinary text, tags included.

    If `thinking` is set, every turn begins inside a thought, because the format's generation prompt opens a thought.
    """

    def __init__(self, thinking: bool = True) -> None:
        self._begin: Kind = "thought" if thinking else "text"
        self._kind: Kind = self._begin
        self._pending = ""
        self._code = ""
        """The code that was returned for the current call."""

    def add(self, text: str) -> list[Piece]:
        """Add text. Returns the new pieces that can already be shown.

        An incomplete tag is held back. A call is held back until it is complete, except for its code.
        """
        self._pending += text
        pieces: list[Piece] = []
        while tag := _first_tag(self._pending, [CLOSE] if self._kind == "call" else _TAGS):
            before, _, after = self._pending.partition(tag)
            is_call = begins_object(after)
            if tag == OPEN and is_call is None:
                self._pending = tag + after
                return pieces + self._piece(before)
            is_mention = (tag == OPEN and not is_call) or (tag == CLOSE and self._kind != "call")
            pieces += self._piece(before + tag if is_mention else before)
            self._pending = after
            self._kind = self._kind if is_mention else _TAGS[tag]
        ready = len(self._pending) - _tag_start(self._pending)
        if self._kind == "call":
            pieces += self._more_code(self._pending[:ready])
        else:
            pieces += self._piece(self._pending[:ready])
            self._pending = self._pending[ready:]
        return pieces

    def end(self) -> list[Piece]:
        """End the turn.

        Returns the remaining pieces of the turn. After this call, the splitter is ready for the next turn.
        """
        pieces = self._piece(self._pending)
        self._pending, self._kind = "", self._begin
        return pieces

    def _piece(self, content: str) -> list[Piece]:
        if not content:
            return []
        if self._kind != "call":
            return [Piece(self._kind, content)]
        pieces = [
            *self._more_code(content),
            Piece("call", content, tags.read_call(f"{OPEN}{content}{CLOSE}")),
        ]
        self._code = ""
        return pieces

    def _more_code(self, body: str) -> list[Piece]:
        code = code_of(body)
        more = code[len(self._code) :] if code.startswith(self._code) else ""
        self._code += more
        return [Piece("code", more)] if more else []


def _first_tag(text: str, known: Iterable[str]) -> str | None:
    """Returns the first tag in `text`, or None if `text` contains no tag."""
    return min((tag for tag in known if tag in text), key=text.index, default=None)


def _tag_start(text: str) -> int:
    """Returns the number of characters at the end of `text` that may be the start of a tag."""
    longest = max(map(len, _TAGS))
    starts = (text[-size:] for size in range(min(longest - 1, len(text)), 0, -1))
    return next((len(start) for start in starts if any(tag.startswith(start) for tag in _TAGS)), 0)
