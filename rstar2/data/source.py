"""What a source of training data is: where its rows are, which columns they have, how one is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from rstar2.data.rows import Kind

Row = Mapping[str, Any]


@dataclass(frozen=True)
class HubSet:
    """A set on the dataset hub."""

    hub_id: str
    config: str | None
    split: str

    def __str__(self) -> str:
        return f"{self.hub_id} ({', '.join(filter(None, [self.config, self.split]))})"


@dataclass(frozen=True)
class Source:
    """Rows of one kind from one origin."""

    kind: Kind
    family: str
    """What its rows teach: math, function-calls, code, instructions or chat."""
    licence: str
    """As its origin states it, or `not checked`."""
    columns: tuple[tuple[str, ...], ...]
    """The columns it must have; each tuple is one form that the source comes in."""
    read: Callable[[Row], dict[str, Any]]
    """A row's columns as `rstar2.data.rows` describes them, without `id`, `source` and `family`; `id` and `licence` may
    be among them. Refused where the row cannot be used."""
    rows: str
    """How many there are, in words."""
    hub: tuple[HubSet, ...] = ()
    """Where it is on the hub, read one after the other; empty where a file must be given."""
    more: tuple[str, ...] = ()
    """Columns that are read where they are there."""
    gated: bool = False
    """Whether its terms must be accepted on the hub first."""
    rewritten: Literal["answers", "prompts"] | None = None
    """What of its conversations the paper had a model rewrite."""
    paper: str = ""
    """What the paper takes of it."""
    missing: str = ""
    """Where `hub` is empty: what a user is told to give."""
