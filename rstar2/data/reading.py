"""Reads a source's rows from files or the hub into one file of candidates, a piece at a time.

JSON lines and parquet are read. A file that lacks a column is refused as a whole; a row that cannot be used is
counted with its reason, and the others are read.
"""

from __future__ import annotations

import hashlib
import logging
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, TextIO, TypedDict

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rstar2.data.candidates import Candidates, encoded, schema_of
from rstar2.data.normalize import meant_of, normalized
from rstar2.data.rows import Refused, as_json, key_of, parsed
from rstar2.data.source import HubSet, Row, Source
from rstar2.data.workers import mapped
from rstar2.errors import UserError

PIECE_BYTES = 1 << 21
"""Of JSON lines in one piece."""
PIECE_ROWS = 2048
"""Of a table in one piece."""
EXAMPLES = 3
"""Refused rows of each reason that are kept to be shown."""

OnRows = Callable[[int], None]
"""Called with how many rows more were read."""


@dataclass(frozen=True)
class Origin:
    """Where a source's rows are: files that stand in for the hub, or sets on the hub."""

    name: str
    """The source's."""
    source: Source
    files: tuple[Path, ...] = ()

    def size(self) -> int:
        """Of the files, in bytes; a UserError where one cannot be read."""
        return sum(map(_size, self.files))

    def identity(self) -> list[dict[str, Any]]:
        """What is read, with SHA-256 of each file; a UserError where a file cannot be read."""
        if not self.files:
            return [{"hub": str(part)} for part in self.source.hub]
        return [{"file": file.name, "bytes": _size(file), "sha256": sha256(file)} for file in self.files]


@dataclass
class ReadCounts:
    """What became of a source's rows."""

    read: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)
    """A few refused rows: `place`, `reason` and `detail`."""
    hub: list[dict[str, str]] = field(default_factory=list)
    """What the hub gave: `hub` and `sha256`."""

    def add(self, example: dict[str, str]) -> None:
        """Count a refused row."""
        reason = example["reason"]
        self.refused[reason] = self.refused.get(reason, 0) + 1
        if self.refused[reason] <= EXAMPLES:
            self.examples.append(example)


@dataclass(frozen=True)
class _Piece:
    """Rows of one file or set that follow each other."""

    place: str
    first: int
    """The number of its first row or line, from 1."""
    rows: int
    """Rows or lines in it."""
    before: int
    """Rows or lines of the source in the files before this one."""
    given: Any
    """Where JSON lines begin in the file, and how many bytes they take; or a record batch."""


@dataclass(frozen=True)
class _Converted:
    place: str
    candidates: bytes
    refused: list[tuple[int, str, str]]
    """Row number, reason, detail."""
    rows: int


