"""The final error: an error that ends training at once, written to a file in the stage's folder. Any process of the
trainer can write it.

Rollouts run in VERL's processes, where an exception makes one rollout fail but does not end training.
`rstar2.train.launch` checks for the file with the final error while the trainer runs, and stops the trainer if the file
exists.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from rstar2.errors import Failure, RStarError, UserError
from rstar2.files import write_json

FINAL_ERROR_FILE = "final_error.json"


def write_final_error(folder: Path, error: RStarError) -> None:
    """Writes an error to the file, so that the launcher ends training. If the disk is full, nothing is written, and the
    rollout counts as failed."""
    about = {"message": error.message, "hint": error.hint, "exit_code": error.exit_code}
    with contextlib.suppress(OSError):
        write_json(folder / FINAL_ERROR_FILE, about)


def read_final_error(path: Path) -> RStarError | None:
    """Returns the error that `write_final_error` wrote to `path`, with a hint on how to resume the run. Returns None if
    there is no error."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        kind = UserError if about["exit_code"] == UserError.exit_code else Failure
        hint = f"{about['hint']}\nThen run the same command: it continues from the last checkpoint."
        return kind(about["message"], hint.lstrip())
    except (OSError, ValueError, LookupError, TypeError):
        return None
