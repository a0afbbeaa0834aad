"""Encodes the conversations of SFT once, on all cores of the machine, and stores the result for later runs.

```
data/sft/.rstar2-encoded/           beside the data, or in the user's cache if that folder is read-only
  data.parquet-0f3a…/               the encoding for one tokenizer and format
    data.arrow                      token ids and loss masks: an Arrow file with 5 bytes per token
    index.npz                       for each conversation: number of tokens, position of the first trained token
    questions.arrow                 the question of each conversation, to find near duplicates
    groups-….npy                    groups of conversations with nearly the same question, if already computed
    record.json                     name and SHA-256 of the data, and the form check of its turns
``` A folder is complete when it appears, because it is renamed into place. A process that waits while another process
encodes the same file uses the result of the other process. The folder's name contains a digest of everything that
decides the token ids, including the code.

A process holds a shared lock on the `record.json` of each encoding that it uses. When a process looks for an encoding,
it removes old encodings that no process has locked: encodings made by another version of the code, and encodings of a
file that has changed or no longer exists.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import shutil
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

import rstar2
from rstar2.data import answer_form, taught
from rstar2.data.candidates import Candidates, encoded, schema_of
from rstar2.data.filters.near import near_duplicates
from rstar2.data.filters.settings import Near
from rstar2.data.parquet import iter_batches
from rstar2.data.reading import sha256
from rstar2.data.workers import mapped
from rstar2.errors import Failure, UserError
from rstar2.files import home_folder, read_json, whole_folder, whole_path, write_json
from rstar2.loop import turns
from rstar2.loop.formats.format import FORMAT_FILE
from rstar2.loop.turns.choose import codec_for, load_tokenizer, model_format, named_format
from rstar2.loop.turns.codec import ChatCodec, Encoded
from rstar2.runs import json_digest, locked
from rstar2.train import conversations, form_check
from rstar2.train.conversations import (
    HOW_A_ROW_LOOKS,
    conversation_fault,
    encode,
    question_of,
    read_conversations,
)
from rstar2.train.form_check import FormCheck, check_form

STORE = ".rstar2-encoded"
"""The name of the folder for encodings beside the data."""
DATA = "data.arrow"
PIECE_ROWS = 128
"""Number of conversations that a process encodes at a time."""
_INDEX = "index.npz"
_QUESTIONS = "questions.arrow"
_RECORD = "record.json"

Numbers = npt.NDArray[np.int64]
OnRows = Callable[[int], None]
"""Called with the total number of conversations encoded so far."""


@dataclass(frozen=True)
class EncodedData:
    """The encoded conversations of one file."""

    folder: Path
    digest: str
    """SHA-256 of the file with the conversations."""

    @cached_property
    def _index(self) -> dict[str, Numbers]:
        with np.load(self.folder / _INDEX) as index:
            return {name: index[name].astype(np.int64) for name in index.files}

    @property
    def lengths(self) -> Numbers:
        """The number of tokens of each conversation, of shape (conversations,)."""
        return self._index["lengths"]

    @property
    def first_taught(self) -> Numbers:
        """For each conversation, the index of the first token that is trained on, of shape (conversations,)."""
        return self._index["first_taught"]

    @cached_property
    def form(self) -> FormCheck:
        """The check of the conversations against their system texts, and against the form that RL rewards."""
        record: dict[str, Any] = read_json(self.folder / _RECORD) or {}
        return FormCheck.of_json(record["form"])

    def copy_to(self, file: Path) -> None:
        """Puts the conversations into a run's folder: as a hard link if possible, and otherwise as a copy."""
        if file.exists():
            return
        file.parent.mkdir(parents=True, exist_ok=True)
        with whole_path(file) as part:
            try:
                os.link(self.folder / DATA, part)
            except OSError:  # on another disk, or on a disk without hard links
                shutil.copyfile(self.folder / DATA, part)


