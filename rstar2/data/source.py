"""What a source of training data is: where its rows are, which columns they have, how one is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rstar2.data.rows import Kind
from rstar2.errors import UserError

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
    rows: str = ""
    """How many there are, in words; `rstar2 data list` shows it."""
    download: str = ""
    """How much is read of the hub; an estimate says so."""
    disk: str = ""
    """How much disk a preparation needs, for the hub's cache and the rows."""
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
    left_out: str = ""
    """What of a row's text is left out on purpose; the data card says it."""
    token_ids: bool = False
    """Whether its rows have the column `rstar2.data.rows.TOKENS`."""
    missing: str = ""
    """Where `hub` is empty: what a user is told to give."""

    def __post_init__(self) -> None:
        kinds = get_args(Kind)
        if self.kind not in kinds:
            raise _wrong("kind", f"must be {' or '.join(map(repr, kinds))}, not {self.kind!r}", "")
        for name in ("family", "licence", "rows", "download", "disk", "left_out", "missing"):
            if not isinstance(value := getattr(self, name), str):
                raise _wrong(name, f"must be text, not {value!r:.100}", "")
        if not callable(self.read):
            raise _wrong("read", f"must be a function, not {self.read!r:.100}", "Define it as def read(row).")
        if not self.columns or not all(_are_names(form) for form in _listed(self.columns)):
            names = tuple(filter(_is_name, _listed(self.columns))) or ("problem", "answer")
            raise _wrong(
                "columns",
                f"must be a tuple of tuples of names, not {self.columns!r:.100}",
                f"Write columns=({names!r},).",
            )
        if not _are_names(self.more):
            raise _wrong("more", f"must be a tuple of names, not {self.more!r:.100}", 'Write more=("name",).')


def _wrong(name: str, fault: str, hint: str) -> UserError:
    return UserError(f"{name} {fault}", hint or "See “A data source” in docs/extending.md.")


def _is_name(value: object) -> bool:
    return isinstance(value, str)


def _are_names(value: object) -> bool:
    return isinstance(value, tuple | list) and all(map(_is_name, value))


def _listed(value: object) -> tuple[object, ...]:
    """A field's parts; a text is one part of its own."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)
