"""Reads the rows of a source from files or the hub, piece by piece, into one file of candidates.

The formats are JSON Lines, JSON files that contain a list, and parquet. If a file lacks a column, an error ends the
preparation. If a row cannot be used, the row is counted with the reason, and reading continues.
"""

from __future__ import annotations

import hashlib
import json
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
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
from rstar2.data.hub import Demand, HubFile, located, used_share
from rstar2.data.normalize import meant_of, normalized_problem
from rstar2.data.rows import Refused, as_json, key_of, parsed
from rstar2.data.source import Row, Source
from rstar2.data.workers import ahead, mapped
from rstar2.errors import UserError

PIECE_BYTES = 1 << 21
"""Size in bytes of a piece of JSON Lines."""
PIECE_ROWS = 2048
"""Number of rows in a piece of a table."""
EXAMPLES = 3
"""Maximum number of refused rows per reason that the card shows."""

_SEPARATOR = re.compile(r"[ \t\n\r]*([\[,\]])[ \t\n\r]*")
"""Matches a bracket or comma before, between or after the elements of a JSON list."""

OnRows = Callable[[int], None]
"""Called after each piece of a source with the number of rows in the piece."""


@dataclass(frozen=True)
class Origin:
    """A source and the files that replace its data sets on the hub, if there are any."""

    name: str
    """The name of the source."""
    source: Source
    files: tuple[Path, ...] = ()

    def size(self) -> int:
        """Returns the size of the files in bytes. Raises UserError if a file cannot be read."""
        return sum(map(_size, self.files))

    def identity(self) -> list[dict[str, Any]]:
        """Returns the inputs: the data sets on the hub, or the files with size and SHA-256.

        Raises UserError if a file cannot be read.
        """
        if not self.files:
            return [{"hub": str(part)} for part in self.source.hub]
        return [{"file": file.name, "bytes": _size(file), "sha256": sha256(file)} for file in self.files]


@dataclass
class ReadCounts:
    """How many rows of a source were read, and how many were refused."""

    read: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    examples: list[dict[str, str]] = field(default_factory=list)
    """Examples of refused rows: `place`, `reason` and `detail`."""
    hub: list[dict[str, Any]] = field(default_factory=list)
    """The data sets that were read from the hub: `hub`, `revision` and `files`."""

    def add(self, example: dict[str, str]) -> None:
        """Count a refused row."""
        reason = example["reason"]
        self.refused[reason] = self.refused.get(reason, 0) + 1
        if self.refused[reason] <= EXAMPLES:
            self.examples.append(example)


@dataclass(frozen=True)
class _Lines:
    """A byte range of a JSON Lines file that contains only whole lines."""

    file: Path
    offset: int
    size: int


_Contents = Iterator[tuple[int, Any]]
"""The pieces of a file. Each item is the number of rows or lines in a piece, and the `_Piece.content`."""
_Place = Path | HubFile
"""A file that contains rows: a path on this machine, or a file on the hub."""


@dataclass(frozen=True)
class _Piece:
    """Consecutive rows of one file."""

    place: str
    """The file's name, as messages show it."""
    first: int
    """Number of the piece's first row or line in the file, counted from 1."""
    rows: int
    """Number of rows or lines in the piece."""
    before: int
    """Number of rows or lines in earlier files of the source."""
    content: Any
    """`_Lines`, a list of JSON objects as bytes, or a record batch."""


@dataclass(frozen=True)
class _Converted:
    place: str
    candidates: bytes
    refused: list[tuple[int, str, str]]
    """The row number, the reason and the details of each refused row."""
    rows: int


