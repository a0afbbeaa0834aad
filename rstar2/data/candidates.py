"""The rows that a preparation has read and not yet dropped, kept on disk and known by number.

A source's rows are in an Arrow IPC file, which is written and read in a third of the time of parquet. In memory are a
byte per row and, while a filter needs it, eight for a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rstar2.data.rows import SCHEMAS, Kind

Mask = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Drop = tuple[int, dict[str, Any]]
"""A row's number, and why it is dropped, as details for the card."""
_WORKING = [("key", pa.uint64()), ("answer_key", pa.uint64()), ("characters", pa.int32())]
"""Columns that only the preparation uses: the same key for rows with the same text, and for the same answer."""


def schema_of(kind: Kind) -> Any:
    """The columns of candidates: those of the row schema, and those that the filters use."""
    return pa.schema([*SCHEMAS[kind], *_WORKING])


def write_candidates(file: Path, kind: Kind) -> Any:
    """A writer of record batches, a context."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    return pa.ipc.new_file(str(file), schema_of(kind), options=options)


def _reader(file: Path, kind: Kind, columns: Sequence[str]) -> Any:
    """Reads the record batches of a file, some columns alone."""
    wanted = [at for at, name in enumerate(schema_of(kind).names) if name in columns]
    return pa.ipc.open_file(pa.OSFile(str(file)), options=pa.ipc.IpcReadOptions(included_fields=wanted))


@dataclass(frozen=True)
class Group:
    """A record batch of a candidate file, sent to the process that reads it."""

    file: Path
    kind: Kind
    index: int
    first: int
    """The number of its first row."""
    alive: Mask

    def read(self, columns: Sequence[str]) -> tuple[Numbers, Any]:
        """The rows that are not dropped: their numbers, and a record batch of the columns."""
        batch = _reader(self.file, self.kind, columns).get_batch(self.index)
        return self.first + np.flatnonzero(self.alive), batch.filter(pa.array(self.alive))


class Candidates:
    """The candidates in a list of files, one of each source; rows are numbered from 0 through all of them."""

    def __init__(self, kind: Kind, files: Sequence[tuple[str, Path]]) -> None:
        self.kind = kind
        self.names = [name for name, _ in files]
        self.files = [file for _, file in files]
        self._sizes = [[batch.num_rows for batch in self._read(file, "characters")] for file in self.files]
        """The rows of each record batch."""
        self.starts = np.cumsum([0, *map(sum, self._sizes)])
        """Where each file's rows begin, and, last, how many there are."""
        self.alive: Mask = np.ones(int(self.starts[-1]), dtype=np.bool_)

    def drop(self, numbers: Numbers) -> None:
        self.alive[numbers] = False

    def groups(self) -> Iterator[Group]:
        """Every record batch with rows left, in order."""
        for file, sizes, start in zip(self.files, self._sizes, self.starts, strict=False):
            first = int(start)
            for index, rows in enumerate(sizes):
                alive = self.alive[first : first + rows]
                if alive.any():
                    yield Group(file, self.kind, index, first, alive.copy())
                first += rows

    def _read(self, file: Path, column: str) -> Iterator[Any]:
        reader = _reader(file, self.kind, [column])
        return (reader.get_batch(at) for at in range(reader.num_record_batches))

    def keys(self, column: str) -> Keys:
        """A column of whole numbers, of all rows, dropped ones too."""
        batches = chain.from_iterable(self._read(file, column) for file in self.files)
        found: Keys = np.concatenate([np.empty(0, np.uint64), *(each[column].to_numpy() for each in batches)])
        return found

    def batches(self, columns: Sequence[str], numbers: Numbers) -> Iterator[tuple[Numbers, Any]]:
        """Some rows, by ascending numbers: their numbers and a table of the columns, a record batch at a time."""
        for file, sizes, start in zip(self.files, self._sizes, self.starts, strict=False):
            reader = _reader(file, self.kind, columns)
            first = int(start)
            for index, rows in enumerate(sizes):
                end = first + rows
                wanted = numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, end)]
                if len(wanted):
                    table = pa.Table.from_batches([reader.get_batch(index)])
                    yield wanted, table.take(pa.array(wanted - first))
                first = end

    def values(self, column: str, numbers: Numbers) -> dict[int, Any]:
        """A column's values of a few rows, by the row's number."""
        found: dict[int, Any] = {}
        for wanted, table in self.batches([column], np.unique(numbers)):
            found.update(zip(wanted.tolist(), table[column].to_pylist(), strict=True))
        return found

    def live_numbers(self) -> Numbers:
        return np.flatnonzero(self.alive)

    def source_of(self, number: int) -> str:
        return self.names[int(np.searchsorted(self.starts, number, side="right")) - 1]
