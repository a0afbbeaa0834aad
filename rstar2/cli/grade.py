"""`rstar2 grade`: grade answers that were made elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from rstar2.cli.common import counted, err, examples

if TYPE_CHECKING:
    from collections import Counter

SHOWN_FAULTS = 5

EPILOG = examples(
    ("grade a file and keep the verdicts", "rstar2 grade outputs.jsonl --output graded.jsonl"),
    ("count the correct ones", 'rstar2 grade outputs.jsonl | grep -c \'"verdict": "correct"\''),
    ("confirm every correct verdict by a second, independent check", "rstar2 grade outputs.jsonl --verify"),
    ("with eight processes and five seconds of CPU time per row", "rstar2 grade outputs.jsonl -w 8 -t 5"),
    (
        "a table, whose columns have other names",
        "rstar2 grade outputs.csv --gold-key answer --pred-key output",
    ),
    (
        "from another program, which uses other keys",
        "cat outputs.jsonl | rstar2 grade - --gold-key answer --pred-key output",
    ),
    (
        "the traces of an evaluation, as the paper rewards them",
        "rstar2 grade --rule paper runs/night/aime24/traces.jsonl",
    ),
)


def command(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE|-",
            help="Rows with `gold`, `pred` and optionally `id`, or traces: .jsonl, .json with a list, .csv, .tsv or "
            ".parquet; - is standard input with JSON lines.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="OUT.jsonl", help="Write the rows here; by default to standard output."
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Grading processes.")] = 2,
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", min=0.1, help="CPU time for one row, in seconds.")
    ] = 1.5,
    gold_key: Annotated[str, typer.Option(help="The key of the gold answer.")] = "gold",
    pred_key: Annotated[str, typer.Option(help="The key of the answer to grade.")] = "pred",
    rule: Annotated[
        Literal["paper", "boxed", "release", "lenient"],
        typer.Option(
            help="Where to read the answer. paper: the last box in <answer> of a finished turn. boxed: the last box "
            "of a finished turn. release: the last box however the turn ended, else any answer. lenient: any answer."
        ),
    ] = "lenient",
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row that cannot be graded.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check the certificate of each correct verdict with an independent program; the exit code is 1 if "
            "one is not confirmed.",
        ),
    ] = False,
) -> None:
    """Grade answers that another program produced.

    Each row of FILE has `gold` and `pred` (a bare answer or a whole model
    output), as text or numbers. An optional `finish` says how the output ended:
    answer, max_turns, max_tokens, stopped, error.

    The output has one line for each row, in order: `id`, `verdict` (correct,
    wrong, unparsed, timeout or invalid), the `extracted` answer and the `rule`
    that decided. A row that cannot be graded is invalid and is reported. With
    --verify, a correct row also has `verified`: true, or why it is not confirmed.
    """
    from collections import Counter

    from rich.progress import Progress

    from rstar2.eval.grader import GraderPool
    from rstar2.eval.offline import STANDARD_INPUT, graded, read_rows, writer

    source = STANDARD_INPUT if str(file) == "-" else file
    rows = read_rows(source, gold_key, pred_key, strict)
    counts: Counter[str] = Counter()
    bad: list[str] = []
    refused: list[str] = []
    with (
        writer(output, source) as write,
        GraderPool(workers, timeout) as pool,
        # Otherwise rows written to standard output would be shown above the bar, even if that is a file.
        Progress(console=err, transient=True, redirect_stdout=False) as progress,
    ):
        task = progress.add_task("grading", total=len(rows))
        for row, verdict in zip(rows, graded(rows, pool, rule, verify), strict=True):
            progress.advance(task)
            write(verdict)
            counts[verdict["verdict"]] += 1
            if verdict["verdict"] == "invalid":
                bad.append(f"{row.place}: {row.fault or verdict['rule']}")
            if verdict.get("verified", True) is not True:
                refused.append(f"{row.place}: {verdict['verified']}")
    _summary(counts, output)
    for fault in bad[:SHOWN_FAULTS]:
        err.print(fault, markup=False, soft_wrap=True)
    if bad:
        of = counted(len(rows), "row")
        err.print(f"{len(bad)} of {of} could not be graded; use --strict to stop at the first")
    if verify:
        of = counted(counts["correct"], "correct verdict")
        err.print(f"{counts['correct'] - len(refused)} of {of} confirmed by their certificates")
    for reason in refused[:SHOWN_FAULTS]:
        err.print(reason, markup=False, soft_wrap=True)
    if refused:
        raise typer.Exit(1)


def _summary(counts: Counter[str], output: Path | None) -> None:
    from rich.table import Table

    from rstar2.eval.intervals import share

    total = counts.total()
    where = escape(f", in {output}") if output else ""
    table = Table(title=counted(total, "row") + where, title_justify="left")
    for heading in ("verdict", "rows", "share", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "verdict" else "right")
    for verdict, count in counts.most_common():
        interval = share(count, total)
        table.add_row(
            verdict, str(count), f"{count / total:.1%}", f"{interval.low:.1%} to {interval.high:.1%}"
        )
    err.print(table)
