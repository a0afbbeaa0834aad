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
    """Returns the name of a user's source in a mixture: MODULE for `MODULE:SOURCE`, else MODULE-OBJECT."""
    module, _, name = reference.partition(":")
    return "-".join([module.rpartition(".")[2], *([] if name == "SOURCE" else [name.replace(".", "-")])])


def load_source(reference: str, folders: Sequence[Path] = ()) -> Source:
    """Load a source from a user's module.

    Args:
        reference: the `module:object` of the source.
        folders: folders in which to search for the module, besides the current folder.

    Raises:
        UserError: the object cannot be loaded (see `rstar2.plugins.load`), it is not a `Source`, or it cannot be sent
            to other processes.
    """
    loaded = load(reference, "the source", folders)
    if not isinstance(loaded, Source):
        raise UserError(
            f"the source {reference} is not a Source, but {type(loaded).__name__}",
            "Define it as SOURCE = Source(…), with: from rstar2 import Source.",
        )
    try:
        pickle.dumps(loaded)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UserError(
            f"the source {reference} cannot be sent to the processes that read rows: {error}",
            "Define `read` at the top level of the module, not as a lambda or inside another function.",
        ) from error
    if loaded.kind == "problems":
        return replace(loaded, read=_ProblemReader(reference, loaded.read))
    return replace(loaded, read=_Reader(reference, loaded.read))


@dataclass(frozen=True)
class _Reader:
    """Reads rows with a user's function.

    If the function raises an exception, a Failure names the function and the exception.
    """

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
        """Returns the function's result. Raises Failure if the result is not a dict from column names to values."""
        if not isinstance(columns, dict):
            raise self.fault(f"read returned {type(columns).__name__}, not the row's columns")
        return columns

    def fault(self, reason: str) -> Failure:
        return Failure(f"the source {self.reference}: {reason}", "See “A data source” in docs/extending.md.")


class _ProblemReader(_Reader):
    """Reads problems with a user's function, and normalizes the answers as for every other source."""

    def checked(self, columns: Any) -> dict[str, Any]:
        row = super().checked(columns)
        for name in ("problem", "answer"):
            if not isinstance(row.get(name), str):
                raise self.fault(f"read returned {row.get(name)!r:.60} as {name}, which is not text")
        return {**row, **problem_row(row["problem"], row["answer"], row.get("pass_rate"))}
