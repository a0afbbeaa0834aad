"""The consoles and the formatting of examples that every verb uses."""

from __future__ import annotations

from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)


def examples(*lines: tuple[str, str]) -> str:
    """The end of a help text: one worked example per paragraph, as (what it does, command line)."""
    shown = "\n\n".join(f"[dim]{what}[/dim]\n\n  [cyan]{command}[/cyan]" for what, command in lines)
    return f"[bold]Examples[/bold]\n\n{shown}"
