"""Loads sources of training data from users' own modules, named `module:object`."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rstar2.data.rows import Refused, problem_row
from rstar2.data.source import Row, Source
from rstar2.errors import Failure, UserError
from rstar2.plugins import failures_named, load


def source_name(reference: str) -> str:
    """The name of a source in a mixture: its module's, and its own if that is not SOURCE."""
    module, _, name = reference.partition(":")
    return "-".join([module.rpartition(".")[2], *([] if name == "SOURCE" else [name.replace(".", "-")])])


def load_source(reference: str, folders: Sequence[Path] = ()) -> Source:
    """The source that `module:object` names.

    Args:
        reference: the name as the user wrote it.
        folders: folders in which the module may be, besides the current one.

    Raises:
        UserError: as of `rstar2.plugins.load`; or the object is no `Source`, or other processes cannot read its rows.
    """
    loaded = load(reference, "the source", folders)
    if not isinstance(loaded, Source):
        raise UserError(
            f"the source {reference} is not a Source but {type(loaded).__name__}",
            "Define it as SOURCE = Source(…), with: from rstar2 import Source.",
        )
    try:
        pickle.dumps(loaded)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"the source {reference} cannot be sent to the processes that read rows: {error}",
            "Make read a function of the module itself, no lambda and no function inside a function.",
        ) from error
    if loaded.kind == "problems":
        return replace(loaded, read=_ProblemReader(reference, loaded.read))
    return replace(loaded, read=_Reader(reference, loaded.read))


@dataclass(frozen=True)
class _Reader:
    """Reads rows by a user's function. An exception of it is a Failure that names the function and the cause."""

    reference: str
    read: Callable[[Row], dict[str, Any]]

    def __call__(self, row: Row) -> dict[str, Any]:
        refused: Refused | None = None
        with failures_named(self.reference, "the source"):
            try:
                return self.checked(self.read(row))
            except Refused as error:
                refused = error
        raise refused

    def checked(self, columns: Any) -> dict[str, Any]:
        """What the function returned. A Failure if these are not the columns of a row."""
        if not isinstance(columns, dict):
            raise self.fault(f"read returned {type(columns).__name__}, not the row's columns")
        return columns

    def fault(self, reason: str) -> Failure:
        return Failure(f"the source {self.reference}: {reason}", "See “A data source” in docs/extending.md.")


class _ProblemReader(_Reader):
    """Reads problems, whose answers it writes as those of every source."""

    def checked(self, columns: Any) -> dict[str, Any]:
        about = super().checked(columns)
        for name in ("problem", "answer"):
            if not isinstance(about.get(name), str):
                raise self.fault(f"read returned no text as {name}, but {about.get(name)!r:.60}")
        return {**about, **problem_row(about["problem"], about["answer"], about.get("pass_rate"))}
