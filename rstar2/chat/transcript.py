"""Saves the answers of a chat in a run's folder, as traces. A report can show the traces, and a later chat can continue
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rstar2.errors import UserError
from rstar2.files import write_json
from rstar2.loop.trace import Trace, TraceWriter, read_traces
from rstar2.loop.turns.codec import ChatCodec
from rstar2.runs import load_config, open_run

KIND = "chat"
TRACES = "traces.jsonl"


class Transcript:
    """A folder of traces, to which each answer of the chat is appended."""

    def __init__(self, folder: Path, writer: TraceWriter) -> None:
        self.folder = folder
        self._writer = writer

    def add(self, trace: Trace) -> None:
        """Append an answer. Raises UserError if the answer cannot be written."""
        try:
            self._writer.write(trace)
        except OSError as error:
            raise UserError(f"cannot write {self.folder / TRACES}: {error.strerror or error}") from error


@contextmanager
def open_transcript(
    folder: Path, codec: ChatCodec, model: str, earlier: Iterable[Trace] = ()
) -> Iterator[Transcript]:
    """Open the transcript in a folder for the length of a `with` block. An existing transcript is continued.

    Args:
        earlier: answers that are written to the transcript when it is opened, such as the answers of the chat so far.

    Raises:
        UserError: the folder has other contents or a chat in another format, or another process uses it.
    """
    _check(folder, codec)
    with open_run(folder, KIND, {"tokens_sha256": _tokens_digest(codec)}) as run, _writer(run.path) as writer:
        write_json(run.path / "results.json", {"model": {"name": model, "format": codec.source}})
        transcript = Transcript(run.path, writer)
        for trace in earlier:
            transcript.add(trace)
        yield transcript


def read_transcript(folder: Path, codec: ChatCodec) -> list[Trace]:
    """Returns the answers of a saved chat, in order.

    Raises UserError if the folder has no saved chat, or a chat in another format.
    """
    if not (folder / TRACES).is_file():
        raise UserError(f"no chat transcript at {folder}", "Give a folder that /save or --transcript made.")
    _check(folder, codec)
    return list(read_traces(folder / TRACES))


def _check(folder: Path, codec: ChatCodec) -> None:
    """Raise UserError if a folder contains anything except a transcript, or if the transcript's format or tokenizer
    differs from the model's.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a transcript folder", "Give a new folder.")
    if not (folder / "config.json").is_file():
        if folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise UserError(
                f"{folder} is not empty and has no chat transcript", "Give an empty or new folder."
            )
        return
    kind, config = load_config(folder)
    if kind != KIND:
        raise UserError(f"{folder} is a run of `{kind}`, not a chat transcript", "Give another folder.")
    if config.get("tokens_sha256") != _tokens_digest(codec):
        raise UserError(
            f"the format of the chat transcript {folder} differs from this model's format ({codec.source})",
            "Use the model that the transcript was made with, or give another folder.",
        )


def _tokens_digest(codec: ChatCodec) -> str:
    """Returns a SHA-256 digest of the format and of a sample prompt's token ids. Another tokenizer leads to another
    digest.
    """
    probe = codec.prompt(codec.format.messages("What is 12 + 34·π?"))
    return hashlib.sha256(f"{codec.format.digest} {probe}".encode()).hexdigest()


def _writer(folder: Path) -> TraceWriter:
    try:
        return TraceWriter(folder / TRACES)
    except OSError as error:
        raise UserError(f"cannot write {folder / TRACES}: {error.strerror or error}") from error
