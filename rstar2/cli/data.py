"""`rstar2 data`: the data sources of the recipe, and their preparation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rstar2.cli.common import AsJson, Data, counted, err, examples, out

app = typer.Typer(
    name="data",
    help="List the known data sources, and prepare one for training.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    epilog=examples(
        ("the known sources", "rstar2 data list"),
        ("the RL problems, kept apart from the benchmarks", "rstar2 data prepare dapo --output data/dapo"),
    ),
)


@app.command(
    "list", epilog=examples(("as a table", "rstar2 data list"), ("for a script", "rstar2 data list --json"))
)
def list_sources(as_json: AsJson = False) -> None:
    """List what the recipe knows: use, where it is, columns, rows, licence."""
    from rstar2.data.catalog import cards

    if as_json:
        import json
        from dataclasses import asdict

        shown = [{**asdict(card), "needs_hub": card.needs_hub} for card in cards()]
        typer.echo(json.dumps(shown, indent=2, ensure_ascii=False))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("source", no_wrap=True)
    table.add_column("for, where on the hub, columns", min_width=22, overflow="fold")
    table.add_column("rows", max_width=7)
    table.add_column("licence", max_width=12, overflow="fold")
    table.add_column("verb", max_width=7)
    for card in cards():
        place = Text("".join(f"\n{line}" for line in (card.hub, card.columns) if line), style="dim")
        table.add_row(card.name, Text(card.use) + place, card.rows, card.licence, card.verb or "not yet")
    out.print(table)
    out.print("What is on the hub can also be given as a file: --data FILE.jsonl (problem, answer).")


@app.command(
    epilog=examples(
        (
            "DAPO from the hub, nothing near what is measured",
            "rstar2 data prepare dapo --output data/dapo --against aime24 --against aime25 --against math500",
        ),
        (
            "without a network, everything from files",
            "rstar2 data prepare dapo --data dapo.jsonl --against aime24.jsonl --output data/dapo",
        ),
        (
            "problems of your own, 16 rollouts each",
            "rstar2 data prepare mine.jsonl --rollouts 16 --output data/mine",
        ),
    )
)
def prepare(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="dapo, or FILE.jsonl with problem, answer.")
    ],
    output: Annotated[Path, typer.Option(help="The folder to write train.parquet to.")],
    data: Data = None,
    against: Annotated[
        list[str] | None,
        typer.Option(help="A benchmark, by name or file, that no training problem may resemble. Repeat it."),
    ] = None,
    rollouts: Annotated[int, typer.Option(min=2, help="Rollouts per problem, 2G.")] = 32,
    max_digits: Annotated[int, typer.Option(min=1, help="Longer integer answers are dropped as huge.")] = 12,
    limit: Annotated[int | None, typer.Option(min=1, help="Keep only the first so many.")] = None,
) -> None:
    """Write the parquet file that a stage of RL trains on.

    Keeps problems with integer answers; drops what cannot be verified, repeated problems, and whatever shares
    eight words in a row with a benchmark given with --against.
    """
    from rstar2.data.prepare import PrepareSettings
    from rstar2.data.prepare import prepare as run

    settings = PrepareSettings(source, data, tuple(against or ()), rollouts, max_digits, limit)
    prepared = run(settings, output)
    if not against:
        err.print("[yellow]not checked against any benchmark[/]: name those you measure with --against")
    dropped = ", ".join(f"{count} {reason}" for reason, count in prepared.dropped.items())
    out.print(
        f"{counted(prepared.read, 'problem')} read, {prepared.kept} kept; dropped: {dropped or 'none'}",
        soft_wrap=True,
    )
    out.print(f"[cyan]{output / 'train.parquet'}[/]", soft_wrap=True)
    if dropped:
        out.print(f"why, by problem: [cyan]{output / 'dropped.jsonl'}[/]", soft_wrap=True)
