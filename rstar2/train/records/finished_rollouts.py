"""Finished rollouts on disk, so that a run that is killed in the middle of a step does not make them again.

```
STAGE/finished-rollouts/
  settings.json           what rollouts depend on besides the weights; without this file none are kept
  step-12-DIGEST/         of step 12, by the weights of step 11; the digest is of their files and of the settings
    HOST-PID.rollouts     what one of VERL's workers has begun and finished since the trainer started
    reusable.rollouts     what may be used again, of earlier starts of the trainer
```

A failed rollout is made anew. If more than `MOST_FAILED` of a step's rollouts failed, nothing is used again, because
failures hit long rollouts most.

A rollout is used again only if every rollout that was begun before it has ended too. Those that a kill interrupts are
longer than others, and they are made anew, at any length; if all finished ones were used again, a killed step would
train on rollouts that are too short. With this rule the length of a rollout does not decide whether it is made anew.

A record is `_HEAD`, then a key as JSON, then for a finished rollout its body: JSON and three arrays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from rstar2 import __version__
from rstar2.errors import UserError
from rstar2.files import read_json, whole_path, write_json
from rstar2.loop.formats.format import FORMAT_FILE
from rstar2.runs import json_digest
from rstar2.train.trainer.checkpoints import actor_of, saved_step

FOLDER = "finished-rollouts"
SETTINGS_FILE = "settings.json"
REUSABLE = "reusable.rollouts"
_NO_INFLUENCE = (
    "format", "judge_url", "judge_token", "judge_wait_s", "traces", "trace_share", "may_end_unfinished"
)  # fmt: skip
"""Keys of agent_loop.yaml that do not change what a rollout is; the format's file is looked at itself."""
_HEAD = struct.Struct("<cIII")
"""Kind, bytes of the key, bytes of the body, CRC-32 of both."""
MOST_FAILED = 0.01
_BEGUN, _FINISHED, _FAILED = b"B", b"F", b"X"
_COUNTS = struct.Struct("<IIII")
"""Bytes of the body's JSON, tokens of the prompt and of the response, whether there are log-probabilities."""
log = logging.getLogger(__name__)

Key = tuple[str, int, int]
"""A rollout of a step: problem, how often the problem was handed out before in the step, number in its group."""


