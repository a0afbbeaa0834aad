"""An error that ends training at once, left in a stage's folder by any process of the trainer.

Rollouts run in processes of VERL's that only count a rollout that failed. `rstar2.train.launch` looks for this file
while the trainer runs, and then stops it.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from rstar2.errors import Failure, RStarError, UserError
from rstar2.files import write_json

FINAL_ERROR_FILE = "final_error.json"


def write_final_error(folder: Path, error: RStarError) -> None:
    """Leave an error for the launcher. On a full disk nothing is left, and the rollout counts as failed."""
    about = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
    with contextlib.suppress(OSError):
        write_json(folder / FINAL_ERROR_FILE, about)


def read_final_error(path: Path) -> RStarError | None:
    """The error that a process left, with what a resumed run does; None if there is none."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        kind = UserError if about["exit_code"] == UserError.exit_code else Failure
        hint = f"{about['hint']}\nThen run the same command: it continues from the last checkpoint."
        return kind(about["message"], hint.lstrip())
    except (OSError, ValueError, LookupError, TypeError):
        return None
