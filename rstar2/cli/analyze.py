"""`rstar2 analyze`: the entropy of each token, tool calls and behaviour in the traces of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from rstar2.cli.common import ApiKey, AsJson, ModelName, err, examples, out
from rstar2.errors import UserError

if TYPE_CHECKING:
    from rstar2.analysis.tables import Table

WIDE = 8
"""Columns above which a table is printed with its rows as columns."""
SIDE_BY_SIDE = 5
"""Rows that are then printed side by side."""

EPILOG = examples(
    ("a training run: its own models compute the entropies", "rstar2 analyze runs/demo"),
    (
        "the traces of an evaluation, with the model that wrote them",
        "rstar2 analyze runs/before --model Qwen/Qwen3-0.6B",
    ),
    (
        "bounds on the entropy from a vLLM server that serves the model",
        "rstar2 analyze runs/before/aime24/traces.jsonl --url http://127.0.0.1:8000",
    ),
    ("two runs side by side", "rstar2 analyze runs/before runs/after --output both"),
    ("then read the traces, shaded by entropy", "rstar2 report runs/demo"),
)


def command(
    paths: Annotated[
        list[Path], typer.Argument(metavar="TRACES|RUN...", help="Runs' folders, or files of traces.")
    ],
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that wrote the traces, to compute exact entropies with a forward pass. A model's folder, "
            "the folder of a run or stage that made it, or a hub id. With --url, only its tokenizer is used."
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            help="A vLLM server with that model: entropies are bounds from its top 20 log-probabilities."
        ),
    ] = None,
    model_name: ModelName = None,
    api_key: ApiKey = None,
    temperature: Annotated[
        float,
        typer.Option(
            min=0.01, max=10, help="Temperature of the distribution whose entropy --model computes."
        ),
    ] = 1.0,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Folder for tables and plots; by default `analysis` in the run. Required for several paths.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look inside traces: uncertain tokens, failed calls, behaviour.

    For a training run without --model and --url, the run's own models compute the entropies of its evaluations; the
    entropies of its rollouts come from the log-probabilities recorded during sampling. Entropies are stored beside the
    traces, and `rstar2 report` shades the traces by them.
    """
    import json

    from rstar2.analysis.analyze import EntropySource, analyze

    if len(paths) > 1 and output is None:
        raise UserError(
            "several paths need a folder for their combined tables and plots",
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
            if table.output == "everywhere" and table.rows:
                _print(table)
    # To draw the plots takes longer than to compute the tables, which are therefore shown first.
    folder = output or _folder(paths[0])
    with err.status("writing tables and plots"):
        analysis.write(folder)
    if not as_json:
        out.print(f"tables and plots: {folder}", markup=False, soft_wrap=True)


def _folder(path: Path) -> Path:
    return path / "analysis" if path.is_dir() else path.with_name(f"{path.stem}-analysis")


def _print(table: Table) -> None:
    from rich.table import Table as Shown

    from rstar2.analysis.tables import text_of

    names = [column.removesuffix(" share") for column in table.columns]
    rows = [[text_of(*cell) for cell in zip(table.columns, row, strict=True)] for row in table.rows]
    pages = [(names, rows)]
    if len(names) > WIDE:
        parts = [[names, *rows[start : start + SIDE_BY_SIDE]] for start in range(0, len(rows), SIDE_BY_SIDE)]
        turned = [[list(line) for line in zip(*part, strict=True)] for part in parts]
        pages = [(lines[0], lines[1:]) for lines in turned]
    out.print(table.title, style="bold", markup=False)
    for heads, lines in pages:
        drawn = Shown()
        for place, head in enumerate(heads):
            numbers = all(line[place][-1:] in "0123456789%–" for line in lines)
            drawn.add_column(escape(head), justify="right" if numbers else "left", overflow="fold")
        for line in lines:
            drawn.add_row(*map(escape, line))
        out.print(drawn)