def taught_codec(named: str | None, model: Path) -> ChatCodec:
    """Returns the codec of the format that SFT teaches a model.

    Args:
        named: the recipe's `format`. If `format` is empty, SFT teaches the format of the model's format file. If
            `format` is empty and the model has no format file, SFT teaches rstar2's default format.
    """
    tokenizer = load_tokenizer(model)
    current, source = model_format(model, tokenizer)
    if named:
        return codec_for(tokenizer, named_format(named, current, source), named)
    return codec_for(tokenizer, current, source) if source == FORMAT_FILE else codec_for(tokenizer)


@dataclass(frozen=True)
class CodecOf:
    """Picklable arguments of `taught_codec`, for processes that load the codec themselves."""

    named: str | None
    """The value of the recipe's key `format`."""
    model: Path
    digest: str
    """The digest of the codec (`ChatCodec.digest`)."""

    def load(self) -> ChatCodec:
        """Returns the codec. A process loads each codec only once."""
        return _loaded(self)


@lru_cache(maxsize=1)
def _loaded(codec: CodecOf) -> ChatCodec:
    return taught_codec(codec.named, codec.model)


def encoded_data(data: Path, codec: CodecOf, on_rows: OnRows = lambda count: None) -> EncodedData:
    """Returns the encoded conversations of a file. Encodes the conversations if no earlier run has encoded them.

    Args:
        on_rows: called with the number of conversations encoded so far.

    Raises:
        UserError: a row is not a conversation.
        Failure: the disk is full, or a process died.
    """
    content = sha256(data)
    about = _about(content, codec)
    with _store(data) as store:
        folder = store / _name(data, about)
        _remove_unusable(store, data, content)
        if (folder / _RECORD).exists():
            return _in_use(folder, content)
        try:
            with whole_folder(folder) as part:
                form = _encode(data, content, codec, part, on_rows)
                write_json(part / _RECORD, {"file": data.name, **about, "form": form.as_json()})
        except OSError as error:
            raise Failure(
                f"cannot write to {folder}: {error.strerror or error}",
                "Free disk space, then run the same command again.",
            ) from error
        return _in_use(folder, content)


def known_encoding(data: Path, codec: CodecOf) -> EncodedData | None:
    """Returns the encoded conversations of a file if an earlier run has encoded them, and None otherwise."""
    content = sha256(data)
    folder = _store_of(data) / _name(data, _about(content, codec))
    try:
        encoded = _in_use(folder, content)
    except FileNotFoundError:
        return None
    # Another process may have removed the folder before the lock was taken.
    return encoded if (folder / _RECORD).exists() else None


def _about(content: str, codec: CodecOf) -> dict[str, str]:
    """Returns the digests of everything that decides the token ids of a file."""
    return {"data": content, "codec": codec.digest, "code": _code_digest()}


def _name(data: Path, about: dict[str, str]) -> str:
    return f"{data.name}-{json_digest(about, 16)}"


def _in_use(folder: Path, content: str) -> EncodedData:
    """Returns an encoding, and locks it so that it is not removed while the returned object exists."""
    encoded = EncodedData(folder, content)
    record = os.open(folder / _RECORD, os.O_RDONLY)
    weakref.finalize(encoded, os.close, record)
    fcntl.flock(record, fcntl.LOCK_SH)
    return encoded


def _remove_unusable(store: Path, data: Path, content: str) -> None:
    """Removes leftovers of killed processes, and encodings that can no longer be used. The caller must hold the store's
    lock.

    Args:
        store: the folder that contains the encodings of `data`, and of other files in the same folder as `data`.
        content: the SHA-256 of `data`.
    """
    code = _code_digest()
    for folder in store.iterdir():
        if folder.suffix == ".part":
            shutil.rmtree(folder, ignore_errors=True)
        elif record := read_json(folder / _RECORD) if folder.is_dir() else None:
            file = data.absolute().with_name(record["file"])
            changed = file.name == data.name and record["data"] != content
            if record.get("code") != code or changed or not file.is_file():
                _remove_unless_in_use(folder)


