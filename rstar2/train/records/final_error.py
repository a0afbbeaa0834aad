"""The final error: a file in a stage's folder, by which any process of the trainer can end training at once.

Rollouts run in processes of VERL, in which an error only counts as a failed rollout. `rstar2.train.launch` checks for
this file while the trainer runs, and stops the trainer if there is one.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from rstar2.errors import Failure, RStarError, UserError
from rstar2.files import write_json

FINAL_ERROR_FILE = "final_error.json"


def write_final_error(folder: Path, error: RStarError) -> None:
    """Writes an error for the launcher. If the disk is full, it writes nothing, and the rollout counts as failed."""
    about = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
    with contextlib.suppress(OSError):
        write_json(folder / FINAL_ERROR_FILE, about)


def read_final_error(path: Path) -> RStarError | None:
    """Returns the error in a file of `write_final_error`, with a hint how to resume, or None if there is no error."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        kind = UserError if about["exit_code"] == UserError.exit_code else Failure
        hint = f"{about['hint']}\nThen run the same command: it continues from the last checkpoint."
        return kind(about["message"], hint.lstrip())
    except (OSError, ValueError, LookupError, TypeError):
        return None
