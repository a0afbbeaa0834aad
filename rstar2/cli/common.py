"""The consoles and the formatting of examples that every verb uses."""

from __future__ import annotations

import os
import sys

from rich.console import Console


class QuietConsole(Console):
    """Falls silent when its reader has gone, as in `rstar2 … | head`: the work continues as if it were read."""

    def on_broken_pipe(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if self.stderr else sys.stdout).fileno())
        os.close(nowhere)


out = QuietConsole(highlight=False)
err = QuietConsole(stderr=True, highlight=False)


def examples(*lines: tuple[str, str]) -> str:
    """The end of a help text: one worked example per paragraph, as (what it does, command line)."""
    shown = "\n\n".join(f"[dim]{what}[/dim]\n\n  [cyan]{command}[/cyan]" for what, command in lines)
    return f"[bold]Examples[/bold]\n\n{shown}"