def sha256(path: Path) -> str:
    """Returns the SHA-256 of a file. Raises UserError if the file cannot be read."""
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
    """Write a source's candidates to the file `part`, with one record batch per piece.

    Refused rows are written to `refused`, as JSON Lines with `place`, `reason` and `detail`.

    Raises:
        UserError: a file cannot be read, lacks a column, has no rows or repeats an id, or the hub does not answer.
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
        raise UserError(f"{origin.name}: {_place_names(origin)} has no rows", "Use a file that has rows.")
    if "id" in origin.source.more:
        _refuse_repeated_ids(origin, part)
    return counts


def _refuse_repeated_ids(origin: Origin, part: Path) -> None:
    """Raise UserError if two candidates have the same id, because ids identify results."""
    rows = Candidates(origin.source.kind, [(origin.name, part)])
    live = rows.live_numbers()
    keys = np.empty(len(live), dtype=np.int64)
    for numbers, table in rows.batches(["id"], live):
        keys[numbers] = list(map(hash, table["id"].to_pylist()))
    _, first, counts = np.unique(keys, return_index=True, return_counts=True)
    suspects = np.flatnonzero(np.isin(keys, keys[first[counts > 1]]))
    repeated = [name for name, count in Counter(rows.values("id", suspects).values()).items() if count > 1]
    if repeated:
        row_id = repeated[0].removeprefix(f"{origin.name}-")
        raise UserError(
            f"{origin.name}: two rows of {_place_names(origin)} have the id {row_id!r}",
            "Give each row its own id, or leave out all ids. A row without an id gets its row number as id.",
        )


def _place_names(origin: Origin) -> str:
    return ", ".join(map(str, origin.files or origin.source.hub))


def _pieces(origin: Origin, counts: ReadCounts) -> Iterator[_Piece]:
    before = 0
    for place in _places(origin, counts):
        first = 1
        for rows, content in _contents(origin, place):
            yield _Piece(str(place), first, rows, before, content)
            first += rows
        before += first - 1


def _places(origin: Origin, counts: ReadCounts) -> Iterator[_Place]:
    """Yields the files of a source. Data sets on the hub are added to `counts`."""
    if origin.files:
        yield from origin.files
        return
    for part in origin.source.hub:
        split = located(origin.name, part, origin.source.gated)
        counts.hub.append({"hub": str(part), "revision": split.revision, "files": len(split.files)})
        yield from split.files


def hub_demand(origin: Origin) -> Demand:
    """Returns the amount of data that reading a source needs from the hub.

    Raises:
        UserError: a set cannot be located (see `located`), or its first parquet file lacks a column.
    """
    read = download = 0
    for part in origin.source.hub:
        files = located(origin.name, part, origin.source.gated).files
        size = sum(file.size for file in files)
        if files and files[0].suffix == ".parquet":
            with files[0].parquet() as opened:
                columns = _columns(origin.name, origin.source, str(files[0]), opened.schema_arrow.names)
                size = int(size * used_share(opened, columns))
        read += size
        download += sum(file.size for file in files if file.is_downloaded_whole)
    return Demand(read, download)


def columns_of(file: Path) -> list[str]:
    """Returns the columns of a parquet file, or the keys of the first row of a JSON file.

    Raises:
        UserError: the file is neither parquet nor JSON, or cannot be read.
    """
    try:
        if file.suffix == ".parquet":
            return list(pq.read_schema(file).names)
        if file.suffix == ".json" and (rows := _listed_rows(file)) is not None:
            return list(_object(file, "row", 1, rows[0])) if rows else []
        if file.suffix in (".json", ".jsonl"):
            with file.open("rb") as opened:
                return list(_first_row(file, opened.read(PIECE_BYTES) + opened.readline()))
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"cannot read {file}: {_line(error)}", "Check the path.") from error
    raise _unknown_suffix(file)


def _unknown_suffix(place: _Place) -> UserError:
    return UserError(
        f"{place} is neither .json, .jsonl nor .parquet", "Convert the file to one of these formats."
    )


def _line(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text.splitlines()[0]


def _contents(origin: Origin, place: _Place) -> _Contents:
    name, source = origin.name, origin.source
    if place.suffix == ".parquet":
        if isinstance(place, HubFile):
            return ahead(_from_hub_parquet(name, source, place))
        return _from_parquet(name, source, place)
    if place.suffix not in (".json", ".jsonl"):
        raise _unknown_suffix(place)
    return _from_json(name, source, place)


def _from_parquet(name: str, source: Source, file: Path) -> _Contents:
    try:
        opened = pq.ParquetFile(file)
        columns = _columns(name, source, str(file), opened.schema_arrow.names)
        for batch in opened.iter_batches(PIECE_ROWS, columns=columns):
            yield batch.num_rows, batch
    except (OSError, pa.ArrowException) as error:
        raise UserError(f"cannot read {file}: {_line(error)}", "Check that the file is parquet.") from error


def _from_hub_parquet(name: str, source: Source, file: HubFile) -> _Contents:
    with file.parquet() as opened:
        columns = _columns(name, source, str(file), opened.schema_arrow.names)
        # One row group at a time: otherwise all groups would stay in memory until the last one is read.
        for group in range(opened.num_row_groups):
            for batch in opened.iter_batches(PIECE_ROWS, row_groups=[group], columns=columns):
                yield batch.num_rows, batch


def _from_json(name: str, source: Source, place: _Place) -> _Contents:
    file = place.path() if isinstance(place, HubFile) else place
    rows = _listed_rows(file) if place.suffix == ".json" else None
    if rows is None:
        yield from _from_lines(name, source, place, file)
        return
    if rows:
        _columns(name, source, str(place), list(_object(place, "row", 1, rows[0])))
    piece: list[bytes] = []
    size = 0
    for row in rows:
        piece.append(bytes(row))
        size += len(piece[-1])
        if size >= PIECE_BYTES:
            yield len(piece), piece
            piece, size = [], 0
    if piece:
        yield len(piece), piece


def _listed_rows(file: Path) -> list[Any] | None:
    """Returns the elements of a file's JSON list as JSON text, each as bytes or `msgspec.Raw`.

    Returns None if the file does not begin with a list.

    Raises:
        UserError: the file cannot be read, or is not JSON in UTF-8.
    """
    try:
        content = file.read_bytes().removeprefix(BOM_UTF8)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}", "Check the path.") from error
    _check_utf8(file, content)
    if content.lstrip()[:1] != b"[":
        return None
    try:
        return msgspec.json.decode(content, type=list[msgspec.Raw])
    except msgspec.DecodeError:
        pass
    try:
        return list(_texts_in_list(content.decode()))
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"{file} is not JSON: {error}",
            "The file must contain one list of objects. Check that the file is complete.",
        ) from error


def _texts_in_list(text: str) -> Iterator[bytes]:
    """Yields the JSON text of each element of a list, for lists that only the standard library can read.

    One example is a list in which a row contains NaN. The elements stay JSON text, so that the fast decoder can still
    read most of the elements.

    Raises:
        ValueError: the text is not a list in JSON.
    """
    decoder = json.JSONDecoder(strict=False)
    end, allowed = 0, "["
    while (separator := _SEPARATOR.match(text, end)) and separator[1] in allowed:
        if separator[1] == "]":
            if separator.end() < len(text):
                raise json.JSONDecodeError("Extra data", text, separator.end())
            return
        start = separator.end()
        _, end = decoder.raw_decode(text, start)
        yield text[start:end].encode()
        allowed = ",]"
    raise json.JSONDecodeError("Expecting ',' delimiter", text, end)


def _check_utf8(place: object, start: bytes) -> None:
    """Raise UserError if the first bytes of a JSON text show that the text is UTF-16 or UTF-32."""
    if start.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) or b"\0" in start[:4]:
        raise UserError(
            f"{place} is UTF-16 or UTF-32, not UTF-8",
            "Convert the file, for example with: iconv -f UTF-16 -t UTF-8 FILE > NEW_FILE",
        )


def _from_lines(name: str, source: Source, place: _Place, file: Path) -> _Contents:
    checked = False
    try:
        with file.open("rb") as opened:
            offset = len(BOM_UTF8) if opened.read(len(BOM_UTF8)) == BOM_UTF8 else 0
            opened.seek(offset)
            while lines := opened.read(PIECE_BYTES) + opened.readline():
                if not checked:
                    _columns(name, source, str(place), list(_first_row(place, lines)))
                    checked = True
                yield lines.count(b"\n") + (not lines.endswith(b"\n")), _Lines(file, offset, len(lines))
                offset += len(lines)
    except OSError as error:
        raise UserError(f"cannot read {file}: {error.strerror}", "Check the path.") from error


def _first_row(place: _Place, lines: bytes) -> Row:
    _check_utf8(place, lines)
    numbered = ((number, line) for number, line in enumerate(lines.split(b"\n"), 1) if line.strip())
    number, line = next(numbered, (0, b""))
    return _object(place, "line", number, line) if number else {}


def _object(place: object, unit: str, number: int, text: bytes) -> dict[str, Any]:
    """Returns the JSON object of a row or line. Raises UserError if the text is not a JSON object."""
    try:
        value = parsed(text)
    except (ValueError, RecursionError) as error:
        hint = f"Each {unit} must be one JSON object. Check that the file is complete."
        raise UserError(f"{place}, {unit} {number}: not JSON: {error}", hint) from error
    if not isinstance(value, dict):
        raise UserError(
            f"{place}, {unit} {number}: not a JSON object, but {type(value).__name__}", f"Correct the {unit}."
        )
    return value


def _columns(name: str, source: Source, place: str, columns: list[str]) -> list[str]:
    """Returns the columns of a file to read. Raises a UserError that names the missing columns, if there are any."""
    for form in source.columns:
        if set(form) <= set(columns):
            return [column for column in columns if column in form or column in source.more]
    missing = min((sorted(set(form) - set(columns)) for form in source.columns), key=len)
    forms = " or ".join(", ".join(form) for form in source.columns)
    raise UserError(
        f"{name}: {place} has no column {', '.join(missing)}; it has {', '.join(columns) or 'none'}",
        f"{name} needs the columns {forms}. If a column was renamed, rename it back. To use the file as your "
        "own data, name the file instead of the source.",
    )


@dataclass(frozen=True)
class _Convert:
    """Converts the rows of a piece to candidates. A `_Convert` is sent to the process that runs the conversion."""

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
                # A detail may quote a lone surrogate, which cannot be written to a file.
                detail = error.detail.encode(errors="backslashreplace").decode()
                refused.append((number, error.reason, detail))
            except RecursionError:
                refused.append((number, "malformed", "it is nested too deeply"))
        batch = pa.RecordBatch.from_pylist(rows, schema=schema_of(self.source.kind))
        return _Converted(piece.place, encoded(batch) if rows else b"", refused, read)

    def _candidate(self, row: Row, number: int) -> dict[str, Any]:
        candidate = self.source.read(row)
        candidate["id"] = f"{self.name}-{candidate.get('id', number)}"
        candidate["source"] = self.name
        candidate["family"] = self.source.family
        candidate.setdefault("licence", self.source.licence)
        candidate.update(_working_columns(candidate))
        return candidate


def _working_columns(row: Mapping[str, Any]) -> dict[str, int]:
    if "problem" in row:
        text, answer = row["problem"], row["answer"]
        return {
            "key": key_of(meant_of(normalized_problem(text))),
            "answer_key": key_of(answer),
            "characters": len(text),
        }
    texts = [row["tools"]]
    characters = 0
    for message in row["messages"]:
        content = message["content"] or ""
        characters += len(content)
        texts += (message["role"], content)
        for each in message.get("tool_calls") or ():
            texts += each["function"].values()
            characters += sum(map(len, each["function"].values()))
    return {"key": key_of("\0".join(texts)), "answer_key": 0, "characters": characters}


def _rows_of(piece: _Piece, source: Source) -> Iterable[tuple[int, Row]]:
    content = piece.content
    if isinstance(content, list):
        return _of_texts(piece, "row", content, source)
    if not isinstance(content, _Lines):
        return enumerate(_of_batch(content), piece.first)
    try:
        with content.file.open("rb") as file:
            file.seek(content.offset)
            lines = file.read(content.size)
    except OSError as error:
        raise UserError(f"cannot read {content.file}: {error.strerror}", "Check the path.") from error
    # splitlines() would also split at a carriage return.
    texts = lines.split(b"\n")
    return _of_texts(piece, "line", texts if texts[-1] else texts[:-1], source)


def _of_texts(piece: _Piece, unit: str, texts: list[bytes], source: Source) -> Iterable[tuple[int, Row]]:
    """Returns the rows that JSON texts contain, each with its number. Texts that contain only white space are
    skipped."""
    decode = _decoder(source.columns, source.more).decode
    try:
        for text in texts:
            if not text.isascii():
                # The decoder skips unused columns without checking that they are UTF-8.
                text.decode()
        return enumerate([decode(text) for text in texts], piece.first)
    except (msgspec.DecodeError, ValueError, RecursionError):
        # Parse the texts one by one, so that the error names the wrong one.
        numbered = enumerate(texts, piece.first)
        return (
            (number, _object(piece.place, unit, number, text)) for number, text in numbered if text.strip()
        )


def _of_batch(batch: Any) -> list[Row]:
    """Returns the rows of a record batch. Keys whose value is null are left out of structs.

    A struct in Arrow has the keys of all rows. Therefore a tool or a call has null for each key that only other rows
    use.
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
    """Returns a decoder for JSON objects that reads only the columns of a source."""
    columns = dict.fromkeys([*chain(*forms), *more], Any)
    return msgspec.json.Decoder(TypedDict("Columns", columns, total=False))  # type: ignore[operator]
