"""The files that say which supervisors run, and how one of them is ended by its number."""

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
    """A supervisor that runs."""

    pid: int
    """Ending it ends everything that it started."""
    folder: str
    """Where its logs are, in `logs/`."""


Kept = TypeVar("Kept", bound=Handle)


def state_folder() -> Path:
    """Returns `$RSTAR2_STATE`, or `rstar2` under the user's state folder. Raises UserError if the user has no home."""
    if folder := os.environ.get("RSTAR2_STATE"):
        return Path(folder)
    base = os.environ.get("XDG_STATE_HOME") or home_folder() / ".local" / "state"
    return Path(base) / "rstar2"


@dataclass(frozen=True)
class StateFile(Generic[Kept]):
    """A file with the handle of one supervisor, readable by this user alone: it may hold secrets."""

    path: Path
    kind: type[Kept]
    hint: str
    """What to do where it cannot be read."""

    def write(self, handle: Kept) -> None:
        write_text(self.path, handle.model_dump_json(indent=2), mode=0o600)

    def read(self) -> Kept | None:
        """What is written there, whether that runs or not; UserError where it cannot be read."""
        try:
            return self.kind.model_validate_json(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValidationError, OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {self.path}: {error}", self.hint) from error

    def clear(self, pid: int) -> None:
        """Remove the file if it still names this supervisor."""
        handle = self.read()
        if handle is not None and handle.pid == pid:
            self.path.unlink(missing_ok=True)


def runs_module(pid: int, *modules: str) -> bool:
    """Whether a process runs one of these modules with `python -m`; another may have its number by now."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return any((b"-m", module.encode()) in pairwise(command) for module in modules)


def end_module(pid: int, *modules: str, wait_s: float) -> bool:
    """Ask a process to end if it runs one of these modules, and wait. → whether none of them runs any more."""
    if runs_module(pid, *modules):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + wait_s
    while runs_module(pid, *modules):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_S)
    return True
