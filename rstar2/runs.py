"""Makes and reads the folder of a run: its resolved config, its lock, its status, and the logs of each attempt.

```
RUN/
  config.json        the resolved config of the last attempt; its compared keys (`Compared`) must never change
  status.json        state, time of the last change, attempt
  attempts/1/*.log   one folder per attempt; `attempts/latest` links to the newest
  .grader_secret     the seed of the grader's test points; only the owner can read it
```
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, TextIO

from rstar2.errors import UserError, first_few
from rstar2.files import write_json, write_text

QUIET_S = 900.0
"""A run on another machine counts as killed if its logs did not grow for this many seconds. VERL writes to its logs
every minute."""
_READERS_S = 0.5
"""Number of seconds for which a process tries to take a lock, because `load_status` holds the lock for a moment."""
SECRET_FILE = ".grader_secret"
GRADER_SECRET = "RSTAR2_GRADER_SECRET"
"""The environment variable with the grader's secret, as hexadecimal digits. Child processes inherit the variable,
except the processes that run a model's programs.
"""
_SECRET_BYTES = 32
_SECRET = re.compile(r"(?:[0-9a-fA-F]{2}){8,}")
_NEW_SECRET = "Restore the file, or remove it: the same command then makes a new one."
State = Literal["running", "finished", "failed", "stopped"]
Compared = Callable[[dict[str, Any]], dict[str, Any]]
"""Returns the part of a config, as JSON, that must be the same when the run is resumed."""


class Run:
    """The folder of a run that `open_run` opened. `attempt` is 1 for a new run, and one more each time the run is
    resumed.
    """

    def __init__(self, path: Path, attempt: int) -> None:
        self.path = path
        self.attempt = attempt
        self.logs = path / "attempts" / str(attempt)

    def status(self, state: State, **more: Any) -> None:
        """Replace status.json."""
        host = socket.gethostname()
        status = {"state": state, "at": time.time(), "attempt": self.attempt, "host": host, **more}
        write_json(self.path / "status.json", status)


@contextlib.contextmanager
def open_run(
    path: Path, kind: str, config: dict[str, Any], compared: Compared = lambda config: config
) -> Iterator[Run]:
    """Make or resume a run's folder, and hold its lock for the length of the `with` block.

    Within the block, this process and its child processes grade with the run's own secret.

    Args:
        kind: the verb that makes the run: demo, eval, train, sft, ….
        config: the resolved config, which can be stored as JSON.
        compared: returns the part of a config that must be the same when the run is resumed.

    Raises:
        UserError: the folder has other contents or a run of another kind, the config differs from the run's config (the
            message names the keys), or another process uses the folder.
    """
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file, not a run folder", "Give another folder with --run.")
    record = path / "config.json"
    if record.exists():
        _refuse_other(record, kind, config, compared)
    elif path.is_dir() and any(not entry.name.startswith(".") for entry in path.iterdir()):
        raise UserError(f"{path} is not empty and is not a run", "Give an empty or new folder with --run.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make {path}: {error.strerror}", "Give another folder with --run.") from error
    with locked(path), _grader_secret(path):
        if not record.exists() or changed_keys(load_config(path)[1], _as_json(config)):
            write_json(record, {"kind": kind, "config": config})
        run = Run(path, _next_attempt(path))
        run.status("running", kind=kind)
        try:
            yield run
        except BaseException as error:
            stopped = isinstance(error, KeyboardInterrupt | SystemExit)
            # A full disk must not hide what went wrong.
            with contextlib.suppress(OSError):
                if stopped:
                    run.status("stopped", kind=kind)
                else:
                    run.status("failed", kind=kind, cause=str(error)[:1000])
            raise
        run.status("finished", kind=kind)


@contextlib.contextmanager
def _grader_secret(path: Path) -> Iterator[None]:
    """Put the run's secret into the environment for the length of the `with` block, so that child processes have it.

    The secret is made with the run and stays in the run's folder, so that a verdict is the same in every process, also
    after the run is resumed. Raises UserError if the file is damaged, or if the user set the environment variable to a
    text that is not a secret.
    """
    before, file = os.environ.get(GRADER_SECRET), path / SECRET_FILE
    if before and not _SECRET.fullmatch(before):
        raise UserError(f"{GRADER_SECRET} is not a secret in hexadecimal digits", "Unset this variable.")
    if not file.exists():
        # This process may already have graded gold answers with the secret of its environment.
        write_text(file, f"{before or secrets.token_hex(_SECRET_BYTES)}\n", mode=0o600)
    try:
        secret = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read {file}: {error}", _NEW_SECRET) from error
    if not _SECRET.fullmatch(secret):
        raise UserError(f"{file} is not a secret in hexadecimal digits", _NEW_SECRET)
    os.environ[GRADER_SECRET] = secret
    try:
        yield
    finally:
        if before is None:
            del os.environ[GRADER_SECRET]
        else:
            os.environ[GRADER_SECRET] = before


def load_config(path: Path) -> tuple[str, dict[str, Any]]:
    """Returns the kind and the config of a run. Raises UserError if there is no readable run at `path`."""
    record, hint = path / "config.json", "`rstar2 runs list` shows the runs."
    if path.is_file():
        raise UserError(f"{path} is a file, not a run's folder", hint)
    try:
        stored = json.loads(record.read_text(encoding="utf-8"))
        return str(stored["kind"]), dict(stored["config"])
    except ValueError as error:
        hint = "Restore the file, or remove the folder and start the run again."
        raise UserError(f"{record} is damaged: {error}", hint) from error
    except (OSError, KeyError, TypeError) as error:
        raise UserError(f"no run at {path}", hint) from error


def load_status(path: Path) -> dict[str, Any]:
    """Returns a run's status.json, or an empty status if the run has no status.json.

    The state `running` is replaced by `killed` if no process holds the run's lock. Locks may not be visible on other
    machines, so a run of another machine counts as running as long as its logs grow.
    """
    try:
        status = dict(json.loads((path / "status.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}
    if status.get("state") == "running" and not _in_use(path) and not _grows_elsewhere(path, status):
        status["state"] = "killed"
    return status


def _grows_elsewhere(path: Path, status: dict[str, Any]) -> bool:
    """Whether a run was started on another machine, and wrote to a log or a metrics file in the last `QUIET_S`
    seconds.
    """
    if status.get("host", socket.gethostname()) == socket.gethostname():
        return False
    written = (*path.glob("attempts/latest/*.log"), *path.glob("**/metrics-*.jsonl"))
    return time.time() - max((file.stat().st_mtime for file in written), default=0.0) < QUIET_S


def _in_use(path: Path) -> bool:
    """Whether a process holds a run's lock. The result is False if the file system does not support locks."""
    try:
        with (path / ".lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def list_runs(root: Path) -> list[Path]:
    """Returns the folders of the runs below `root`, at most two levels down, oldest first."""
    records = (*root.glob("*/config.json"), *root.glob("*/*/config.json"))
    # The folder of a model has a config.json too, but no status.json.
    runs = [record for record in records if (record.parent / "status.json").exists()]
    return [record.parent for record in sorted(runs, key=lambda record: record.stat().st_mtime)]


def json_digest(value: Any, length: int) -> str:
    """Returns the first `length` (at most 64) hexadecimal digits of a JSON value's hash.

    Stored results depend on this hash, so it must not change in later versions.
    """
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:length]


