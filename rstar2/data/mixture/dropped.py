"""The file of rows that filters dropped. Each entry has the filter, the row's number and details."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rstar2.data.candidates import Candidates, Drop, Numbers
from rstar2.data.mixture.card import Step
from rstar2.data.rows import as_json

MOST_GRAMS = 50
"""Maximum number of shared grams in the card. dropped.jsonl contains all shared grams."""
_EXAMPLES = 3
_BATCH = 8192
_SCHEMA = pa.schema([("filter", pa.int32()), ("number", pa.int64()), ("detail", pa.string())])


@dataclass(frozen=True)
class DroppedRows:
    """The rows that one step dropped. A step has one filter, or several filters that judge each row independently of
    the other rows."""

    filters: Sequence[str]
    file: Path

    def write(self, part: Path, drops: Iterable[tuple[int, Drop]]) -> None:
        """Write (index of the filter, drop) pairs to the file `part`. The pairs must be sorted by row number."""
        with pq.ParquetWriter(part, _SCHEMA, compression="zstd") as writer:
            for chunk in _chunks(drops):
                writer.write_batch(chunk)

    def numbers(self) -> Numbers:
        numbers: Numbers = pq.read_table(self.file, columns=["number"])["number"].to_numpy()
        return numbers

    def count(self, rows: Candidates) -> Iterator[Step]:
        """Yields for each filter the number of rows that it dropped, in total and per source."""
        table = pq.read_table(self.file, columns=["filter", "number"])
        which, numbers = table["filter"].to_numpy(), table["number"].to_numpy()
        for at, name in enumerate(self.filters):
            counts, _ = np.histogram(numbers[which == at], bins=rows.starts)
            by_source = {
                source: int(count) for source, count in zip(rows.names, counts, strict=True) if count
            }
            yield Step(name, int(counts.sum()), by_source)

    def detailed(self, rows: Candidates) -> Iterator[dict[str, Any]]:
        """Yields the id, the reason and the details of every dropped row."""
        for batch in pq.ParquetFile(self.file).iter_batches(_BATCH * 8):
            ids = rows.values("id", batch.column("number").to_numpy())
            for row in batch.to_pylist():
                reason = self.filters[row["filter"]]
                yield {"id": ids[row["number"]], "reason": reason, **json.loads(row["detail"])}

    def examples(self, rows: Candidates) -> Iterator[dict[str, Any]]:
        """Yields a few dropped rows of each filter, with their texts."""
        by_filter: dict[int, list[tuple[int, str]]] = {}
        for batch in pq.ParquetFile(self.file).iter_batches(_BATCH):
            for row in batch.to_pylist():
                if len(listed := by_filter.setdefault(row["filter"], [])) < _EXAMPLES:
                    listed.append((row["number"], row["detail"]))
        column = "problem" if rows.kind == "problems" else "messages"
        numbers = np.array([number for listed in by_filter.values() for number, _ in listed], dtype=np.int64)
        ids, contents = rows.values("id", numbers), rows.values(column, numbers)
        for which, listed in sorted(by_filter.items()):
            for number, detail in listed:
                text = contents[number] if column == "problem" else _first_question(contents[number])
                yield {
                    "reason": self.filters[which],
                    "id": ids[number],
                    "text": text[:400],
                    "detail": json.loads(detail),
                }

    def shared_grams(self) -> Counter[str]:
        """Counts the dropped rows for each detail of the filter `grams`. The keys are the details as JSON texts.

        A detail contains the words that the rows share with a benchmark.
        """
        counts: Counter[str] = Counter()
        if "grams" in self.filters:
            which = self.filters.index("grams")
            for batch in pq.ParquetFile(self.file).iter_batches(_BATCH):
                counts.update(batch.filter(pc.equal(batch["filter"], which))["detail"].to_pylist())
        return counts


def _chunks(drops: Iterable[tuple[int, Drop]]) -> Iterator[Any]:
    waiting: list[dict[str, Any]] = []
    for which, (number, detail) in drops:
        waiting.append({"filter": which, "number": number, "detail": as_json(detail)})
        if len(waiting) >= _BATCH:
            yield pa.RecordBatch.from_pylist(waiting, schema=_SCHEMA)
            waiting = []
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema=_SCHEMA)


def _first_question(messages: list[dict[str, Any]]) -> str:
    return next((str(each["content"]) for each in messages if each["role"] == "user"), "")
