"""The class `Source`, which describes a source of training data: where the source's rows are, which columns the rows
have, and how to read a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from rstar2.data.rows import Kind
from rstar2.errors import UserError

Row = Mapping[str, Any]


@dataclass(frozen=True)
class HubSet:
    """A data set on the hub."""

    hub_id: str
    config: str | None
    split: str

    def __str__(self) -> str:
        return f"{self.hub_id} ({', '.join(filter(None, [self.config, self.split]))})"


@dataclass(frozen=True)
class Source:
    """A source of training data, whose rows are all of one kind."""

    kind: Kind
    """The kind of the source's rows: `problems` or `conversations`."""
    family: str
    """The subject that the source's rows teach: math, function-calls, code, instructions or chat."""
    licence: str
    """The licence that the publisher of the source states, or `not checked`."""
    columns: tuple[tuple[str, ...], ...]
    """The columns that the source must have. A source may be published with different columns, and each tuple lists the
    columns of one version."""
    read: Callable[[Row], dict[str, Any]]
    """Converts a row of the published source to the columns that `rstar2.data.rows` describes.

    The result lacks `source` and `family`, and may lack `id` and `licence`. The function raises Refused if the row
    cannot be used.
    """
    rows: str = ""
    """The number of rows, as text. `rstar2 data list` prints this text."""
    download: str = ""
    """The amount of data that is downloaded, as text. The text says if the amount is an estimate."""
    disk: str = ""
    """The disk space that a preparation needs for the hub's cache and the rows, as text."""
    hub: tuple[HubSet, ...] = ()
    """The data sets on the hub, in the order in which they are read. Empty if the user must name a file."""
    more: tuple[str, ...] = ()
    """Optional columns, which are read if the source has them."""
    gated: bool = False
    """Whether the user must first accept the source's terms on the hub."""
    rewritten: Literal["answers", "prompts"] | None = None
    """The part of the conversations that a model rewrote in the paper. None if no part of the conversations was
    rewritten."""
    paper: str = ""
    """The part of the source that the paper uses, as text."""
    left_out: str = ""
    """Describes the part of a row's text that is deliberately left out. The data card contains this description."""
    token_ids: bool = False
    """Whether the source's rows have the column `rstar2.data.rows.TOKENS`."""
    missing: str = ""
    """If `hub` is empty, the text that tells the user which file is needed."""

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
    """Returns the items of a tuple or list. Returns a tuple with a single item for any other value."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)
