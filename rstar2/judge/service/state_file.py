"""The file that says which judge runs: `rstar2 judge up` writes it, the other commands read it."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from rstar2.errors import UserError
from rstar2.judge.service.settings import JudgeHandle


def state_folder() -> Path:
    """`$RSTAR2_STATE`, or `rstar2` under the user's state folder."""
    if given := os.environ.get("RSTAR2_STATE"):
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "rstar2"


def state_file() -> Path:
    return state_folder() / "judge.json"


def write_state(judge: JudgeHandle) -> None:
    """Write which judge runs, readable by this user alone: the file holds its secrets."""
    write_private(state_file(), judge.model_dump_json(indent=2))


def write_private(path: Path, text: str) -> None:
    """Write a file whole, readable by this user alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)


def clear_state(pid: int) -> None:
    """Remove the file if it still names this judge."""
    state = _written_state()
    if state is not None and state.pid == pid:
        state_file().unlink(missing_ok=True)


def read_state() -> JudgeHandle | None:
    """The judge that the file names, if it still runs; UserError where the file cannot be read."""
    state = _written_state()
    return state if state is not None and _is_judge(state.pid) else None


def _written_state() -> JudgeHandle | None:
    path = state_file()
    try:
        return JudgeHandle.model_validate_json(path.read_text())
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        raise UserError(
            f"cannot read {path}: {error}", "remove it, and stop the judge by hand if it is running"
        ) from error


def _is_judge(pid: int) -> bool:
    # The second is what versions up to 0.1.0 called it: their judges can still be found and stopped.
    return runs_module(pid, "rstar2.judge.service.supervisor", "rstar2.judge.supervisor")


def runs_module(pid: int, *modules: str) -> bool:
    """Whether a process runs one of these modules with `python -m`; another may have its number by now."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return any(module.encode() in command for module in modules)


def current_judge() -> JudgeHandle:
    """The judge that runs; UserError where none does."""
    state = read_state()
    if state is None:
        raise UserError("no judge is running", "start one with `rstar2 judge up --detach`")
    return state
