"""The parts of a turn that a model wrote: thought, tool calls, answer, other text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

PartKind = Literal["thought", "text", "answer", "call"]
"""answer: inside the answer tags of a format that has some. call: a whole tool call, tags included."""


class Part(NamedTuple):
    """A part of a turn, as a span of its text. What lies between two parts is markup."""

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
    """Why the call cannot be read; empty if it can."""
    error: str = ""
    """The Python error that the fault is to the authors' released code."""


@dataclass(frozen=True)
class ParsedTurn:
    """A turn, read."""

    text: str
    parts: tuple[Part, ...]
    calls: tuple[WrittenCall, ...]
    tagged: bool = True
    """Whether it is written in the tags of `rstar2.loop.turns.tags`, not in the syntax of a family."""
    unplaced: Mapping[PartKind, str] = field(default_factory=dict)
    """What was read of the turn but does not stand in its text, not even in pieces."""

    @property
    def thought(self) -> str:
        return joined(self.text, self.parts, self.unplaced, "thought")

    @property
    def said(self) -> str:
        """What the turn says beside its thought and its calls, without tags."""
        return joined(self.text, self.parts, self.unplaced, "text", "answer")


EMPTY = ParsedTurn("", (), ())


def joined(text: str, parts: Sequence[Part], unplaced: Mapping[PartKind, str], *kinds: PartKind) -> str:
    """The parts of these kinds of a turn's text, one after another, and then what does not stand in the text."""
    placed = "".join(text[part.start : part.end] for part in parts if part.kind in kinds)
    return placed + "".join(unplaced.get(kind, "") for kind in kinds)
