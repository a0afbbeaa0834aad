"""The rows that a preparation has read and not yet dropped, kept on disk and known by number.

A source's rows are in one file, as Arrow IPC streams of one record batch each that follow each other: they take a third
of the time of parquet, and any process writes or reads one. In memory are a byte per row and, while a filter needs it,
eight for a key.
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
"""A row's number, and why it is dropped, as details for the card."""
_WORKING = [("key", pa.uint64()), ("answer_key", pa.uint64()), ("characters", pa.int32())]
"""Columns that only the preparation uses: the same key for rows with the same text, and for the same answer."""


def schema_of(kind: Kind) -> Any:
    """The columns of candidates: those of the row schema, and those that the filters use."""
    return pa.schema([*SCHEMAS[kind], *([TOKENS] if kind == "conversations" else []), *_WORKING])


def encoded(batch: Any) -> bytes:
    """A record batch as it stands in a candidate file."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4", use_threads=False)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    found: bytes = sink.getvalue().to_pybytes()
    return found


def _stream(opened: Any, kind: Kind, columns: Sequence[str]) -> Any:
    """Reads some columns of the record batch that begins here."""
    wanted = [at for at, name in enumerate(schema_of(kind).names) if name in columns]
    options = pa.ipc.IpcReadOptions(included_fields=wanted, use_threads=False)
    return pa.ipc.open_stream(opened, options=options)


@dataclass(frozen=True)
class _Place:
    """Where a record batch is."""

    file: Path
    kind: Kind
    offset: int
    """In bytes."""
    first: int
    """The number of its first row."""
    rows: int

    def read(self, columns: Sequence[str]) -> Any:
        with pa.OSFile(str(self.file)) as opened:
            opened.seek(self.offset)
            return _stream(opened, self.kind, columns).read_next_batch()


@dataclass(frozen=True)
class Group:
    """A record batch of a candidate file, sent to the process that reads it."""

    place: _Place
    alive: Mask

    def read(self, columns: Sequence[str]) -> tuple[Numbers, Any]:
        """The rows that are not dropped: their numbers, and a record batch of the columns."""
        batch = self.place.read(columns)
        return self.place.first + np.flatnonzero(self.alive), batch.filter(pa.array(self.alive))


class Candidates:
    """The candidates in a list of files, one of each source; rows are numbered from 0 through all of them."""

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
        """Where each file's rows begin, and, last, how many there are."""
        self.alive: Mask = np.ones(starts[-1], dtype=np.bool_)

    def drop(self, numbers: Numbers) -> None:
        self.alive[numbers] = False

    def groups(self) -> Iterator[Group]:
        """Every record batch with rows left, in order."""
        for place in self._places:
            alive = self.alive[place.first : place.first + place.rows]
            if alive.any():
                yield Group(place, alive.copy())

    def keys(self, column: str) -> Keys:
        """A column of whole numbers, of all rows, dropped ones too."""
        parts = [place.read([column])[column].to_numpy() for place in self._places]
        found: Keys = np.concatenate(parts) if parts else np.empty(0, np.uint64)
        return found

    def batches(self, columns: Sequence[str], numbers: Numbers) -> Iterator[tuple[Numbers, Any]]:
        """Some rows, by ascending numbers: their numbers and a table of the columns, a record batch at a time."""
        for place in self._places:
            first, end = np.searchsorted(numbers, [place.first, place.first + place.rows])
            if first < end:
                table = pa.Table.from_batches([place.read(columns)])
                yield numbers[first:end], table.take(pa.array(numbers[first:end] - place.first))

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
