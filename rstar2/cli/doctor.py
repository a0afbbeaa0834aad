"""`rstar2 doctor`: checks what this machine can do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from rstar2.cli.common import AsJson, examples, out

if TYPE_CHECKING:
    from rstar2.doctor.finding import Finding

EPILOG = examples(
    ("check this machine", "rstar2 doctor"),
    ("for a script: exit code 0 if the demo can run", "rstar2 doctor --json > machine.json"),
)


def command(as_json: AsJson = False) -> None:
    """Check what this machine can run, and show the commands that fix what is missing.

    The exit code is 0 if the laptop path (`rstar2 demo`) can run, else 1.
    """
    from rstar2.doctor.examine import examine
    from rstar2.doctor.finding import laptop_ready

    findings = examine()
    ready = laptop_ready(findings)
    if as_json:
        import json
        from dataclasses import asdict

        shown = {"laptop_ready": ready, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
    else:
        _show(findings)
        if ready:
            out.print("[green]The laptop path can run.[/] Next: [cyan]rstar2 demo[/]")
        else:
            out.print("[red]The laptop path cannot run yet:[/] first fix everything marked ✗.")
    raise typer.Exit(0 if ready else 1)


def _show(findings: list[Finding]) -> None:
    from rich import box
    from rich.table import Column, Table
    from rich.text import Text

    columns = ("", Column("What", no_wrap=True), Column("Found", overflow="fold"))
    table = Table(*columns, box=box.SIMPLE_HEAD)
    fixes: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for finding in findings:
        missing = "[red]✗[/]" if finding.laptop else "[dim]–[/]"
        mark = {"ok": "[green]✓[/]", "scarce": "[yellow]![/]", "missing": missing}[finding.state]
        table.add_row(mark, finding.name, Text(finding.found))
        if finding.state != "ok":
            fixes.setdefault((finding.fix, finding.commands), []).append(finding.name)
    out.print(table)
    # Not in the table, so that a command is one line and can be copied.
    for (words, commands), names in fixes.items():
        out.print(f"[bold]{', '.join(names)}:[/]", Text(words), soft_wrap=True)
        for command in commands:
            out.print(Text(command, "cyan"), soft_wrap=True)
        out.print()
