"""Keeps a chat's answers in a run's folder, as traces that a report shows and a later chat continues."""

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
    """One folder of traces, which is written to as the chat continues."""

    def __init__(self, folder: Path, writer: TraceWriter) -> None:
        self.folder = folder
        self._writer = writer

    def add(self, trace: Trace) -> None:
        """Append an answer; a UserError where it cannot be written."""
        try:
            self._writer.write(trace)
        except OSError as error:
            raise UserError(f"cannot write {self.folder / TRACES}: {error.strerror or error}") from error


@contextmanager
def open_transcript(
    folder: Path, codec: ChatCodec, model: str, earlier: Iterable[Trace] = ()
) -> Iterator[Transcript]:
    """A new folder's transcript, or the one in it to be continued, for the length of the block.

    Args:
        earlier: answers to write first.

    Raises:
        UserError: the folder holds something else, a chat in another format, or is in use.
    """
    _check(folder, codec)
    with open_run(folder, KIND, {"tokens_sha256": _tokens_digest(codec)}) as run, _writer(run.path) as writer:
        write_json(run.path / "results.json", {"model": {"name": model, "format": codec.source}})
        transcript = Transcript(run.path, writer)
        for trace in earlier:
            transcript.add(trace)
        yield transcript


def read_transcript(folder: Path, codec: ChatCodec) -> list[Trace]:
    """The answers of a kept chat, in order; a UserError where there is none, or one in another format."""
    if not (folder / TRACES).is_file():
        raise UserError(f"no chat transcript at {folder}", "Give a folder that /save or --transcript made.")
    _check(folder, codec)
    return list(read_traces(folder / TRACES))


def _check(folder: Path, codec: ChatCodec) -> None:
    """Refuse a folder that holds something else, and a transcript whose ids mean something else to this model."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file, not a transcript folder", "Give a new folder.")
    if not (folder / "config.json").is_file():
        if folder.is_dir() and any(not entry.name.startswith(".") for entry in folder.iterdir()):
            raise UserError(
                f"{folder} is not empty and holds no chat transcript", "Give an empty or new folder."
            )
        return
    kind, config = load_config(folder)
    if kind != KIND:
        raise UserError(f"{folder} is a run of `{kind}`, not a chat transcript", "Give another folder.")
    if config.get("tokens_sha256") != _tokens_digest(codec):
        raise UserError(
            f"the chat transcript {folder} is in a different format from this model's ({codec.source})",
            "Use the model that the transcript was made with, or give another folder.",
        )


def _tokens_digest(codec: ChatCodec) -> str:
    """SHA-256 of the format and of a prompt's ids in it, which another tokenizer would not give."""
    probe = codec.prompt(codec.format.messages("What is 12 + 34·π?"))
    return hashlib.sha256(f"{codec.format.digest} {probe}".encode()).hexdigest()


def _writer(folder: Path) -> TraceWriter:
    try:
        return TraceWriter(folder / TRACES)
    except OSError as error:
        raise UserError(f"cannot write {folder / TRACES}: {error.strerror or error}") from error
