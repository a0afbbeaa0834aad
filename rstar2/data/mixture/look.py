"""Inspects prepared data: counts per source, random rows, lengths in tokens, and the differences between two sets."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rstar2.data.parquet import prepared_file
from rstar2.data.reading import sha256
from rstar2.data.rows import LATER_COLUMNS, SCHEMAS, Kind
from rstar2.data.taught import ANSWER_FORM, FormCounts, count_form
from rstar2.errors import UserError
from rstar2.loop.turns.demands import FormatTexts

TOKENS_OF = Callable[[list[dict[str, Any]]], list[int]]
"""Returns the number of tokens of each row, encoded as in a training stage."""
LIMITS: dict[Kind, int] = {"problems": 2048, "conversations": 16384}
"""The recipe's limits in tokens, for a prompt in RL and for a conversation in SFT."""
_COUNTED = 20_000
"""Tokens and forms are counted in at most this many rows. In a larger set, only every n-th row is counted."""
_BATCH = 1000


@dataclass(frozen=True)
class Prepared:
    """The file of a prepared set, and the kind and number of its rows."""

    file: Path
    kind: Kind
    rows: int

    def read(self, columns: list[str] | None = None) -> Iterator[dict[str, Any]]:
        """Yields the rows. Only one batch is in memory at a time."""
        for batch in pq.ParquetFile(self.file).iter_batches(_BATCH, columns=columns):
            yield from batch.to_pylist()

    def sample(self, count: int, seed: int) -> list[dict[str, Any]]:
        """Returns rows drawn at random, in the order of the file."""
        chosen = set(random.Random(seed).sample(range(self.rows), min(count, self.rows)))
        return [row for at, row in enumerate(self.read()) if at in chosen]


def open_prepared(path: Path) -> Prepared:
    """Open a prepared folder or its parquet file. Raises UserError if `path` is neither."""
    file = prepared_file(path)
    hint = "Use a folder that `rstar2 data prepare` wrote, or its data.parquet."
    try:
        opened = pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"there is no prepared data at {path}: {str(error).splitlines()[0]}", hint) from error
    for kind, schema in SCHEMAS.items():
        if set(schema.names) - LATER_COLUMNS <= set(opened.schema_arrow.names):
            return Prepared(file, kind, opened.metadata.num_rows)
    columns = ", ".join(opened.schema_arrow.names)
    raise UserError(f"{file} contains neither problems nor conversations; its columns are {columns}", hint)


def count_tokens(name: str, tokens_of: TOKENS_OF, file: Path, kind: Kind) -> dict[str, Any]:
    """Returns the lengths of a set's rows in tokens, in the form of `Card.tokens`. `name` is the name of the
    tokenizer."""
    prepared = open_prepared(file)
    step = _step(prepared)
    counts: list[int] = []
    waiting: list[dict[str, Any]] = []
    for at, row in enumerate(prepared.read()):
        if at % step == 0:
            waiting.append(row)
        if len(waiting) >= _BATCH:
            counts += tokens_of(waiting)
            waiting = []
    counts += tokens_of(waiting) if waiting else []
    limit = LIMITS[kind]
    bounds = [2**power for power in range(5, max(counts).bit_length() + 1)]
    below = [sum(count <= bound for count in counts) for bound in bounds]
    return {
        "name": name,
        "counted": len(counts),
        "mean": sum(counts) / len(counts),
        "most": max(counts),
        "limit": limit,
        "over": sum(count > limit for count in counts) / len(counts),
        "histogram": [
            [bound, upto - before] for bound, upto, before in zip(bounds, below, [0, *below], strict=False)
        ],
    }


def by_source(prepared: Prepared) -> dict[str, int]:
    return dict(Counter(row["source"] for row in prepared.read(["source"])))


def form_by_source(prepared: Prepared, texts: FormatTexts) -> dict[str, dict[str, int]]:
    """Returns, for each source, the counts of `FormCounts` in a format and the number of `marked` rows.

    In a large set, only every n-th row is counted, as in `count_tokens`.
    """
    counts: dict[str, FormCounts] = {}
    marked: Counter[str] = Counter()
    for row in islice(prepared.read(), None, None, _step(prepared)):
        counts[row["source"]] = counts.get(row["source"], FormCounts()) + count_form(row, texts)
        marked[row["source"]] += bool(row.get(ANSWER_FORM))
    return {name: {"marked": marked[name], **asdict(each)} for name, each in counts.items()}


def _step(prepared: Prepared) -> int:
    """Returns the sampling interval n: every n-th row of the prepared set is counted."""
    return -(-prepared.rows // _COUNTED)


@dataclass(frozen=True)
class Difference:
    """The differences between two sets. Rows of the two sets are matched by their ids."""

    only_first: Counter[str]
    """Number of rows per source that only the first set has."""
    only_second: Counter[str]
    """Number of rows per source that only the second set has."""
    changed: Counter[str]
    """Number of rows per source with the same id but different contents in the two sets."""
    same: int
    examples: dict[str, list[str]]
    """A few ids of each kind of difference."""


def difference(first: Path, second: Path) -> Difference:
    """Compare two prepared sets.

    Raises UserError if one of the two paths is not a prepared set, or if the sets contain different kinds of rows.
    """
    one, other = open_prepared(first), open_prepared(second)
    if one.kind != other.kind:
        raise UserError(
            f"{first} contains {one.kind}, but {second} contains {other.kind}",
            "Compare two sets of the same kind.",
        )
    if sha256(one.file) == sha256(other.file):
        return Difference(Counter(), Counter(), Counter(), one.rows, {})
    waiting = {row["id"]: _content(row) for row in one.read()}
    counts: dict[str, Counter[str]] = {"first": Counter(), "second": Counter(), "changed": Counter()}
    examples: dict[str, list[str]] = {"first": [], "second": [], "changed": []}

    def note(kind: str, name: str, source: str) -> None:
        counts[kind][source] += 1
        if len(examples[kind]) < 3:
            examples[kind].append(name)

    same = 0
    for row in other.read():
        content = waiting.pop(row["id"], None)
        if content is None:
            note("second", row["id"], row["source"])
        elif content != _content(row):
            note("changed", row["id"], row["source"])
        else:
            same += 1
    if waiting:
        for row in one.read(["id", "source"]):
            if row["id"] in waiting:
                note("first", row["id"], row["source"])
    return Difference(counts["first"], counts["second"], counts["changed"], same, examples)


def _content(row: dict[str, Any]) -> int:
    return hash(repr(sorted(row.items())))