@dataclass(frozen=True)
class SavedRollout:
    """A graded rollout, as it goes to VERL."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    logprobs: list[float] | None
    fields: dict[str, Any]
    """All else, JSON-able."""

    def to_bytes(self) -> bytes:
        fields = json.dumps(self.fields).encode()
        counts = len(self.prompt_ids), len(self.response_ids), int(self.logprobs is not None)
        return b"".join(
            (
                _COUNTS.pack(len(fields), *counts),
                fields,
                np.asarray([*self.prompt_ids, *self.response_ids], "<u4").tobytes(),
                np.asarray(self.response_mask, "u1").tobytes(),
                np.asarray(self.logprobs or [], "<f4").tobytes(),
            )
        )

    @staticmethod
    def from_bytes(body: bytes) -> SavedRollout:
        chars, prompt, response, with_logprobs = _COUNTS.unpack_from(body)
        at = _COUNTS.size + chars
        ids = np.frombuffer(body, "<u4", prompt + response, at)
        at += ids.nbytes
        mask = np.frombuffer(body, "u1", response, at)
        at += mask.nbytes
        logprobs = np.frombuffer(body, "<f4", response, at).tolist() if with_logprobs else None
        fields = json.loads(body[_COUNTS.size : _COUNTS.size + chars])
        return SavedRollout(ids[:prompt].tolist(), ids[prompt:].tolist(), mask.tolist(), logprobs, fields)


class RolloutStore:
    """The finished rollouts of a stage, for one of VERL's workers: keeps its own, and returns those of earlier starts.

    The process that hands rollouts out decides by `folder_or_none` which folder a step has, for all workers. If each
    looked at the last checkpoint itself, one that a network file system shows an old state would keep nothing, and the
    rule for what is used again would not see its long rollouts.
    """

    def __init__(self) -> None:
        self._step: int | None = None
        self._folder: Path | None = None
        self._file: FileIO | None = None
        self._reusable: dict[Key, tuple[int, int]] = {}

    def take(self, step: int, key: Key) -> SavedRollout | None:
        """The rollout of this key that an earlier start of the trainer has finished, once; None if there is none."""
        if step != self._step:
            return None
        place = self._reusable.pop(key, None)
        if place is None or self._folder is None:
            return None
        try:
            with (self._folder / REUSABLE).open("rb") as file:
                file.seek(place[0])
                return SavedRollout.from_bytes(file.read(place[1]))
        except OSError as error:  # it can be made anew
            log.warning("a finished rollout of step %d cannot be read: %s", step, error)
            return None

    def begun(self, step: int, key: Key) -> None:
        """An engine has begun a rollout."""
        self._append(step, _BEGUN, key)

    def finished(self, step: int, key: Key, rollout: SavedRollout) -> None:
        """Keep a rollout."""
        self._append(step, _FINISHED, key, rollout.to_bytes())

    def failed(self, step: int, key: Key) -> None:
        """A rollout ended that is not kept, because it failed or lost a call; whenever it began, it is made anew."""
        self._append(step, _FAILED, key)

    def _append(self, step: int, kind: bytes, key: Key, body: bytes = b"") -> None:
        if self._folder is None or step != self._step:
            return
        try:
            if self._file is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                name = f"{socket.gethostname()}-{os.getpid()}.rollouts"
                self._file = (self._folder / name).open("ab", buffering=0)
            record = _record(kind, json.dumps([*key, time.time()]).encode(), body)
            if self._file.write(record) < len(record):
                raise OSError("it was not written whole")
        except OSError as error:  # training needs none of this
            log.warning("finished rollouts of step %d are no longer kept: %s", step, error)
            self._folder = None

    def turn_to(self, step: int, folder: Path | None) -> None:
        """Begin a step whose rollouts are in a folder; nothing is kept if that is None. Earlier steps are over."""
        if self._step is not None and step <= self._step:
            return
        if self._file is not None:
            self._file.close()
        self._step, self._folder, self._file, self._reusable = step, folder, None, {}
        try:
            if folder is not None:
                records = _records(folder / REUSABLE)
                self._reusable = {each.key: (each.body_at, each.body_bytes) for each in records}
        except OSError as error:
            log.warning("finished rollouts of step %d are not used again: %s", step, error)


def folder_or_none(stage: Path, step: int, model: str) -> Path | None:
    """As `step_folder`, but a fault is a warning: training needs none of this."""
    try:
        return step_folder(stage, step, model)
    except (OSError, UserError) as error:
        log.warning("finished rollouts of step %d are not kept: %s", step, error)
        return None


def step_folder(stage: Path, step: int, model: str) -> Path | None:
    """The folder for the rollouts of a step; None if none are kept, or the step is not the one after a checkpoint.

    `model` is what the stage starts from: a folder, or a hub id.
    """
    settings = read_json(stage / FOLDER / SETTINGS_FILE)
    if settings is None or saved_step(stage / "checkpoints") != step - 1:
        return None
    weights = Path(model) if step == 1 else actor_of(stage / "checkpoints" / f"global_step_{step - 1}")
    files = sorted(file for file in weights.glob("*") if file.is_file())
    about: list[Any] = [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files] or [
        model
    ]
    return stage / FOLDER / f"step-{step}-{json_digest([settings, about], 16)}"


def prepare(stage: Path, model: str) -> int:
    """Before a trainer starts: say that rollouts are kept, and which may be used again; returns how many may.

    Everything else in the folder is removed: other steps, and rollouts by other weights or settings.
    """
    write_json(stage / FOLDER / SETTINGS_FILE, _settings(stage))
    step = (saved_step(stage / "checkpoints") or 0) + 1
    kept = step_folder(stage, step, model)
    for folder in (stage / FOLDER).glob("step-*"):
        if folder != kept:
            shutil.rmtree(folder, ignore_errors=True)
    return _gather(kept) if kept is not None and kept.is_dir() else 0


def remove_up_to(stage: Path, step: int) -> None:
    """Remove the rollouts of steps that are in a checkpoint: up to `step`."""
    for folder in (stage / FOLDER).glob("step-*"):
        if int(folder.name.split("-")[1]) <= step:
            shutil.rmtree(folder, ignore_errors=True)


def forget(stage: Path) -> None:
    """Keep no rollouts of a stage, and remove those that are there."""
    shutil.rmtree(stage / FOLDER, ignore_errors=True)


def _settings(stage: Path) -> dict[str, Any]:
    [loop] = json.loads((stage / "agent_loop.yaml").read_text(encoding="utf-8"))
    files = {
        name: hashlib.sha256((stage / name).read_bytes()).hexdigest()
        for name in ("train.parquet", FORMAT_FILE)
    }
    influence = {name: value for name, value in loop.items() if name not in _NO_INFLUENCE}
    return {"version": __version__, **files, "agent_loop": json_digest(influence, 16)}


@dataclass(frozen=True)
class _Record:
    kind: bytes
    key: Key
    at_s: float
    """When it was written, by the clock."""
    start: int
    body_at: int
    body_bytes: int

    @property
    def end(self) -> int:
        return self.body_at + self.body_bytes


def _record(kind: bytes, key: bytes, body: bytes) -> bytes:
    return _HEAD.pack(kind, len(key), len(body), zlib.crc32(body, zlib.crc32(key))) + key + body


def _records(path: Path, checked: bool = False) -> Iterator[_Record]:
    """The records of a file; if they are to be `checked`, up to the first that a kill has torn."""
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        size, start = os.fstat(file.fileno()).st_size, 0
        while start + _HEAD.size <= size:
            kind, key_bytes, body_bytes, crc = _HEAD.unpack(file.read(_HEAD.size))
            body_at = start + _HEAD.size + key_bytes
            if body_at + body_bytes > size:
                return
            key = file.read(key_bytes)
            # A kill may have torn it, or the power have failed before the disk had it.
            if checked and zlib.crc32(file.read(body_bytes), zlib.crc32(key)) != crc:
                return
            problem, handed_out, session, at_s = json.loads(key)
            record = _Record(kind, (problem, handed_out, session), at_s, start, body_at, body_bytes)
            yield record
            start = record.end
            file.seek(start)


def _gather(folder: Path) -> int:
    """Put what may be used again into one file, and remove the workers' files; returns how many rollouts it holds."""
    begun: dict[Key, float] = {}
    failed: set[Key] = set()
    finished: dict[Key, tuple[Path, _Record]] = {}
    old = folder / REUSABLE
    files = [file for file in sorted(folder.glob("*.rollouts")) if file != old]
    for file in files:
        for record in _records(file, checked=True):
            if record.kind == _BEGUN:
                begun[record.key] = record.at_s
            elif record.kind == _FINISHED:
                finished[record.key] = file, record
            else:
                failed.add(record.key)
    if len(failed) > MOST_FAILED * (len(finished) + len(failed)):
        shutil.rmtree(folder)
        return 0
    ended = finished.keys() | failed
    unfinished_since = min((at_s for key, at_s in begun.items() if key not in ended), default=float("inf"))
    reusable = {record.key: (old, record) for record in _records(old, checked=True)}
    reusable |= {key: place for key, place in finished.items() if begun.get(key, 0.0) < unfinished_since}
    with whole_path(old) as part, part.open("wb") as written:
        for path, record in reusable.values():
            with path.open("rb") as source:
                source.seek(record.start)
                written.write(source.read(record.end - record.start))
    for file in files:
        file.unlink()
    return len(reusable)
