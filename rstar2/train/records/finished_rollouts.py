"""Saves finished rollouts to disk, so that they are reused if a run is killed in the middle of a step.

```
STAGE/finished-rollouts/
  settings.json           settings that rollouts depend on; without this file rollouts are not saved
  step-12-DIGEST/         rollouts of step 12; the digest is of the settings and of the weights of step 11
    HOST-PID.rollouts     rollouts that one of VERL's workers has begun or finished since the trainer started
    reusable.rollouts     rollouts that may be reused; they finished before the trainer was started again
```

When a run is resumed, its failed rollouts run again. If more than `MAX_FAILED_SHARE` of a step's rollouts failed, no
rollout of the step is reused: long rollouts fail most often, so the other rollouts are too short on average.

A rollout is reused only if every rollout that began before it has also ended. The reason is a bias towards short
rollouts: most rollouts that a kill interrupts are long, and they may be shorter when they run again. If all finished
rollouts were reused, the rollouts of a killed step would be too short on average. With this rule, whether a rollout is
reused does not depend on its length.

A record in a `.rollouts` file begins with `_HEAD` and a key as JSON. In the record of a finished rollout, the key is
followed by a body, which consists of `_COUNTS`, JSON and three arrays.
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
_IGNORED_KEYS = (
    "format", "judge_url", "judge_token", "judge_wait_s", "traces", "trace_share", "may_end_unfinished"
)  # fmt: skip
"""Keys of agent_loop.yaml whose values have no effect on rollouts. The key `format` is the path of the format file. The
path may change, but the content of the format file must stay the same for rollouts to be reused."""
_HEAD = struct.Struct("<cIII")
"""The header of a record: its kind, the length of the key in bytes, the length of the body in bytes, and the CRC-32 of
key and body."""
MAX_FAILED_SHARE = 0.01
"""If more than this share of a step's rollouts failed, the finished rollouts of the step are not reused."""
_BEGUN, _FINISHED, _FAILED = b"B", b"F", b"X"
_COUNTS = struct.Struct("<IIII")
"""The header of a body: the length of the JSON in bytes, the number of prompt tokens, the number of response tokens,
and a flag. The flag is 1 if the body has log-probabilities, else 0."""
log = logging.getLogger(__name__)

Key = tuple[str, int, int]
"""Identifies a rollout within a step: the problem's id, the number of earlier uses of the problem in the step, and the
rollout's number in its group."""


@dataclass(frozen=True)
class SavedRollout:
    """A graded rollout, with the data that is passed to VERL."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    logprobs: list[float] | None
    fields: dict[str, Any]
    """All data of the rollout other than its tokens, mask and log-probabilities, as JSON values."""

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
    """Saves the rollouts of one of VERL's workers, and returns rollouts that finished before the trainer was started
    again.

    One process chooses the folder of a step for all workers, with `folder_or_none`. If each worker looked up the last
    checkpoint itself, a worker could see an outdated state of a network file system, and save no rollouts. If a worker
    saved no rollouts, nobody would know which of the worker's rollouts have not ended, and the rule for reuse could not
    be applied.
    """

    def __init__(self) -> None:
        self._step: int | None = None
        self._folder: Path | None = None
        self._file: FileIO | None = None
        self._reusable: dict[Key, tuple[int, int]] = {}

    def take(self, step: int, key: Key) -> SavedRollout | None:
        """Returns the saved rollout with this key, or None if there is none. A saved rollout is returned only once."""
        if step != self._step:
            return None
        place = self._reusable.pop(key, None)
        if place is None or self._folder is None:
            return None
        try:
            with (self._folder / REUSABLE).open("rb") as file:
                file.seek(place[0])
                return SavedRollout.from_bytes(file.read(place[1]))
        except OSError as error:  # the rollout then runs again
            log.warning("a finished rollout of step %d cannot be read: %s", step, error)
            return None

    def begun(self, step: int, key: Key) -> None:
        """Records that an engine has begun a rollout."""
        self._append(step, _BEGUN, key)

    def finished(self, step: int, key: Key, rollout: SavedRollout) -> None:
        """Saves a rollout that has finished and is graded."""
        self._append(step, _FINISHED, key, rollout.to_bytes())

    def failed(self, step: int, key: Key) -> None:
        """Records that a rollout failed or lost a call to the judge, so that the rollout will run again."""
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
                raise OSError("a record was not written completely")
        except OSError as error:  # training can continue without saved rollouts
            log.warning("finished rollouts of step %d are no longer saved: %s", step, error)
            self._folder = None

    def turn_to(self, step: int, folder: Path | None) -> None:
        """Begins a step, and ends the previous step.

        Args:
            step: the step's number.
            folder: the folder for the step's rollouts, or None if the step's rollouts are not saved.
        """
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
            log.warning("finished rollouts of step %d are not reused: %s", step, error)


def folder_or_none(stage: Path, step: int, model: str) -> Path | None:
    """Returns the result of `step_folder`. If `step_folder` raises an error, the function logs a warning and returns
    None, because training can continue without the folder."""
    try:
        return step_folder(stage, step, model)
    except (OSError, UserError) as error:
        log.warning("finished rollouts of step %d are not saved: %s", step, error)
        return None


def step_folder(stage: Path, step: int, model: str) -> Path | None:
    """Returns the folder for the rollouts of a step.

    Returns None if rollouts are not saved, or if the step before has no checkpoint.

    Args:
        stage: the stage's folder.
        step: the step's number.
        model: the model that the stage starts from: a folder, or a hub id.
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
    """Prepares a stage's folder before a trainer starts, and returns the number of rollouts that may be reused.

    Saved rollouts of other steps, weights and settings are removed.
    """
    write_json(stage / FOLDER / SETTINGS_FILE, _settings(stage))
    step = (saved_step(stage / "checkpoints") or 0) + 1
    current = step_folder(stage, step, model)
    for folder in (stage / FOLDER).glob("step-*"):
        if folder != current:
            shutil.rmtree(folder, ignore_errors=True)
    return _gather(current) if current is not None and current.is_dir() else 0


