"""`rstar2 runs`: lists runs, or shows the results and settings of one run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from rstar2.cli.common import AsJson, RunArgument, examples, out
from rstar2.terminal import counted, percent, print_notice

if TYPE_CHECKING:
    from rstar2.report.collect import RunPage

app = typer.Typer(
    name="runs",
    help="List runs, or show one of them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    epilog=examples(
        ("list the runs below ./runs", "rstar2 runs list"), ("show one of them", "rstar2 runs show runs/demo")
    ),
)


@app.command("list", epilog=examples(("runs in another folder", "rstar2 runs list --root /data/runs")))
def list_(root: Annotated[Path, typer.Option(help="The folder with the runs.")] = Path("runs")) -> None:
    """List the runs below a folder, oldest first."""
    from datetime import datetime

    from rich.table import Column, Table

    from rstar2.errors import UserError
    from rstar2.runs import list_runs, load_config, load_status

    if not root.is_dir():
        raise UserError(
            f"there is no folder {root}",
            "demo, eval, sft and train make runs. If your runs are in another folder, name the "
            "folder with --root.",
        )
    folders = list_runs(root)
    # A path is there to be copied, so it is never cut, even if the terminal is narrow.
    name = Column("run", min_width=max((len(str(path)) for path in folders), default=0))
    table = Table(name, "kind", "state", "attempt", "last change", box=None, padding=(0, 3, 0, 0))
    for path in folders:
        try:
            kind, _ = load_config(path)
        except UserError:
            kind = "damaged"
        status = load_status(path)
        at = f"{datetime.fromtimestamp(status['at']):%Y-%m-%d %H:%M}" if "at" in status else ""
        row = (str(path), kind, str(status.get("state", "?")), str(status.get("attempt", "")), at)
        table.add_row(*map(escape, row))
    if not table.row_count:
        out.print(f"no runs below {root}", markup=False, soft_wrap=True)
        return
    out.print(table, crop=False)


@app.command(
    epilog=examples(
        ("results", "rstar2 runs show runs/demo"),
        ("results and all settings", "rstar2 runs show runs/demo --settings"),
        ("everything as JSON, for a script", "rstar2 runs show runs/demo --json"),
    )
)
def show(
    run: RunArgument,
    settings: Annotated[bool, typer.Option("--settings", help="Also show all settings.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a run's state and results, and with --settings also its settings."""
    from rstar2.report.collect import collect
    from rstar2.runs import load_status

    page, status = collect(run), load_status(run)
    if as_json:
        typer.echo(json.dumps(_as_json(page, status), indent=2, ensure_ascii=False))
        return
    state = page.kind if page.card else f"{page.kind}, {status.get('state', 'unknown')}"
    out.print(f"[bold]{escape(str(run))}[/bold]  {state}", soft_wrap=True)
    if cause := status.get("cause"):
        out.print(f"{cause}\nlogs: {run / 'attempts' / 'latest'}", markup=False, soft_wrap=True)
    _print_results(page)
    lines = list(_settings(page.config))
    if settings:
        for line in lines:
            out.print(line, soft_wrap=True)
    elif lines:
        out.print(
            f"[dim]{counted(len(lines), 'setting')}: rstar2 runs show {escape(str(run))} --settings[/]",
            soft_wrap=True,
        )


def _as_json(page: RunPage, status: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": str(page.folder),
        "kind": page.kind,
        "state": status.get("state", "unknown"),
        "cause": status.get("cause"),
        "results": {part.name: part.results["summary"] for part in page.sections},
        "summary": page.summary,
        "settings": page.config,
    }


def _print_results(page: RunPage) -> None:
    from rich.table import Column, Table

    from rstar2.eval.terminal.tables import result_tables

    if page.sections:
        for table in result_tables([(part.name, part.results["summary"]) for part in page.sections], out):
            out.print(table)
    curves = Table(
        "in training",
        Column("steps", justify="right"),
        "first → last",
        box=None,
        padding=(0, 3, 0, 0),
        caption="first → last: value at the first and at the last of these steps.",
        caption_justify="left",
    )
    for chart in page.charts:
        text = percent if chart["unit"] == "share" else "{:.1f}".format
        for line in chart["series"]:
            name = chart["y"] if len(chart["series"]) == 1 else f"{chart['y']}, {line['name']}"
            first, last = (text(point[1]) for point in (line["points"][0], line["points"][-1]))
            curves.add_row(name, str(len(line["points"])), f"{first} → {last}")
    if curves.row_count:
        out.print()
        out.print(curves)
    for model in page.models:
        print_notice(out, f"model: {model}", "")


def _settings(config: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        if isinstance(value, dict):
            yield from _settings(value, f"{prefix}{key}.")
        else:
            yield f"  [dim]{escape(prefix + str(key))}[/dim] {escape(str(value))}"