def _remove_unless_in_use(folder: Path) -> None:
    with (folder / _RECORD).open("r+b") as record:
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        shutil.rmtree(folder, ignore_errors=True)


def groups_of(parts: list[EncodedData]) -> Numbers:
    """Groups conversations that ask nearly the same question.

    Questions are compared as sets of words, by the stricter rule of the filter `near-duplicates`
    (`rstar2.data.filters.near`). The rule may put different conversations into one group. Groups that are too large do
    less harm than validation questions that also occur in the training data.

    Args:
        parts: the encodings of one or more files. The conversations of all files are numbered consecutively.

    Returns:
        For each conversation, the number of the first conversation of its group, of shape (conversations,).
    """
    names = [part.folder.name for part in parts]
    file = parts[0].folder / f"groups-{json_digest(names, 16)}.npy"
    if not file.exists():
        rows = Candidates("conversations", [(part.digest, part.folder / _QUESTIONS) for part in parts])
        starts = {part.digest: int(start) for part, start in zip(parts, rows.starts, strict=False)}
        groups = np.arange(rows.starts[-1])
        scratch = file.with_suffix(f".{os.getpid()}.scratch")
        for later, earlier in near_duplicates(rows, Near(words=1), scratch):
            digest, _, number = earlier["near"].partition(":")
            groups[later] = starts[digest] + int(number)
        with whole_path(file) as part_file, part_file.open("wb") as opened:
            np.save(opened, groups)
    loaded: Numbers = np.load(file)
    return loaded


def _store_of(data: Path) -> Path:
    """Returns the folder for the encodings of a file."""
    store = data.absolute().parent / STORE
    if os.access(store if store.is_dir() else store.parent, os.W_OK):
        return store
    cache = Path(os.environ.get("XDG_CACHE_HOME") or home_folder() / ".cache") / "rstar2" / "encoded"
    return cache / hashlib.sha256(str(store).encode()).hexdigest()[:16]


@contextmanager
def _store(data: Path) -> Iterator[Path]:
    """Locks the folder for the encodings of a file, and yields the folder. Waits while another process holds the
    lock."""
    store = _store_of(data)
    try:
        store.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot make the folder {store} for encoded conversations: {error.strerror}",
            "Set XDG_CACHE_HOME to a folder that you may write to.",
        ) from error
    with locked(store, wait_s=math.inf):
        yield store


