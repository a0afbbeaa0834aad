"""The parts of a turn that a model wrote: thought, tool calls, answer, other text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

PartKind = Literal["thought", "text", "answer", "call"]
"""The kind of a part. `answer` is text inside answer tags. `call` is a whole tool call, tags included."""


class Part(NamedTuple):
    """A part of a turn: the span from `start` to `end` in the turn's text. Text between two parts is markup."""

    kind: PartKind
    start: int
    end: int


@dataclass(frozen=True)
class WrittenCall:
    """A tool call as the model wrote it."""

    text: str
    """The whole call, tags included."""
    name: str = ""
    arguments: Any = None
    fault: str = ""
    """Why the call cannot be read. Empty if the call can be read."""
    error: str = ""
    """The message of the Python error that the same call causes in the authors' released code."""


@dataclass(frozen=True)
class ParsedTurn:
    """A turn split into its parts and calls."""

    text: str
    parts: tuple[Part, ...]
    calls: tuple[WrittenCall, ...]
    tagged: bool = True
    """Whether the turn uses the tags of `rstar2.loop.turns.tags`. False means that the turn uses the syntax of a model
    family."""
    unplaced: Mapping[PartKind, str] = field(default_factory=dict)
    """Content that the parser returned and that the text does not contain, neither whole nor in pieces.

    The keys are the kinds of parts.
    """

    @property
    def thought(self) -> str:
        return joined(self.text, self.parts, self.unplaced, "thought")

    @property
    def visible_text(self) -> str:
        """The text of the turn without thoughts, calls and tags."""
        return joined(self.text, self.parts, self.unplaced, "text", "answer")


EMPTY = ParsedTurn("", (), ())


def joined(text: str, parts: Sequence[Part], unplaced: Mapping[PartKind, str], *kinds: PartKind) -> str:
    """Returns the text of all parts of these kinds, joined, followed by the unplaced content of these kinds."""
    placed = "".join(text[part.start : part.end] for part in parts if part.kind in kinds)
    return placed + "".join(unplaced.get(kind, "") for kind in kinds)
