"""Turns streamed token ids into what a person is shown: text as it is generated, and whole tool calls."""

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
"""What stands between a tag and the next one."""
_CODE = re.compile(r'"code"\s*:\s*"((?:[^"\\]|\\u[0-9a-fA-F]{4}|\\[^u])*)')
"""The code in a call's JSON, as far as it was written."""


@dataclass(frozen=True)
class Piece:
    """Something to show: a thought, other text, more of the code of a tool call, or the text of a whole call."""

    kind: Kind
    content: str
    call: WrittenCall | None = field(default=None, compare=False)
    """The call, if this is a whole one."""


class TurnStream(Protocol):
    """Reads one turn after the other while they are written."""

    def add(self, token_ids: list[int]) -> list[Piece]:
        """What can be shown now."""
        ...

    def end(self) -> list[Piece]:
        """What is left at the end of a turn; the stream is then ready for the next."""
        ...


class TagStream:
    """Reads turns of formats with our tags."""

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
    """Decodes token ids as they are generated, and withholds what is not yet a whole character."""

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._ids: list[int] = []
        self._shown = 0
        """How many ids are in the text given so far."""
        self._from = 0
        """Where decoding starts: a few ids earlier, because a token's text can hang on the one before."""

    def add(self, token_ids: list[int]) -> str:
        """The text that the new ids complete."""
        self._ids += token_ids
        before = self._decode(self._ids[self._from : self._shown])
        now = self._decode(self._ids[self._from :])
        if now.endswith("\ufffd") or len(now) <= len(before):
            return ""
        self._from, self._shown = self._shown, len(self._ids)
        return now[len(before) :]


def code_of(body: str) -> str:
    """The code in the body of a call, as far as it was written; empty where there is none yet."""
    found = _CODE.search(body)
    if found is None:
        return ""
    try:
        code = str(json.loads(f'"{found[1]}"', strict=False))
    except ValueError:
        return ""
    # The second half of a character beyond 16 bits may not be here yet.
    return code[:-1] if "\ud800" <= code[-1:] <= "\udbff" else code


class TagSplitter:
    """Splits a turn, which arrives in pieces of any size, at its tags, and leaves the tags out.

    What holds no JSON object between `<tool_call>` and `</tool_call>` may be a mention of the tags, which only the end
    of the turn tells (see `rstar2.loop.turns.tags`). It is shown as text, with its tags.

    Every turn begins where the format's generation prompt leaves off: inside a thought where `thinking`.
    """

    def __init__(self, thinking: bool = True) -> None:
        self._begin: Kind = "thought" if thinking else "text"
        self._kind: Kind = self._begin
        self._pending = ""
        self._code = ""
        """The code of the call that is being written, as far as it was given."""

    def add(self, text: str) -> list[Piece]:
        """What can be shown now; the start of a tag is withheld, and what a call holds beside its code."""
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
        """What is left at the end of a turn; the splitter is then ready for the next."""
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
    """Returns the tag that comes first in `text`, or None if it contains none."""
    return min((tag for tag in known if tag in text), key=text.index, default=None)


def _tag_start(text: str) -> int:
    """How many characters at the end of `text` may be the start of a tag."""
    longest = max(map(len, _TAGS))
    starts = (text[-size:] for size in range(min(longest - 1, len(text)), 0, -1))
    return next((len(start) for start in starts if any(tag.startswith(start) for tag in _TAGS)), 0)
