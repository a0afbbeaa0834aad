"""Functions shared by `train`, `sft` and `demo`: the check of the installed packages, and terminal output."""

from __future__ import annotations

import shlex
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING

from rich.markup import escape

from rstar2.cli.common import out
from rstar2.terminal import percent

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rich.progress import Progress, Task
    from rich.table import Table

    from rstar2.train.recipe import Hardware
    from rstar2.train.records.timing import Timing

LINE_INTERVAL_S = 20.0
"""Seconds between two lines about a running phase, if the output is not a terminal."""


def need_training_extra(rollouts_on: Iterable[Hardware] = ()) -> None:
    """Raise NotInstalled if torch or VERL is not installed, or if vLLM is missing and rollouts run on GPUs."""
    needed = ["torch", "verl", "transfer_queue"]
    on_gpus = any(each.device == "cuda" for each in rollouts_on)
    if on_gpus:
        needed.append("vllm")
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        from rstar2.install import NotInstalled, installation_for

        raise NotInstalled(missing, installation_for("vllm" if on_gpus else missing[0], ["train"]))


def model_here(name: str) -> Path | str:
    """Returns the folder of a model that is on this machine, else `name` itself, which is enough for a dry run."""
    from pathlib import Path

    from rstar2.engines.models import find_model

    return (find_model(name) if Path(name).is_dir() else None) or name


def profile_for(model: Path | str) -> str | None:
    """Returns the default hardware profile for a model, and prints its name. None means the recipe's own hardware."""
    from pathlib import Path

    from rstar2.cli.common import err
    from rstar2.train.hardware import default_profile

    if profile := default_profile(Path(model)):
        err.print(f"this machine has no GPU and the model is tiny: using --profile {profile}", soft_wrap=True)
    return profile


def shell_lines(argv: list[str]) -> str:
    """Returns a trainer's command line, quoted for a shell, with each `key=value` on its own line."""
    start = 1 + next(
        at for at, word in enumerate(argv) if word.startswith(("verl.trainer.", "rstar2.train.verl."))
    )
    return " \\\n  ".join([shlex.join(argv[:start]), *map(_quoted, argv[start:])])


def _quoted(word: str) -> str:
    """Quote a word for a shell.

    Double quotes are used if the word contains a single quote but no character that is special within double quotes.
    """
    return f'"{word}"' if "'" in word and not set('"$`\\!') & set(word) else shlex.quote(word)


class ProgressRows:
    """Shows the progress of phases on a terminal, with one row per phase.

    If the output is not a terminal, lines are printed instead.
    """

    def __init__(self) -> None:
        self._progress = _progress()
        self._tasks: dict[str, Task] = {}
        self._printed_at = time.monotonic()

    def start(self, name: str, title: str, total: int) -> None:
        number = self._progress.add_task(title, total=total, note="starting")
        self._tasks[name] = self._progress.tasks[number]

    def update(self, name: str, done: int, text: str) -> None:
        task = self._tasks[name]
        self._progress.update(task.id, completed=done, note=text)
        if time.monotonic() - self._printed_at > LINE_INTERVAL_S:
            self._print(task, f"{done}/{task.total}, {text}")

    def finish(self, name: str, text: str) -> None:
        task = self._tasks[name]
        self._progress.update(task.id, completed=task.total, note=text)
        self._progress.stop_task(task.id)
        self._print(task, text)

    def warn(self, text: str) -> None:
        out.print(f"[yellow]warning:[/] {escape(text)}", soft_wrap=True)

    def _print(self, task: Task, text: str) -> None:
        if not out.is_terminal:
            self._printed_at = time.monotonic()
            line = f"{time.strftime('%H:%M:%S')}  {task.description}: {text}"
            out.print(line, markup=False, soft_wrap=True)

    def __enter__(self) -> ProgressRows:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()


def worker_environment_line() -> str:
    """Returns a line with the names of the environment variables that are passed to workers on other nodes."""
    import os

    from rstar2.train.command import worker_environment

    plain, secret = (", ".join(names) or "none" for names in worker_environment(os.environ))
    return f"environment variables passed to workers: {plain}; in a file that only you can read: {secret}"


_TIMING_ROWS = (
    ("start_up_s", "start-up", "judge, Python, VERL, Ray and its actors"),
    ("rollout_s", "rollout", "generation, tool calls and grading of all rollouts"),
    ("judge_s", "  judge", "part of rollout: mean time that a rollout waits for tools"),
    ("update_s", "update", "log-probabilities, optimizer, weights to the engine"),
    ("checkpoint_s", "checkpoints", "written by VERL"),
    ("evaluation_s", "evaluation", "held-out problems; training problems for the filter"),
    ("export_s", "export", "the model of each phase"),
    ("other_s", "other", "data, shutting down trainers, time between steps"),
)


def timing_table(timing: Timing) -> Table:
    """Returns a table of the time that each part of a run took.

    `rstar2.train.records.timing.Timing` defines the parts.
    """
    from rich.table import Table

    record = timing.record()
    table = Table("part", title=f"time of the run: {record['wall_s']:.0f} s")
    table.add_column("seconds", justify="right")
    table.add_column("share", justify="right")
    table.add_column("includes", style="dim")
    for field, name, meaning in _TIMING_ROWS:
        share = record[field] / record["wall_s"] if record["wall_s"] else 0.0
        table.add_row(name, f"{record[field]:.0f}", percent(share, 0), meaning)
    return table


_WIDTH_WITH_BARS = 120
"""Minimum width of the terminal, in characters, for a progress bar beside the numbers of each phase."""


def _progress() -> Progress:
    from rich import progress
    from rich.table import Column

    # The two texts are wrapped on a narrow terminal. Otherwise Rich would shrink the other columns until they vanish.
    return progress.Progress(
        progress.SpinnerColumn(finished_text="[green]✓[/]"),
        progress.TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=False)),
        *([progress.BarColumn(bar_width=20)] if out.width >= _WIDTH_WITH_BARS else []),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn(
            "{task.fields[note]}", style="dim", markup=False, table_column=Column(no_wrap=False)
        ),
        console=out,
        disable=not out.is_terminal,
    )
