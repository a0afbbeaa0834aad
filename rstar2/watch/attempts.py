"""Counts the consecutive attempts of a training command that made no progress, so that a script knows when to give up.

A script runs `python -m rstar2.watch.attempts RUN CALLER MOST` each time before it runs the run's command. The command
prints the number of the attempt: 1 if the run has progressed since the last attempt, else one more than before. If the
number exceeds MOST, the command prints a message and exits with code 1. CALLER identifies the script's job, such as a
Slurm job id. For another CALLER, the number starts again from 1. The scripts are in `examples/cluster/`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from rstar2.errors import Failure, RStarError, UserError
from rstar2.files import read_json, write_json
from rstar2.runs import load_status
from rstar2.train.choose import HELD_OUT
from rstar2.train.filter.progress import verdicts_written
from rstar2.train.records.steps import sft_metrics, step_metrics
from rstar2.train.trainer.checkpoints import finished_steps

STATE_FILE = ".cluster/attempts.json"
"""Path of the file that contains the number of the attempt, relative to the run's folder. The file is in a hidden
folder, because a new run may use a folder only if all files and folders in it are hidden.
"""


def progress(run: Path) -> int:
    """A number that grows with each finished step, saved checkpoint, sample and finished model of a run."""
    phases = ("sft", "stage[0-9]", "plain/stage[0-9]")
    folders = [run, *(folder for phase in phases for folder in run.glob(phase))]
    return sum(map(_phase_progress, folders))


def _phase_progress(folder: Path) -> int:
    steps = {*sft_metrics(folder), *step_metrics(folder)}
    saved = finished_steps(folder / "checkpoints")
    samples = verdicts_written(folder / "solved") + _held_out_samples(folder)
    return max(steps, default=0) + max(saved, default=0) + samples + (folder / "model").is_dir()


def _held_out_samples(folder: Path) -> int:
    """The number of samples on held-out problems that an SFT run has stored."""
    return sum(file.read_bytes().count(b"\n") for file in folder.glob(f"{HELD_OUT}/step-*/traces.jsonl"))


def next_attempt(run: Path, caller: str, most: int) -> int:
    """Count one more attempt of a run's command. Returns the number of attempts since the run last made progress.

    Raises:
        Failure: the run made no progress in `most` attempts. The next count starts from 1, so that a person can run the
            script again.
    """
    state = run / STATE_FILE
    before = read_json(state) or {}
    now = progress(run)
    same = before.get("caller") == caller and before.get("progress", 0) >= now
    attempt = 1 + (int(before["attempt"]) if same else 0)
    if attempt > most:
        state.unlink()
        cause, noun = load_status(run).get("cause"), "attempt" if most == 1 else "attempts"
        raise Failure(
            f"{run}: {most} {noun} in a row ended without a new step, checkpoint or sample"
            + (f". The last one failed: {cause}" if cause else ""),
            f"The logs are in {run}/attempts. Remove the cause, then start the same command again.",
        )
    write_json(state, {"caller": caller, "attempt": attempt, "progress": now})
    return attempt


def main(words: list[str]) -> None:
    try:
        if len(words) != 3 or not words[2].isdigit():
            raise UserError("usage: python -m rstar2.watch.attempts RUN CALLER MOST")
        print(next_attempt(Path(words[0]), words[1], int(words[2])))
    except RStarError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main(sys.argv[1:])
