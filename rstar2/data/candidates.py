"""The rows that a preparation has read and not yet dropped, kept on disk and known by number.

In memory are a byte per row and, while a filter needs it, eight for a key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rstar2.data.rows import Kind

Mask = npt.NDArray[np.bool_]
Keys = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int64]
Drop = tuple[int, dict[str, Any]]
"""A row's number, and why it is dropped, as details for the card."""


@dataclass(frozen=True)
class Group:
    """A row group of a candidate file, sent to the process that reads it."""

    file: Path
    index: int
    first: int
    """The number of its first row."""
    alive: Mask

    def read(self, columns: Sequence[str]) -> tuple[Numbers, Any]:
        """The rows that are not dropped: their numbers, and a record batch of the columns."""
        table = pq.ParquetFile(self.file).read_row_group(self.index, columns=list(columns))
        batches = table.combine_chunks().to_batches()
        numbers = self.first + np.flatnonzero(self.alive)
        return numbers, batches[0].filter(pa.array(self.alive))


class Candidates:
    """The candidates in a list of parquet files, one of each source; rows are numbered from 0 through all of them."""

    def __init__(self, kind: Kind, files: Sequence[tuple[str, Path]]) -> None:
        self.kind = kind
        self.names = [name for name, _ in files]
        self.files = [file for _, file in files]
        self._metadata = [pq.read_metadata(file) for file in self.files]
        self.starts = np.cumsum([0, *(each.num_rows for each in self._metadata)])
        """Where each file's rows begin, and, last, how many there are."""
        self.alive: Mask = np.ones(int(self.starts[-1]), dtype=np.bool_)

    def drop(self, numbers: Numbers) -> None:
        self.alive[numbers] = False

    def groups(self) -> Iterator[Group]:
        """Every row group with rows left, in order."""
        for file, metadata, start in zip(self.files, self._metadata, self.starts, strict=False):
            first = int(start)
            for index in range(metadata.num_row_groups):
                rows = metadata.row_group(index).num_rows
                alive = self.alive[first : first + rows]
                if alive.any():
                    yield Group(file, index, first, alive.copy())
                first += rows

    def keys(self, column: str) -> Keys:
        """A column of whole numbers, of all rows, dropped ones too."""
        parts = [pq.read_table(file, columns=[column])[column].to_numpy() for file in self.files]
        found: Keys = np.concatenate(parts)
        return found

    def batches(self, columns: Sequence[str], numbers: Numbers) -> Iterator[tuple[Numbers, Any]]:
        """Some rows, by ascending numbers: their numbers and a table of the columns, a row group at a time."""
        for file, metadata, start in zip(self.files, self._metadata, self.starts, strict=False):
            opened = pq.ParquetFile(file)
            first = int(start)
            for index in range(metadata.num_row_groups):
                end = first + metadata.row_group(index).num_rows
                wanted = numbers[np.searchsorted(numbers, first) : np.searchsorted(numbers, end)]
                if len(wanted):
                    yield wanted, opened.read_row_group(index, list(columns)).take(pa.array(wanted - first))
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
