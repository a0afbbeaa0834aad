"""The state file of the running judge. `rstar2 judge up` writes the state file, and all other commands of `rstar2
judge` read it."""

from __future__ import annotations

from rstar2.errors import Failure, UserError
from rstar2.judge.service.settings import JudgeHandle
from rstar2.supervision.state import StateFile, end_module, runs_module, state_folder

SUPERVISORS = ("rstar2.judge.service.supervisor", "rstar2.judge.supervisor")
"""Module names of the supervisor. The second name is for judges of rstar2 up to version 0.1.0 that are still
running."""
END_S = 30.0


def state_file() -> StateFile[JudgeHandle]:
    hint = "Remove it, and stop the judge by hand if it is running."
    return StateFile(state_folder() / "judge.json", JudgeHandle, hint)


def read_state() -> JudgeHandle | None:
    """Returns the judge that the state file names, or None if that judge is not running. Raises UserError if the file
    cannot be read."""
    judge = state_file().read()
    return judge if judge is not None and runs_module(judge.pid, *SUPERVISORS) else None


def current_judge() -> JudgeHandle:
    """Returns the running judge. Raises UserError if no judge runs."""
    judge = read_state()
    if judge is None:
        raise UserError("no judge is running", "Start one with `rstar2 judge up --detach`.")
    return judge


def end_judge(judge: JudgeHandle) -> None:
    """Stop a judge that another process started, and all its processes.

    Raises Failure if the judge does not end in time.
    """
    if not end_module(judge.pid, *SUPERVISORS, wait_s=END_S):
        raise Failure(f"the judge (pid {judge.pid}) did not stop", f"See {judge.folder}/logs")
    state_file().clear(judge.pid)