def changed_keys(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Returns the dotted keys at which two configs differ."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(set(old) | set(new))
        return [
            changed
            for key in keys
            for changed in changed_keys(old.get(key), new.get(key), f"{prefix}.{key}" if prefix else str(key))
        ]
    return [] if old == new else [prefix]


def refuse_changed(record: Path, settings: dict[str, Any]) -> None:
    """Write settings to the file `record`.

    If the file exists and has other settings, raise UserError with the keys that differ.
    """
    if not record.exists():
        write_json(record, settings)
        return
    try:
        stored = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {record}: {error}", "Give another folder.") from error
    _compare(record.parent, stored, _as_json(settings))


def _compare(folder: Path, stored: dict[str, Any], current: dict[str, Any]) -> None:
    changed = changed_keys(stored, current)
    if changed:
        changes = first_few([f"{key}: {_value(stored, key)} → {_value(current, key)}" for key in changed])
        raise UserError(
            f"{folder} was made with other settings: {', '.join(changed)}",
            f"Use the same settings to resume ({changes}), or give another folder with --run.",
        )


def _value(config: Any, key: str) -> str:
    """Returns the value of a dotted key in a config, as text. The keys of tables may contain dots too."""
    for name in config if isinstance(config, dict) else ():
        if key == name or key.startswith(f"{name}."):
            return _value(config[name], key[len(name) + 1 :])
    return "unset" if key or config is None else str(config)[:40]


def _as_json(config: dict[str, Any]) -> dict[str, Any]:
    return dict(json.loads(json.dumps(config)))


def _refuse_other(record: Path, kind: str, config: dict[str, Any], compared: Compared) -> None:
    stored_kind, stored = load_config(record.parent)
    if stored_kind != kind:
        raise UserError(
            f"{record.parent} is a run of `{stored_kind}`, not of `{kind}`", "Give another folder with --run."
        )
    _compare(record.parent, compared(stored), compared(_as_json(config)))


@contextlib.contextmanager
def locked(path: Path, wait_s: float = _READERS_S) -> Iterator[None]:
    """Hold a folder's lock for the length of the `with` block.

    Raises UserError if another process holds the lock for `wait_s` seconds, or if the file system has no locks.
    """
    try:
        lock = (path / ".lock").open("w")
    except OSError as error:
        raise UserError(
            f"cannot write {path / '.lock'}: {error.strerror}", "Use a folder you can write to."
        ) from error
    with lock:
        try:
            _lock(lock, wait_s)
        except BlockingIOError as error:
            hint = "Wait until that process ends, or use another folder."
            raise UserError(f"{path} is in use by another process", hint) from error
        except OSError as error:
            raise UserError(
                f"the file system of {path} does not support file locks (flock: {error.strerror}), so two runs could "
                "write to the same folder",
                "Use a folder on another file system, or mount this file system with locks: Lustre with -o flock, NFS "
                "without nolock and with its lock service running.",
            ) from error
        yield


def _lock(lock: TextIO, wait_s: float) -> None:
    """Take a folder's lock. Raises BlockingIOError if another process holds the lock for `wait_s` seconds."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
        time.sleep(_READERS_S / 50)


def _next_attempt(path: Path) -> int:
    attempts = path / "attempts"
    attempts.mkdir(exist_ok=True)
    number = 1 + max((int(entry.name) for entry in attempts.iterdir() if entry.name.isdigit()), default=0)
    (attempts / str(number)).mkdir()
    latest = attempts / "latest"
    latest.unlink(missing_ok=True)
    latest.symlink_to(str(number))
    return number
