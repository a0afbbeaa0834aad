"""The files that record which supervisors run, and functions that find and end a supervisor by its process id."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import BaseModel, ValidationError

from rstar2.errors import UserError
from rstar2.files import home_folder, write_text

_POLL_S = 0.05


class Handle(BaseModel):
    """A running supervisor."""

    pid: int
    """Process id of the supervisor. If the supervisor ends, all processes that it started end too."""
    folder: str
    """The service's folder. The service's logs are in `logs/` of this folder."""


AnyHandle = TypeVar("AnyHandle", bound=Handle)


def state_folder() -> Path:
    """Returns `$RSTAR2_STATE`, or `rstar2` under the user's state folder. Raises UserError if the user has no home."""
    if folder := os.environ.get("RSTAR2_STATE"):
        return Path(folder)
    base = os.environ.get("XDG_STATE_HOME") or home_folder() / ".local" / "state"
    return Path(base) / "rstar2"


@dataclass(frozen=True)
class StateFile(Generic[AnyHandle]):
    """A file with the handle of one supervisor. Only this user can read the file, because it may contain secrets."""

    path: Path
    kind: type[AnyHandle]
    hint: str
    """Hint of the error that is raised if the file cannot be read."""

    def write(self, handle: AnyHandle) -> None:
        write_text(self.path, handle.model_dump_json(indent=2), mode=0o600)

    def read(self) -> AnyHandle | None:
        """Returns the handle in the file, even if its supervisor has ended. Returns None if there is no file.

        Raises UserError if the file cannot be read.
        """
        try:
            return self.kind.model_validate_json(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValidationError, OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {self.path}: {error}", self.hint) from error

    def clear(self, pid: int) -> None:
        """Remove the file if it still belongs to the supervisor with the process id `pid`."""
        handle = self.read()
        if handle is not None and handle.pid == pid:
            self.path.unlink(missing_ok=True)


def runs_module(pid: int, *modules: str) -> bool:
    """Whether the process `pid` runs one of these modules with `python -m`. The check is needed because the id may
    belong to another process by now.
    """
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any((b"-m", module.encode()) in pairwise(command) for module in modules)


def end_module(pid: int, *modules: str, wait_s: float) -> bool:
    """Send SIGTERM to the process `pid` if it runs one of these modules, and wait up to `wait_s` seconds for its end.
    Returns whether the process has ended.
    """
    if runs_module(pid, *modules):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    while runs_module(pid, *modules):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
