"""`rstar2 grade`: grades answers that another program produced."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from rstar2.cli.common import err, examples
from rstar2.terminal import counted, percent

if TYPE_CHECKING:
    from collections import Counter

    from rstar2.eval.offline import OfflineRow

Rule = Literal["paper", "boxed", "release", "lenient"]

MAX_FAULTS = 5
"""Maximum number of printed rows of each kind: rows that cannot be graded, and verdicts that are not confirmed."""

EPILOG = examples(
    ("grade a file, and write the verdicts to another", "rstar2 grade outputs.jsonl --output graded.jsonl"),
    ("count the correct answers", 'rstar2 grade outputs.jsonl | grep -c \'"verdict": "correct"\''),
    ("confirm every correct verdict by a second, independent check", "rstar2 grade outputs.jsonl --verify"),
    ("use eight processes and five seconds of CPU time per row", "rstar2 grade outputs.jsonl -w 8 -t 5"),
    (
        "a table whose columns have other names",
        "rstar2 grade outputs.csv --gold-key answer --pred-key output",
    ),
    (
        "from a pipe, with other keys",
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
            help="A file of rows with `gold`, `pred` and optionally `id`, or of traces: .jsonl, .json with a list, "
            ".csv, .tsv or .parquet. Give `-` to read JSON lines from standard input.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT.jsonl",
            help="Write the output to this file; by default to standard output.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", "-w", min=1, help="Number of grading processes.")] = 2,
    timeout: Annotated[
        float, typer.Option("--timeout", "-t", min=0.1, help="Limit of CPU time for one row, in seconds.")
    ] = 1.5,
    gold_key: Annotated[str, typer.Option(help="The key of the gold answer.")] = "gold",
    pred_key: Annotated[str, typer.Option(help="The key of the answer to grade.")] = "pred",
    rule: Annotated[
        Rule,
        typer.Option(
            help="Where to read the answer. paper: the last \\boxed in the <answer> of a finished turn. boxed: the "
            "last \\boxed of a finished turn. release: the last \\boxed even of an unfinished turn, else any answer. "
            "lenient: any answer."
        ),
    ] = "lenient",
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first row that cannot be graded.")
    ] = False,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Check the certificate of each correct verdict with an independent program. The exit code is 1 if a "
            "verdict is not confirmed.",
        ),
    ] = False,
) -> None:
    """Grade answers that another program produced.

    Each row of FILE has `gold` and `pred` (a bare answer or a whole model output), as text or numbers. An optional
    `finish` says how the output ended: answer, max_turns, max_tokens, stopped or error.

    The output has one line for each row, in the same order, with `id`, `verdict` (correct, wrong, unparsed, timeout or
    invalid), the `extracted` answer and the `rule` that decided. A row that cannot be graded gets the verdict invalid
    and is reported. With --verify, a correct row also has `verified`: true, or the reason why it is not confirmed.
    """
    from rstar2.eval.offline import STANDARD_INPUT, read_rows

    source = STANDARD_INPUT if str(file) == "-" else file
    rows = read_rows(source, gold_key, pred_key, strict)
    counts, faults, unconfirmed = _grade(rows, source, output, workers, timeout, rule, verify)
    _summary(counts, output)
    for fault in faults[:MAX_FAULTS]:
        err.print(fault, markup=False, soft_wrap=True)
    if faults:
        of = counted(len(rows), "row")
        err.print(
            f"{len(faults)} of {of} could not be graded; use --strict to stop at the first", soft_wrap=True
        )
    if verify:
        confirmed = counts["correct"] - len(unconfirmed)
        by = "its certificate" if confirmed == 1 else "their certificates"
        err.print(
            f"{confirmed:,} of {counts['correct']:,} correct verdicts confirmed by {by}", soft_wrap=True
        )
    for reason in unconfirmed[:MAX_FAULTS]:
        err.print(reason, markup=False, soft_wrap=True)
    if unconfirmed:
        raise typer.Exit(1)


def _grade(
    rows: list[OfflineRow],
    source: Path,
    output: Path | None,
    workers: int,
    timeout: float,
    rule: Rule,
    verify: bool,
) -> tuple[Counter[str], list[str], list[str]]:
    """Grade the rows and write their verdicts.

    Returns:
        The number of rows with each verdict, a line for each row that could not be graded, and a line for each correct
        verdict that is not confirmed by its certificate.
    """
    from collections import Counter

    from rich.progress import Progress

    from rstar2.eval.grader import GraderPool
    from rstar2.eval.offline import graded, writer

    counts: Counter[str] = Counter()
    faults: list[str] = []
    unconfirmed: list[str] = []
    with (
        writer(output, source) as write,
        GraderPool(workers, timeout) as pool,
        # With redirect_stdout, rich would show rows above the bar even if standard output is a file.
        Progress(console=err, transient=True, redirect_stdout=False) as progress,
    ):
        task = progress.add_task("grading", total=len(rows))
        for row, verdict in zip(rows, graded(rows, pool, rule, verify), strict=True):
            progress.advance(task)
            write(verdict)
            counts[verdict["verdict"]] += 1
            if verdict["verdict"] == "invalid":
                faults.append(f"{row.place}: {row.fault or verdict['rule']}")
            if verdict.get("verified", True) is not True:
                unconfirmed.append(f"{row.place}: {verdict['verified']}")
    return counts, faults, unconfirmed


def _summary(counts: Counter[str], output: Path | None) -> None:
    from rich.table import Table

    from rstar2.eval.intervals import share

    total = counts.total()
    where = escape(f", in {output}") if output else ""
    table = Table(
        title=counted(total, "row") + where,
        title_justify="left",
        caption="share: share of all rows. 95 % interval: confidence interval of the share, for independent rows.",
        caption_justify="left",
    )
    for heading in ("verdict", "rows", "share", "95 % interval"):
        table.add_column(heading, justify="left" if heading == "verdict" else "right")
    for verdict, count in counts.most_common():
        interval = share(count, total)
        table.add_row(
            verdict,
            str(count),
            percent(count / total),
            f"{percent(interval.low)} to {percent(interval.high)}",
        )
    err.print(table)