def remove_up_to(stage: Path, step: int) -> None:
    """Removes the saved rollouts of all steps up to `step`. A checkpoint of this step has made them unnecessary."""
    for folder in (stage / FOLDER).glob("step-*"):
        if int(folder.name.split("-")[1]) <= step:
            shutil.rmtree(folder, ignore_errors=True)


def forget(stage: Path) -> None:
    """Removes the saved rollouts of a stage, and stops saving rollouts."""
    shutil.rmtree(stage / FOLDER, ignore_errors=True)


def _settings(stage: Path) -> dict[str, Any]:
    [loop] = json.loads((stage / "agent_loop.yaml").read_text(encoding="utf-8"))
    files = {
        name: hashlib.sha256((stage / name).read_bytes()).hexdigest()
        for name in ("train.parquet", FORMAT_FILE)
    }
    relevant = {name: value for name, value in loop.items() if name not in _IGNORED_KEYS}
    return {"version": __version__, **files, "agent_loop": json_digest(relevant, 16)}


@dataclass(frozen=True)
class _Record:
    kind: bytes
    key: Key
    at_s: float
    """The time when the record was written, in seconds since the epoch."""
    start: int
    body_at: int
    body_bytes: int

    @property
    def end(self) -> int:
        return self.body_at + self.body_bytes


def _record(kind: bytes, key: bytes, body: bytes) -> bytes:
    return _HEAD.pack(kind, len(key), len(body), zlib.crc32(body, zlib.crc32(key))) + key + body


def _records(path: Path, checked: bool = False) -> Iterator[_Record]:
    """Yields the records of a file.

    Args:
        path: the file.
        checked: whether to verify checksums. If True, reading stops at the first damaged record.
    """
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        size, start = os.fstat(file.fileno()).st_size, 0
        while start + _HEAD.size <= size:
            kind, key_bytes, body_bytes, crc = _HEAD.unpack(file.read(_HEAD.size))
            body_at = start + _HEAD.size + key_bytes
            if body_at + body_bytes > size:
                return
            key = file.read(key_bytes)
            # A record may be damaged by a kill, or by a power failure before it was on the disk.
            if checked and zlib.crc32(file.read(body_bytes), zlib.crc32(key)) != crc:
                return
            problem, handed_out, session, at_s = json.loads(key)
            record = _Record(kind, (problem, handed_out, session), at_s, start, body_at, body_bytes)
            yield record
            start = record.end
            file.seek(start)


def _gather(folder: Path) -> int:
    """Moves the reusable rollouts of a step into one file, removes the workers' files, and returns the number of
    reusable rollouts."""
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
    if len(failed) > MAX_FAILED_SHARE * (len(finished) + len(failed)):
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
