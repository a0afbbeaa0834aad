"""What a person sees while a run goes on."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rstar2.eval.progress import Progress

_LINE_EVERY_S = 30.0


class LiveView:
    """Draws progress: in place on a terminal, a line now and then elsewhere.

    Use as a context manager, and call it with each `Progress`.
    """

    def __init__(self, console: Console) -> None:
        self._note = ""
        self.last: Progress | None = None
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._lined_at = 0.0

    def __call__(self, look: Progress) -> None:
        self.last = look
        if self._console.is_terminal:
            self._live.update(self._drawn(look))
        elif time.monotonic() - self._lined_at >= _LINE_EVERY_S or look.done == look.total:
            self._lined_at = time.monotonic()
            shown = [*_facts(look), _eta(look), f"waiting: {look.trouble}" if look.trouble else ""]
            self._console.print(" · ".join(filter(None, shown)), soft_wrap=True, markup=False)

    def say(self, note: str) -> None:
        """Show one more line, such as that the run is stopping."""
        self._note = note
        if self._console.is_terminal and self.last is not None:
            self._live.update(self._drawn(self.last))
        elif not self._console.is_terminal:
            self._console.print(note)

    def __enter__(self) -> LiveView:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._live.stop()

    def _drawn(self, look: Progress) -> RenderableType:
        head = Table.grid(padding=(0, 2))
        head.add_row(
            ProgressBar(total=max(1, look.total), completed=look.done, width=40),
            Text(f"{look.done:,}/{look.total:,} samples", "bold"),
            Text(_eta(look), "cyan"),
        )
        lines: list[RenderableType] = [head, Text(" · ".join(_facts(look)[1:]), "dim")]
        if look.trouble:
            lines.append(Text(f"waiting: {look.trouble}", "yellow"))
        if self._note:
            lines.append(Text(self._note, "yellow"))
        return Group(*lines)


def _facts(look: Progress) -> list[str]:
    facts = [
        f"{look.done:,}/{look.total:,} samples",
        f"{look.problems_done}/{look.problems} problems",
        f"{look.in_flight} in flight",
        f"{look.tokens_per_s:,.0f} tokens/s",
        f"{look.calls_per_s:,.1f} calls/s",
    ]
    if look.accuracy is not None and look.interval is not None:
        low, high = look.interval
        facts.append(f"avg so far {100 * look.accuracy:.1f} [{100 * low:.1f}, {100 * high:.1f}]")
    return facts


def _eta(look: Progress) -> str:
    return f"ETA {_span(look.eta_s)}" if look.eta_s is not None else ""


def _span(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
