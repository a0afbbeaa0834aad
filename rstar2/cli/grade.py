"""`rstar2 grade`: grade answers that were made elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli.common import err, examples

if TYPE_CHECKING:
    from collections import Counter

EPILOG = examples(
    ("grade a file and keep the verdicts", "rstar2 grade outputs.jsonl --output graded.jsonl"),
    ("count the correct ones", 'rstar2 grade outputs.jsonl | grep -c \'"verdict": "correct"\''),
    ("on eight processes, with five processor seconds a row", "rstar2 grade outputs.jsonl -w 8 -t 5"),
)


def command(
    file: Annotated[
        Path, typer.Argument(metavar="FILE.jsonl", help="Rows with `gold`, `pred`, perhaps `id`.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT.jsonl", help="Where the rows go; standard output without it."
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Grading processes.")] = 2,
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", min=0.1, help="Processor seconds for one row.")
    ] = 1.5,
) -> None:
    """Grade answers that were made elsewhere.

    Each line of FILE.jsonl is an object with `gold` and `pred` (a bare
    answer or a whole model output); either may be null. One line comes out
    for each, in order: `id`, `verdict` (correct, wrong, unparsed, timeout or
    invalid), the `extracted` answer and the `rule` that decided.
    """
    from collections import Counter

    from rich.progress import track

    from rstar2.eval.grader import GraderPool
    from rstar2.eval.grader.offline import graded, read_rows, writer

    rows = read_rows(file)
    counts: Counter[str] = Counter()
    with writer(output) as write, GraderPool(workers, timeout) as pool:
        for row in track(graded(rows, pool), "grading", total=len(rows), console=err, transient=True):
            write(row)
            counts[row["verdict"]] += 1
    _summary(counts, output)


def _summary(counts: Counter[str], output: Path | None) -> None:
    from rich.table import Table

    from rstar2.eval.statistics import share

    total = counts.total()
    table = Table(title=f"{total} rows" + (f", in {output}" if output else ""), title_justify="left")
    for heading in ("verdict", "rows", "share", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "verdict" else "right")
    for verdict, count in counts.most_common():
        interval = share(count, total)
        table.add_row(
            verdict, str(count), f"{count / total:.1%}", f"{interval.low:.1%} to {interval.high:.1%}"
        )
    err.print(table)
