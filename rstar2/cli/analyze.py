"""`rstar2 analyze`: analyses the token entropies, the tool calls and the behaviour in the traces of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from rstar2.cli.common import ApiKey, AsJson, ModelName, err, examples, out
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.analysis.tables import Table

EPILOG = examples(
    ("a training run: its own models compute the entropies", "rstar2 analyze runs/demo"),
    (
        "the traces of an evaluation, with the model that wrote them",
        "rstar2 analyze runs/before --model Qwen/Qwen3-0.6B",
    ),
    (
        "bounds on the entropies, from a vLLM server with the model",
        "rstar2 analyze runs/before/aime24/traces.jsonl --url http://127.0.0.1:8000",
    ),
    ("two runs side by side", "rstar2 analyze runs/before runs/after --output both"),
    ("then read the traces, shaded by entropy", "rstar2 report runs/demo"),
)


def command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="TRACES|RUN...", help="Folders of runs, or files of traces.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that wrote the traces; a forward pass of this model computes exact entropies. A "
            "model's folder, the folder of a run or stage that made it, or a hub id. With --url, only the model's "
            "tokenizer is used."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="A vLLM server with the model that wrote the traces. The server returns only the 20 "
            "largest log-probabilities of each token, which give bounds of the entropy."
        ),
    ] = None,
    model_name: ModelName = None,
    api_key: ApiKey = None,
    temperature: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=10,
            help="Temperature at which --model computes the entropies of the token distributions.",
        ),
    ] = 1.0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for tables and plots; by default the folder `analysis` in the run's folder. "
            "Required for several paths.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look inside traces: uncertain tokens, failed calls, behaviour.

    For a training run, neither --model nor --url is needed. The run's own models compute the entropies of its
    evaluations, and the entropies of its rollouts come from the log-probabilities recorded during sampling. Entropies
    are stored beside the traces, and `rstar2 report` shades the traces by them.
    """
    import json

    from rstar2.analysis.analyze import EntropySource, analyze

    if len(paths) > 1 and output is None:
        raise UserError(
            f"{len(paths)} paths need a folder for their combined tables and plots",
            "Name one with --output.",
        )
    source = EntropySource(model, url, model_name, temperature, api_key)
    with err.status("reading traces") as status:
        analysis = analyze(
            paths,
            source,
            lambda label, done: status.update(escape(f"{label}: {done} traces"), spinner="dots"),
        )
    for outages in analysis.outages:
        err.print(outages.text, style="yellow", markup=False, soft_wrap=True)
    if as_json:
        print(json.dumps({table.name: table.record() for table in analysis.tables}, ensure_ascii=False))
    else:
        for table in analysis.tables:
            if table.terminal and table.rows:
                _print(table)
    # The tables are shown first because drawing the plots takes longer.
    folder = output or _folder(paths[0])
    with err.status("writing tables and plots"):
        analysis.write(folder)
    if not as_json:
        out.print(f"all tables and plots: {folder}", markup=False, soft_wrap=True)


def _folder(path: Path) -> Path:
    return path / "analysis" if path.is_dir() else path.with_name(f"{path.stem}-analysis")


def _print(table: Table) -> None:
    """Print a table with only the columns that are meant for the terminal."""
    from rich.table import Table as RichTable

    from rstar2.analysis.tables import heading, text_of

    printed = RichTable(
        title=escape(table.title),
        title_justify="left",
        title_style="bold",
        caption=escape(table.caption(table.terminal)),
        caption_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    places = [table.columns.index(name) for name in table.terminal]
    rows = [[text_of(table.columns[place], row[place]) for place in places] for row in table.rows]
    for name, cells in zip(table.terminal, zip(*rows, strict=True), strict=True):
        is_number = all(cell[-1:] in "0123456789%–" for cell in cells)
        # The name of a set of traces may be long. A number and its unit stay on one line.
        printed.add_column(
            escape(heading(name)),
            justify="right" if is_number else "left",
            overflow="fold" if name == "traces of" else "ellipsis",
            min_width=max(map(len, cells)) if is_number else None,
        )
    for row in rows:
        printed.add_row(*map(escape, row))
    out.print(printed)
    out.print()
