"""`rstar2 runs`: lists runs, and shows the settings and results of one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from rstar2.cli.common import RunArgument, examples, out

app = typer.Typer(
    name="runs",
    help="List runs, and show one.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    epilog=examples(
        ("the runs below ./runs", "rstar2 runs list"), ("one of them", "rstar2 runs show runs/demo")
    ),
)


@app.command("list", epilog=examples(("runs kept elsewhere", "rstar2 runs list --root /data/runs")))
def list_(root: Annotated[Path, typer.Option(help="The folder that holds the runs.")] = Path("runs")) -> None:
    """List the runs below a folder, oldest first."""
    from datetime import datetime

    from rich.table import Column, Table

    from rstar2.errors import UserError
    from rstar2.runs import list_runs, load_config, load_status

    if not root.is_dir():
        raise UserError(f"no folder at {root}", "Runs are made by demo, eval, sft and train; or give --root.")
    found = list_runs(root)
    # A path is there to be copied, so it is never cut, however narrow the terminal.
    name = Column("run", min_width=max((len(str(path)) for path in found), default=0))
    table = Table(name, "kind", "state", "attempt", "last change", box=None, padding=(0, 3, 0, 0))
    for path in found:
        kind, _ = load_config(path)
        status = load_status(path)
        at = f"{datetime.fromtimestamp(status['at']):%Y-%m-%d %H:%M}" if "at" in status else ""
        table.add_row(str(path), kind, status.get("state", "?"), str(status.get("attempt", "")), at)
    if not table.row_count:
        out.print(f"no runs below {root}")
        return
    out.print(table, crop=False)


@app.command(epilog=examples(("settings and results", "rstar2 runs show runs/demo")))
def show(run: RunArgument) -> None:
    """Show a run's state, settings and results."""
    import json

    from rstar2.eval.tables import summaries_table
    from rstar2.report.collect import collect
    from rstar2.runs import load_status

    page, status = collect(run), load_status(run)
    out.print(f"[bold]{run}[/bold]  {page.kind}, {status.get('state', 'unknown')}", soft_wrap=True)
    _print_config(page.config)
    if page.sections:
        out.print(summaries_table([(part.name, part.results["summary"]) for part in page.sections]))
    if page.summary is not None:
        out.print_json(json.dumps(page.summary))


def _print_config(config: dict[str, Any], prefix: str = "") -> None:
    for key, value in config.items():
        if isinstance(value, dict):
            _print_config(value, f"{prefix}{key}.")
        else:
            out.print(f"  [dim]{escape(prefix + str(key))}[/dim] {escape(str(value))}", soft_wrap=True)