def _code_digest() -> str:
    """Returns a digest of the code that encodes conversations, and of the version of the library `tokenizers`."""
    import tokenizers

    digest = hashlib.sha256(f"{rstar2.__version__} {tokenizers.__version__}".encode())
    modules = (answer_form, taught, conversations, form_check)
    files = [Path(module.__file__) for module in modules if module.__file__]
    for file in (*sorted(Path(turns.__file__).parent.glob("*.py")), *files, Path(__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Piece:
    """A piece of a file: consecutive conversations, which one process encodes."""

    file: Path
    first: int
    """The number of the first row in the file, from 1."""
    rows: Any
    """The piece's rows: a record batch, or a list of rows that have already been checked."""


@dataclass(frozen=True)
class _EncodedPiece:
    """The encoding of one piece of a file. `rstar2.data.candidates.encoded` makes the bytes of the encoding."""

    conversations: bytes
    questions: bytes
    form: FormCheck


@dataclass(frozen=True)
class _Encoder:
    """Encodes one piece of a file. Raises UserError if a row is not a conversation. The message names the row."""

    codec: CodecOf
    content: str
    """SHA-256 of the file with the conversations."""

    def __call__(self, piece: _Piece) -> _EncodedPiece:
        codec = self.codec.load()
        rows = piece.rows if isinstance(piece.rows, list) else _checked(piece)
        around = codec.format.around_problem
        question_rows = [
            {
                "id": f"{self.content}:{number}",
                "messages": [{"role": "user", "content": question_of(row["messages"], around)}],
                "characters": 0,
            }
            for number, row in enumerate(rows, piece.first - 1)
        ]
        questions = pa.RecordBatch.from_pylist(question_rows, schema=schema_of("conversations"))
        samples = batch_of([self._sample(row, piece, number) for number, row in enumerate(rows, piece.first)])
        form = check_form(rows, codec.texts, piece.first)
        return _EncodedPiece(encoded(samples), encoded(questions), form)

    def _sample(self, row: dict[str, Any], piece: _Piece, number: int) -> Encoded:
        try:
            return encode(row, self.codec.load())
        except UserError as error:
            raise UserError(
                f"{piece.file}, row {number}: {error.message}",
                "Remove the row, or teach a format that can represent the row (--set format=…).",
            ) from error


def _checked(piece: _Piece) -> list[dict[str, Any]]:
    """Returns the rows of a record batch. Raises UserError if a row is not a conversation."""
    rows: list[dict[str, Any]] = piece.rows.to_pylist()
    for number, row in enumerate(rows, piece.first):
        if fault := conversation_fault(row):
            raise UserError(f"{piece.file}, row {number}: {fault}", HOW_A_ROW_LOOKS)
    return rows


def _pieces(data: Path) -> Iterator[_Piece]:
    first = 1
    if data.suffix == ".parquet":
        for batch in iter_batches(data, PIECE_ROWS, "messages"):
            yield _Piece(data, first, batch)
            first += batch.num_rows
        return
    rows: list[dict[str, Any]] = []
    for row in read_conversations(data):
        rows.append(row)
        if len(rows) == PIECE_ROWS:
            yield _Piece(data, first, rows)
            first, rows = first + len(rows), []
    if rows:
        yield _Piece(data, first, rows)


def _encode(data: Path, content: str, codec: CodecOf, folder: Path, on_rows: OnRows) -> FormCheck:
    """Writes the encoding of a file to `folder`. Returns the form check of the file's conversations.

    The texts of only a few pieces are in memory at the same time.
    """
    encoder, form = _Encoder(codec, content), FormCheck()
    lengths, first_taught = array("i"), array("i")

    def batches() -> Iterator[Any]:
        nonlocal form
        with (folder / _QUESTIONS).open("wb") as questions:
            for piece in mapped(encoder, _pieces(data)):
                questions.write(piece.questions)
                form += piece.form
                batch = pa.ipc.open_stream(piece.conversations).read_next_batch()
                for mask in batch.column("loss_mask"):
                    taught = mask.values.to_numpy()
                    lengths.append(len(taught))
                    first_taught.append(int(taught.argmax()))
                on_rows(len(lengths))
                yield batch

    write_batches(folder / DATA, batches())
    with (folder / _INDEX).open("wb") as index:
        np.savez(index, lengths=np.array(lengths), first_taught=np.array(first_taught))
    return form


_COLUMNS = {"input_ids": pa.int32(), "loss_mask": pa.int8()}
_SCHEMA = pa.schema([(name, pa.list_(kind)) for name, kind in _COLUMNS.items()])


def batch_of(samples: Sequence[Encoded]) -> Any:
    """Returns a record batch with the token ids and loss masks of some conversations."""
    ends = accumulate((len(each.input_ids) for each in samples), initial=0)
    offsets = pa.array(list(ends), type=pa.int32())
    lists = [
        pa.ListArray.from_arrays(offsets, _joined([getattr(each, name) for each in samples], kind))
        for name, kind in _COLUMNS.items()
    ]
    return pa.record_batch(lists, schema=_SCHEMA)


def write_batches(file: Path, batches: Iterable[Any]) -> None:
    """Writes the record batches from `batch_of` to an Arrow file, which `rstar2.train.verl.sft_dataset` reads."""
    with pa.OSFile(str(file), "wb") as opened, pa.ipc.new_file(opened, _SCHEMA) as writer:
        for batch in batches:
            writer.write_batch(batch)


def _joined(parts: list[array[int]], kind: Any) -> Any:
    """Concatenates arrays into one Arrow array."""
    values = array(parts[0].typecode)
    for part in parts:
        values.extend(part)
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(values)])
