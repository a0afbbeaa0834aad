"""Shows the progress of an evaluation in the terminal."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rstar2.eval.progress import Progress
from rstar2.terminal import percent

if TYPE_CHECKING:
    from rstar2.eval.plan import EvalPlan
    from rstar2.eval.run import EvalResult

_PRINT_EVERY_S = 30.0


class LiveView(ABC):
    """Prints the benchmarks of an evaluation, its progress and its results.

    On a terminal, progress is drawn in place. If the console is not a terminal, a line about the progress is printed
    every half minute. Use the view as a context manager while samples run, and call the view with each `Progress`.

    Args:
        out: receives the results.
        err: receives progress and warnings.
    """

    def __init__(self, out: Console, err: Console) -> None:
        self.out = out
        self.last: Progress | None = None
        self._note = ""
        self._console = err
        self._live = Live(console=err, refresh_per_second=4, transient=True)
        self._printed_at = 0.0
        self._trouble: str | None = None
        """The last printed reason for waiting. Reasons are printed only if the console is not a terminal."""

    @abstractmethod
    def announce(self, plan: EvalPlan) -> None:
        """Print the model, the benchmarks and the settings, before the first sample."""

    @abstractmethod
    def show_results(self, results: Sequence[EvalResult], folder: Path) -> None:
        """Print the results. `folder` is the run's folder, which also contains the results."""

    def __call__(self, progress: Progress) -> None:
        if self.last is None and progress.resumed:
            missing = progress.total - progress.resumed
            self._console.print(f"{progress.resumed:,} samples are done, {missing:,} to go", highlight=False)
        self.last = progress
        if self._console.is_terminal:
            self._live.update(self._layout(progress))
        elif (
            time.monotonic() - self._printed_at >= _PRINT_EVERY_S
            or progress.done == progress.total
            or (progress.trouble and progress.trouble != self._trouble)
        ):
            self._printed_at, self._trouble = time.monotonic(), progress.trouble
            trouble = f"waiting: {progress.trouble}" if progress.trouble else ""
            facts = [*_facts(progress), _eta(progress), trouble]
            self._console.print(" · ".join(filter(None, facts)), soft_wrap=True, markup=False)

    def note(self, note: str) -> None:
        """Show a note below the progress, in place of the previous note.

        If the console is not a terminal, print the note.
        """
        self._note = note
        if self._console.is_terminal and self.last is not None:
            self._live.update(self._layout(self.last))
        elif not self._console.is_terminal:
            self._console.print(note, markup=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """Print a line of text."""
        self._console.print(text, markup=False, soft_wrap=True)

    def warn(self, warnings: Iterable[str]) -> None:
        """Print each warning on a line of its own."""
        for warning in warnings:
            self._console.print(warning, style="yellow", markup=False, soft_wrap=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._live.stop()
        if self.last is not None:
            self.warn(outages.text for outages in self.last.outages)

    def _layout(self, progress: Progress) -> RenderableType:
        head = Table.grid(padding=(0, 2))
        head.add_row(
            ProgressBar(total=max(1, progress.total), completed=progress.done, width=40),
            Text(f"{progress.done:,}/{progress.total:,} samples", "bold"),
            Text(_eta(progress), "cyan"),
        )
        lines: list[RenderableType] = [head, Text(" · ".join(_facts(progress)[1:]), "dim")]
        if progress.trouble:
            lines.append(Text(f"waiting: {progress.trouble}", "yellow"))
        if self._note:
            lines.append(Text(self._note, "yellow"))
        return Group(*lines)


def _facts(progress: Progress) -> list[str]:
    facts = [
        f"{progress.done:,}/{progress.total:,} samples",
        f"{progress.problems_done}/{progress.problems} problems",
        f"{progress.in_flight} in flight",
        f"{progress.tokens_per_s:,.0f} tokens/s",
        f"{progress.calls_per_s:,.1f} calls/s",
    ]
    if progress.accuracy is not None and progress.interval is not None:
        low, high = progress.interval
        facts.append(f"avg so far {percent(progress.accuracy)} (95 %: {100 * low:.1f} – {100 * high:.1f})")
    return facts


def _eta(progress: Progress) -> str:
    return f"ETA {_clock(progress.eta_s)}" if progress.eta_s is not None else ""


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