def sha256(path: Path) -> str:
    """A file's SHA-256; a UserError where it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "Check the path.") from error


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "Check the path.") from error


def read_source(origin: Origin, part: Path, refused: TextIO, on_rows: OnRows) -> ReadCounts:
    """Write a source's candidates to the file `part`, a record batch per piece. → what was read and refused.

    Rows that are refused go to `refused`, as JSON lines of `place`, `reason` and `detail`.

    UserError where a file cannot be read, lacks a column, has no rows or repeats an id, or the hub does not answer.
    """
    counts = ReadCounts()
    convert = _Convert(origin.name, origin.source)
    with part.open("wb") as file:
        for done in mapped(convert, _pieces(origin, counts)):
            counts.read += done.rows
            for number, reason, detail in done.refused:
                example = {"place": f"{done.place}, row {number}", "reason": reason, "detail": detail}
                refused.write(as_json(example) + "\n")
                counts.add(example)
            file.write(done.candidates)
            on_rows(done.rows)
    if not counts.read:
        raise UserError(f"{origin.name}: no rows in {_named(origin)}", "Give a file that has rows.")
    if "id" in origin.source.more:
        _refuse_repeated_ids(origin, part)
    return counts


def _refuse_repeated_ids(origin: Origin, part: Path) -> None:
    """A UserError where two candidates have the same id: results are told apart by it."""
    rows = Candidates(origin.source.kind, [(origin.name, part)])
    live = rows.live_numbers()
    keys = np.empty(len(live), dtype=np.int64)
    for numbers, table in rows.batches(["id"], live):
        keys[numbers] = list(map(hash, table["id"].to_pylist()))
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    suspects = np.flatnonzero(np.isin(keys, keys[first[counts > 1]]))
    twice = [name for name, count in Counter(rows.values("id", suspects).values()).items() if count > 1]
    if twice:
        raise UserError(
            f"{origin.name}: two rows of {_named(origin)} have the id {twice[0].removeprefix(f'{origin.name}-')!r}",
            "Give each row its own id, or leave out ids: rows are then numbered. A row without one has its number.",
        )


def _named(origin: Origin) -> str:
    return ", ".join(map(str, origin.files or origin.source.hub))


def _pieces(origin: Origin, counts: ReadCounts) -> Iterator[_Piece]:
    name, source = origin.name, origin.source
    before = 0
    for place in origin.files or source.hub:
        first = 1
        for rows, given in _given(name, source, place, counts):
            yield _Piece(str(place), first, rows, before, given)
            first += rows
        before += first - 1


_Given = Iterator[tuple[int, Any]]
"""How many rows or lines, and `_Piece.given`."""


def columns_of(file: Path) -> list[str]:
    """The columns of a parquet file, or the keys of the first line of JSON lines; a UserError where it is neither."""
    try:
        if file.suffix == ".parquet":
            return list(pq.read_schema(file).names)
        if file.suffix == ".jsonl":
            with file.open("rb") as opened:
                return list(_first_row(file, opened.read(PIECE_BYTES) + opened.readline()))
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"cannot read {file}: {_line(error)}", "Check the path.") from error
    raise UserError(f"{file} is neither .jsonl nor .parquet", "Convert it to one of these.")


def _line(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text.splitlines()[0]


def _given(name: str, source: Source, place: Path | HubSet, counts: ReadCounts) -> _Given:
    if isinstance(place, HubSet):
        return _from_hub(name, source, place, counts)
    if place.suffix == ".parquet":
        return _from_parquet(name, source, place)
    if place.suffix == ".jsonl":
        return _from_lines(name, source, place)
    raise UserError(f"{place} is neither .jsonl nor .parquet", "Convert it to one of these.")


def _from_parquet(name: str, source: Source, file: Path) -> _Given:
    try:
        opened = pq.ParquetFile(file)
        columns = _columns(name, source, str(file), opened.schema_arrow.names)
        for batch in opened.iter_batches(PIECE_ROWS, columns=columns):
            yield batch.num_rows, batch
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"cannot read {file}: {_line(error)}", "Check that the file is parquet.") from error


def _from_lines(name: str, source: Source, file: Path) -> _Given:
    checked = False
    try:
        with file.open("rb") as opened:
            offset = len(BOM_UTF8) if opened.read(len(BOM_UTF8)) == BOM_UTF8 else 0
            opened.seek(offset)
            while lines := opened.read(PIECE_BYTES) + opened.readline():
                if not checked:
                    _columns(name, source, str(file), list(_first_row(file, lines)))
                    checked = True
                yield lines.count(b"\n") + (not lines.endswith(b"\n")), (offset, len(lines))
                offset += len(lines)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}", "Check the path.") from error


def _first_row(file: Path, lines: bytes) -> Row:
    found = ((number, line) for number, line in enumerate(lines.split(b"\n"), 1) if line.strip())
    number, line = next(found, (0, b""))
    return _object(file, number, line) if number else {}


def _object(place: object, number: int, line: bytes) -> dict[str, Any]:
    """The object on a line; a UserError where there is none."""
    try:
        value = parsed(line)
    except (ValueError, RecursionError) as error:
        hint = "Each line must be one JSON object. Check that the file is complete."
        raise UserError(f"{place}, line {number}: not JSON: {error}", hint) from error
    if not isinstance(value, dict):
        raise UserError(
            f"{place}, line {number}: not a JSON object but {type(value).__name__}", "Correct the line."
        )
    return value


def _columns(name: str, source: Source, place: str, found: list[str]) -> list[str]:
    """The columns to read of those found; a UserError names what is missing."""
    for form in source.columns:
        if set(form) <= set(found):
            return [column for column in found if column in form or column in source.more]
    missing = min((sorted(set(form) - set(found)) for form in source.columns), key=len)
    forms = " or ".join(", ".join(form) for form in source.columns)
    raise UserError(
        f"{name}: {place} has no column {', '.join(missing)}; it has {', '.join(found) or 'none'}",
        f"{name} is read from the columns {forms}. If a column was renamed, rename it back; or give the file in place "
        "of the source's name, as your own data.",
    )


def _from_hub(name: str, source: Source, part: HubSet, counts: ReadCounts) -> _Given:
    import datasets

    # Without a network each of its retries would be logged.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    try:
        rows = datasets.load_dataset(part.hub_id, part.config, split=part.split)
    # The hub's libraries raise anything from OSError to their own types when it cannot be reached.
    except Exception as error:
        cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
        terms = (
            " The set is gated: accept its terms on the hub, then run `hf auth login`."
            if source.gated
            else ""
        )
        raise UserError(
            f"{name}: cannot load {part.hub_id} from the dataset hub or the local cache: {cause[:200]}",
            f"Without a network, give its rows as a file: --from {name}=FILE (.jsonl or .parquet).{terms}",
        ) from error
    columns = _columns(name, source, str(part), rows.column_names)
    digest = hashlib.sha256("".join(sha256(Path(each["filename"])) for each in rows.cache_files).encode())
    counts.hub.append({"hub": str(part), "sha256": digest.hexdigest() if rows.cache_files else "in memory"})
    for table in rows.select_columns(columns).with_format("arrow").iter(PIECE_ROWS):
        for batch in table.combine_chunks().to_batches():
            yield batch.num_rows, batch


@dataclass(frozen=True)
class _Convert:
    """Makes candidates of a piece, in whatever process it runs."""

    name: str
    source: Source

    def __call__(self, piece: _Piece) -> _Converted:
        rows: list[dict[str, Any]] = []
        refused = []
        read = 0
        for number, row in _rows_of(piece, self.source):
            read += 1
            try:
                rows.append(self._candidate(row, piece.before + number))
            except Refused as error:
                # A detail may quote half a surrogate pair.
                detail = error.detail.encode(errors="backslashreplace").decode()
                refused.append((number, error.reason, detail))
            except RecursionError:
                refused.append((number, "malformed", "it is nested too deeply"))
        batch = pa.RecordBatch.from_pylist(rows, schema=schema_of(self.source.kind))
        return _Converted(piece.place, encoded(batch) if rows else b"", refused, read)

    def _candidate(self, row: Row, number: int) -> dict[str, Any]:
        found = self.source.read(row)
        found["id"] = f"{self.name}-{found.get('id', number)}"
        found["source"] = self.name
        found["family"] = self.source.family
        found.setdefault("licence", self.source.licence)
        found.update(_working(found))
        return found


def _working(row: Mapping[str, Any]) -> dict[str, int]:
    if "problem" in row:
        text, answer = row["problem"], row["answer"]
        return {
            "key": key_of(meant_of(normalized(text))),
            "answer_key": key_of(answer),
            "characters": len(text),
        }
    said = [row["tools"]]
    characters = 0
    for message in row["messages"]:
        content = message["content"] or ""
        characters += len(content)
        said += (message["role"], content)
        for each in message.get("tool_calls") or ():
            said += each["function"].values()
            characters += sum(map(len, each["function"].values()))
    return {"key": key_of("\0".join(said)), "answer_key": 0, "characters": characters}


def _rows_of(piece: _Piece, source: Source) -> Iterable[tuple[int, Row]]:
    if not isinstance(piece.given, tuple):
        return enumerate(_of_batch(piece.given), piece.first)
    offset, size = piece.given
    try:
        with open(piece.place, "rb") as file:
            file.seek(offset)
            lines = file.read(size)
    except OSError as error:
        raise UserError(f"cannot read {piece.place}: {error.strerror}", "Check the path.") from error
    decode = _decoder(source.columns, source.more).decode
    try:
        if not lines.isascii():
            # The decoder passes over columns that are not read, whatever bytes are in them.
            lines.decode()
        rows = [decode(line) for line in lines.split(b"\n") if line]
    except (msgspec.DecodeError, ValueError, RecursionError):
        # The lines, one by one, say which of them it is.
        rows = []
    if len(rows) == piece.rows:
        return enumerate(rows, piece.first)
    # Not splitlines(): it would split at a carriage return too.
    numbered = enumerate(lines.split(b"\n"), piece.first)
    return ((number, _object(piece.place, number, line)) for number, line in numbered if line.strip())


def _of_batch(batch: Any) -> list[Row]:
    """The rows of a record batch. Within a column, a null of a struct counts as absent.

    Structs have all the keys of all the rows: a tool or a call has null for the keys that only others have.
    """
    rows: list[Row] = batch.to_pylist()
    if not any(pa.types.is_nested(kind) for kind in batch.schema.types):
        return rows
    return [{name: _without_nulls(value) for name, value in row.items()} for row in rows]


def _without_nulls(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_nulls(each) for each in value]
    if isinstance(value, dict):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    return value


@cache
def _decoder(forms: tuple[tuple[str, ...], ...], more: tuple[str, ...]) -> msgspec.json.Decoder[Row]:
    """Reads lines that are each one JSON object, of which it keeps the columns."""
    columns = dict.fromkeys([*chain(*forms), *more], Any)
    return msgspec.json.Decoder(TypedDict("Columns", columns, total=False))  # type: ignore[operator]
