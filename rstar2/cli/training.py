"""What the training verbs share: the check for the extra, and a progress row."""

from __future__ import annotations

import time
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING

from rstar2.cli.common import out
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LINE_S = 20.0
"""Where the output is no terminal, a phase speaks this often at most, in seconds."""


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


class Rows:
    """One progress row a phase (see `rstar2.demo.board.Board`); plain lines where the output is no terminal."""

    def __init__(self) -> None:
        self._progress = _progress() if out.is_terminal else None
        self._tasks: dict[str, TaskID] = {}
        self._titles: dict[str, str] = {}
        self._totals: dict[str, int] = {}
        self._spoke_at = time.monotonic()

    def begin(self, name: str, title: str, total: int) -> None:
        self._titles[name], self._totals[name] = title, total
        if self._progress is not None:
            self._tasks[name] = self._progress.add_task(title, total=total, note="starting")

    def step(self, name: str, done: int, text: str) -> None:
        if self._progress is not None:
            self._progress.update(self._tasks[name], completed=done, note=text)
        elif time.monotonic() - self._spoke_at > LINE_S:
            self._say(name, f"{done}/{self._totals[name]}, {text}")

    def end(self, name: str, text: str) -> None:
        if self._progress is None:
            self._say(name, text)
            return
        self._progress.update(self._tasks[name], completed=self._totals[name], note=text)
        self._progress.stop_task(self._tasks[name])

    def _say(self, name: str, text: str) -> None:
        self._spoke_at = time.monotonic()
        out.print(f"{time.strftime('%H:%M:%S')}  {self._titles[name]}: {text}", soft_wrap=True)

    def __enter__(self) -> Rows:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()


def _progress() -> Progress:
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
