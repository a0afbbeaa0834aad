"""What the training verbs share: the check for the extra, and a progress row."""

from __future__ import annotations

from importlib.util import find_spec
from types import TracebackType
from typing import Any

from rstar2.cli.common import out
from rstar2.errors import UserError


def need_training_extra() -> None:
    """Say what is missing before anything is made.

    Raises:
        UserError: torch or VERL is not installed.
    """
    missing = [name for name in ("torch", "verl", "transfer_queue") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"training needs {', '.join(missing)}, which is not installed",
            "Without a GPU: pip install torch==2.13.0 'rstar2[laptop]'. With one: pip install 'rstar2[gpu]'.",
        )


def rows_of_progress() -> Any:
    """A progress display whose rows have a `note`."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
    )

    return Progress(
        SpinnerColumn(finished_text="[green]✓[/]"),
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[note]}[/]"),
        console=out,
    )


class TrainBoard:
    """One progress row for one trainer.

    Args:
        shown: the metrics to show, as (name in the trainer's metrics, label, format).
    """

    def __init__(self, title: str, steps: int, *shown: tuple[str, str, str]) -> None:
        self._progress = rows_of_progress()
        self._task = self._progress.add_task(title, total=steps, note="starting")
        self._shown = shown

    def step(self, step: int, metrics: dict[str, float]) -> None:
        parts = [f"{label} {metrics[name]:{form}}" for name, label, form in self._shown if name in metrics]
        self._progress.update(self._task, completed=step, note=", ".join(parts))

    def __enter__(self) -> TrainBoard:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._progress.stop()
