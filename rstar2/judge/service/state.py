"""The file that says which judge runs: `rstar2 judge up` writes it, the other commands read it."""

from __future__ import annotations

from rstar2.errors import Failure, UserError
from rstar2.judge.service.settings import JudgeHandle
from rstar2.supervision.state import StateFile, end_module, runs_module, state_folder

SUPERVISORS = ("rstar2.judge.service.supervisor", "rstar2.judge.supervisor")
"""The second is what versions up to 0.1.0 called it: their judges can still be found and stopped."""
END_S = 30.0


def state_file() -> StateFile[JudgeHandle]:
    hint = "Remove it, and stop the judge by hand if it is running."
    return StateFile(state_folder() / "judge.json", JudgeHandle, hint)


def read_state() -> JudgeHandle | None:
    """The judge that the file names, if it still runs; UserError where the file cannot be read."""
    judge = state_file().read()
    return judge if judge is not None and runs_module(judge.pid, *SUPERVISORS) else None


def current_judge() -> JudgeHandle:
    """The judge that runs; UserError where none does."""
    judge = read_state()
    if judge is None:
        raise UserError("no judge is running", "Start one with `rstar2 judge up --detach`.")
    return judge


def end_judge(judge: JudgeHandle) -> None:
    """End a judge that another process started, with everything it started; a Failure where it does not end."""
    if not end_module(judge.pid, *SUPERVISORS, wait_s=END_S):
        raise Failure(f"the judge (pid {judge.pid}) did not stop", f"See {judge.folder}/logs")
    state_file().clear(judge.pid)
