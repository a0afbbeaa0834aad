"""The rows that a step of filters dropped, kept in a file: which filter, which row, and what was found."""

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
"""Shared grams that the card lists; dropped.jsonl has them all."""
_EXAMPLES = 3
_BATCH = 8192
_SCHEMA = pa.schema([("filter", pa.int32()), ("number", pa.int64()), ("detail", pa.string())])


@dataclass(frozen=True)
class DroppedRows:
    """What one filter, or several that judge each row by itself, dropped."""

    filters: Sequence[str]
    file: Path

    def write(self, part: Path, found: Iterable[tuple[int, Drop]]) -> None:
        """Write the file at `part`, from the place of the filter and the drop, by ascending row number."""
        with pq.ParquetWriter(part, _SCHEMA, compression="zstd") as writer:
            for chunk in _chunks(found):
                writer.write_batch(chunk)

    def numbers(self) -> Numbers:
        found: Numbers = pq.read_table(self.file, columns=["number"])["number"].to_numpy()
        return found

    def count(self, rows: Candidates) -> Iterator[Step]:
        """How many rows of each source each filter dropped."""
        table = pq.read_table(self.file, columns=["filter", "number"])
        which, numbers = table["filter"].to_numpy(), table["number"].to_numpy()
        for at, name in enumerate(self.filters):
            counts, _ = np.histogram(numbers[which == at], bins=rows.starts)
            by_source = {
                source: int(count) for source, count in zip(rows.names, counts, strict=True) if count
            }
            yield Step(name, int(counts.sum()), by_source)

    def detailed(self, rows: Candidates) -> Iterator[dict[str, Any]]:
        """Id, reason and what was found of every row."""
        for batch in pq.ParquetFile(self.file).iter_batches(_BATCH * 8):
            ids = rows.values("id", batch.column("number").to_numpy())
            for row in batch.to_pylist():
                reason = self.filters[row["filter"]]
                yield {"id": ids[row["number"]], "reason": reason, **json.loads(row["detail"])}

    def examples(self, rows: Candidates) -> Iterator[dict[str, Any]]:
        """A few rows of each filter, with what they say."""
        seen: dict[int, list[tuple[int, str]]] = {}
        for batch in pq.ParquetFile(self.file).iter_batches(_BATCH):
            for row in batch.to_pylist():
                if len(listed := seen.setdefault(row["filter"], [])) < _EXAMPLES:
                    listed.append((row["number"], row["detail"]))
        text = "problem" if rows.kind == "problems" else "messages"
        numbers = np.array([number for listed in seen.values() for number, _ in listed], dtype=np.int64)
        ids, said = rows.values("id", numbers), rows.values(text, numbers)
        for which, listed in sorted(seen.items()):
            for number, detail in listed:
                words = said[number] if text == "problem" else _first_question(said[number])
                found = json.loads(detail)
                yield {
                    "reason": self.filters[which], "id": ids[number], "text": words[:400], "detail": found
                }  # fmt: skip

    def shared_grams(self) -> Counter[str]:
        """The words shared with benchmarks, as the JSON text of the details, with the number of rows."""
        found: Counter[str] = Counter()
        if "grams" in self.filters:
            which = self.filters.index("grams")
            for batch in pq.ParquetFile(self.file).iter_batches(_BATCH):
                found.update(batch.filter(pc.equal(batch["filter"], which))["detail"].to_pylist())
        return found


def _chunks(found: Iterable[tuple[int, Drop]]) -> Iterator[Any]:
    waiting: list[dict[str, Any]] = []
    for which, (number, detail) in found:
        waiting.append({"filter": which, "number": number, "detail": as_json(detail)})
        if len(waiting) >= _BATCH:
            yield pa.RecordBatch.from_pylist(waiting, schema=_SCHEMA)
            waiting = []
    if waiting:
        yield pa.RecordBatch.from_pylist(waiting, schema=_SCHEMA)


def _first_question(messages: list[dict[str, Any]]) -> str:
    return next((str(each["content"]) for each in messages if each["role"] == "user"), "")
