"""The candidates of a preparation: rows that were read and not yet dropped. Candidates are stored on disk, and each has
a row number.

The rows of a source are in one file, as a sequence of Arrow IPC streams with one record batch each. Reading and writing
Arrow IPC streams takes a third of the time that parquet takes, and each process can write and read batches
independently. In memory, the candidates need one byte per row, and eight more bytes per row while a filter compares
keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rstar2.data.rows import SCHEMAS, TOKENS, Kind

Mask = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Drop = tuple[int, dict[str, Any]]
"""The row number of a dropped row, and details for the data card."""
_WORKING = [("key", pa.uint64()), ("answer_key", pa.uint64()), ("characters", pa.int32())]
"""Columns that only the preparation uses. Rows with the same text have the same `key`. Rows with the same answer have
the same `answer_key`."""


def schema_of(kind: Kind) -> Any:
    """Returns the columns of candidates: the columns of the row schema, and the columns that only the preparation
    uses."""
    return pa.schema([*SCHEMAS[kind], *([TOKENS] if kind == "conversations" else []), *_WORKING])


def encoded(batch: Any) -> bytes:
    """Returns a record batch as the bytes to write to a candidate file."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    stream: bytes = sink.getvalue().to_pybytes()
    return stream


def _stream(opened: Any, kind: Kind, columns: Sequence[str]) -> Any:
    """Returns a reader for some columns of the record batch that begins at the file's current position."""
    indices = [at for at, name in enumerate(schema_of(kind).names) if name in columns]
    options = pa.ipc.IpcReadOptions(included_fields=indices, use_threads=False)
    return pa.ipc.open_stream(opened, options=options)


@dataclass(frozen=True)
class _Place:
    """The position of a record batch in a candidate file."""

    file: Path
    kind: Kind
    offset: int
    """Offset of the record batch in the file, in bytes."""
    first: int
    """Number of the record batch's first row, counted over all files."""
    rows: int

    def read(self, columns: Sequence[str]) -> Any:
        with pa.OSFile(str(self.file)) as opened:
            opened.seek(self.offset)
            return _stream(opened, self.kind, columns).read_next_batch()


@dataclass(frozen=True)
class Group:
    """A reference to a record batch, which is sent to the process that reads it."""

    place: _Place
    alive: Mask

    def read(self, columns: Sequence[str]) -> tuple[Numbers, Any]:
        """Returns the row numbers of the rows that are not dropped, and a record batch with the given columns of
        these rows."""
        batch = self.place.read(columns)
        return self.place.first + np.flatnonzero(self.alive), batch.filter(pa.array(self.alive))


class Candidates:
    """The candidates of all sources, with one file per source. Rows are numbered from 0 across all files."""

    def __init__(self, kind: Kind, files: Sequence[tuple[str, Path]]) -> None:
        self.names = [name for name, _ in files]
        self.files = [file for _, file in files]
        self.kind = kind
        self._places: list[_Place] = []
        starts = [0]
        for file in self.files:
            starts.append(starts[-1])
            with pa.OSFile(str(file)) as opened:
                while (offset := opened.tell()) < opened.size():
                    rows = _stream(opened, kind, ["characters"]).read_all().num_rows
                    self._places.append(_Place(file, kind, offset, starts[-1], rows))
                    starts[-1] += rows
        self.starts = np.array(starts)
        """The number of the first row of each file, followed by the total number of rows."""
        self.alive: Mask = np.ones(starts[-1], dtype=np.bool_)

    def drop(self, numbers: Numbers) -> None:
        self.alive[numbers] = False

    def groups(self) -> Iterator[Group]:
        """Yields, in order, every record batch with at least one row that is not dropped."""
        for place in self._places:
            alive = self.alive[place.first : place.first + place.rows]
            if alive.any():
                yield Group(place, alive.copy())

    def keys(self, column: str) -> Keys:
        """Returns an integer column for all rows, dropped rows included."""
        parts = [place.read([column])[column].to_numpy() for place in self._places]
        keys: Keys = np.concatenate(parts) if parts else np.empty(0, np.uint64)
        return keys

    def batches(self, columns: Sequence[str], numbers: Numbers) -> Iterator[tuple[Numbers, Any]]:
        """Yields the rows with these numbers, which must be in ascending order. Each item contains the numbers and a
        table of the rows from one record batch."""
        for place in self._places:
            first, end = np.searchsorted(numbers, [place.first, place.first + place.rows])
            if first < end:
                table = pa.Table.from_batches([place.read(columns)])
                yield numbers[first:end], table.take(pa.array(numbers[first:end] - place.first))

    def values(self, column: str, numbers: Numbers) -> dict[int, Any]:
        """Returns a dict from row number to the value of a column, for a few rows."""
        values: dict[int, Any] = {}
        for batch_numbers, table in self.batches([column], np.unique(numbers)):
            values.update(zip(batch_numbers.tolist(), table[column].to_pylist(), strict=True))
        return values

    def live_numbers(self) -> Numbers:
        return np.flatnonzero(self.alive)

    def source_of(self, number: int) -> str:
        return self.names[int(np.searchsorted(self.starts, number, side="right")) - 1]
