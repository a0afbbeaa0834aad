"""`rstar2 data`: lists the data sources of the recipe, prepares data for training, and shows prepared data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from rstar2.cli import agree as agree_verb
from rstar2.cli.common import AsJson, Change, ForceFormat, Format, completed_by, err, examples, out
from rstar2.terminal import counted, percent, print_notice

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rstar2.data.mixture.card import Card
    from rstar2.data.mixture.look import TOKENS_OF
    from rstar2.data.mixture.prepare import CountTokens
    from rstar2.loop.turns.codec import ChatCodec

app = typer.Typer(
    name="data",
    help="List the known data sources, prepare them for training, and look at prepared data.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    add_completion=False,
    epilog=examples(
        ("the known sources", "rstar2 data list"),
        (
            "the RL problems of the paper",
            "rstar2 data prepare paper-rl --output data/rl --from project-euler=euler.jsonl",
        ),
        ("the SFT mixture of the paper", "rstar2 data prepare paper-sft --output data/sft"),
        ("row counts and a few rows of prepared data", "rstar2 data inspect data/sft"),
    ),
)


def _mixtures_and_sources() -> list[str]:
    from rstar2.data.mixture.recipe import mixtures
    from rstar2.data.sources import sources

    return [*mixtures(), *sources()]


def _benchmarks() -> tuple[str, ...]:
    from rstar2.data.benchmarks import NAMES

    return NAMES


def _filters(incomplete: str) -> list[str]:
    """Returns completions for the last filter of a comma-separated list."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in completed_by(_filter_names)(last)]


def _filter_names() -> tuple[str, ...]:
    from rstar2.data.filters import NAMES

    return tuple(NAMES)


From = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        metavar="NAME=FILE",
        help="Read a source (.json, .jsonl or .parquet) or a benchmark (.jsonl) from this file, not from the hub. "
        "Repeatable.",
    ),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help="Use this model's tokenizer and prompt: a model's folder, the folder of a run or stage, or a hub id."
    ),
]


@app.command(
    "list", epilog=examples(("for a person", "rstar2 data list"), ("for a script", "rstar2 data list --json"))
)
def list_sources(as_json: AsJson = False) -> None:
    """List the known data sources and the shipped mixtures.

    For each source: its use, its place and columns on the hub, its rows, the rows that the paper uses, the sizes of the
    download and of the prepared data, its licence, and the verb that reads it.
    """
    from rstar2.data.catalog import cards

    if as_json:
        import json
        from dataclasses import asdict

        records = [{**asdict(card), "needs_hub": card.needs_hub} for card in cards()]
        typer.echo(json.dumps(records, indent=2, ensure_ascii=False))
        return
    from rich.padding import Padding
    from rich.table import Column, Table

    from rstar2.data.mixture.recipe import mixtures

    for card in cards():
        facts = {
            "hub": escape(card.hub) + ("; gated: accept its terms there" if card.gated else ""),
            "columns": escape(card.columns),
            "rows": card.rows,
            "used by the paper": card.kept,
            "download": card.download,
            "disk needed": card.disk,
            "licence": card.licence,
            "read by": f"rstar2 {card.verb}",
        }
        table = Table.grid(Column(style="dim", width=17), Column(overflow="fold"), padding=(0, 2, 0, 0))
        for name, fact in facts.items():
            if fact:
                table.add_row(name, fact)
        out.print(f"[bold]{card.name}[/]  {card.use}")
        out.print(Padding(table, (0, 0, 0, 2)))
    out.print(f"\nMixtures for `data prepare`: {', '.join(mixtures())}.")
    out.print("Before `data prepare` reads a row, it prints how many bytes it will read from the hub.")
    out.print("A file with the same columns can replace a source on the hub: --from NAME=FILE.")


@app.command(
    epilog=examples(
        (
            "the RL problems of the paper: two sources from the hub, one from a file",
            "rstar2 data prepare paper-rl --output data/rl --from project-euler=euler.jsonl",
        ),
        (
            "one source with its filters",
            "rstar2 data prepare dapo --output data/dapo",
        ),
        (
            "the SFT conversations of the paper, some rewritten by a served model",
            "rstar2 data prepare paper-sft --output data/sft --rewrite http://gpu:8000 --model Qwen3-32B",
        ),
        (
            "without a network: everything from files",
            "rstar2 data prepare mine.jsonl --against aime24 --from aime24=aime24.jsonl --output data/mine",
        ),
        (
            "change a filter's rule and the number of rows",
            "rstar2 data prepare mine.jsonl --output data/few --set grams.rule=contained "
            "--set sources.mine.count=2",
        ),
    )
)
def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="MIXTURE | SOURCE…",
            help="A mixture (paper-rl, paper-sft, dapo, or a .toml file); or names of sources, and "
            "paths of your own files.",
            autocompletion=completed_by(_mixtures_and_sources),
        ),
    ],
    output: Annotated[Path, typer.Option(help="The folder to write; use the same one to resume.")],
    source_files: From = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Drop rows that share sequences of words with this benchmark (its name or a file). "
            "The recipe key grams.rule decides which sequences count. Repeatable. [default: the "
            "mixture's]",
            autocompletion=completed_by(_benchmarks),
        ),
    ] = None,
    filters: Annotated[
        str | None,
        typer.Option(
            help="Filters to apply, in order, separated by commas. [default: the mixture's]",
            autocompletion=_filters,
        ),
    ] = None,
    agree: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Keep only problems whose label agrees with the answers of this `data agree` or `eval` run.",
        ),
    ] = None,
    measured: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="The `data agree` or `eval` run that --pass-rate and --exclude-solved read pass rates from.",
        ),
    ] = None,
    pass_rate: Annotated[
        str | None,
        typer.Option(metavar="MIN..MAX", help="Keep only problems with a pass rate in this range."),
    ] = None,
    exclude_solved: Annotated[
        bool, typer.Option("--exclude-solved", help="Drop problems that every sample solved.")
    ] = False,
    rewrite: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="An OpenAI-compatible server that rewrites Tulu's answers and Nemotron's prompts.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The model on the --rewrite server; the server's key is in $OPENAI_API_KEY."
        ),
    ] = None,
    tokenizer: Tokenizer = None,
    change: Change = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the resolved mixture and exit.")] = False,
) -> None:
    """Prepare data for RL or SFT: read sources, apply filters, and write the rows with a data card.

    The folder gets three files. data.parquet is for `rstar2 train` and `rstar2 sft`, dropped.jsonl lists each dropped
    row with the reason, and card.md is the data card.
    """
    from rstar2.data.mixture.recipe import MixtureRequest, plan_mixture
    from rstar2.eval.grader.grading import gold_fault

    changes, added_filters = _changes(against, filters, agree, measured, pass_rate, exclude_solved)
    if model is not None:
        changes["rewrite"] = {"model": model}
    request = MixtureRequest(sources, source_files or [], changes, added_filters, change or [], rewrite or "")
    plan = plan_mixture(request, offline=dry_run, answer_fault=gold_fault)
    if dry_run:
        out.print_json(plan.recipe.model_dump_json())
        return
    from rstar2.data.mixture.prepare import prepare as run

    with _Steps() as steps:
        card = run(plan, output, steps, _counter(tokenizer))
    _print_card(card, output)


def _changes(
    against: list[str] | None,
    filters: str | None,
    agree: Path | None,
    measured: Path | None,
    pass_rate: str | None,
    exclude_solved: bool,
) -> tuple[dict[str, Any], list[str]]:
    """Returns the recipe keys whose values the options replace, and the filters that the options add."""
    from rstar2.errors import UserError

    changes: dict[str, Any] = {}
    added_filters = []
    if filters is not None:
        changes["filters"] = [name.strip() for name in filters.split(",") if name.strip()]
    if against:
        changes["against"] = against
        added_filters.append("grams")
    if agree is not None:
        changes["agreement"] = {"by": str(agree)}
        added_filters.append("agreement")
    if measured is not None:
        changes["measured"] = {"run": str(measured)}
    if pass_rate is not None:
        least, _dots, most = pass_rate.partition("..")
        try:
            bounds = {"least": float(least), "most": float(most)}
        except ValueError as error:
            raise UserError(
                f"--pass-rate {pass_rate} is not of the form MIN..MAX",
                "Give two numbers from 0 to 1, such as --pass-rate 0.1..0.9 --measured runs/eval.",
            ) from error
        changes["measured"] = {**changes.get("measured", {}), **bounds}
        added_filters.append("pass-rate")
    if exclude_solved:
        added_filters.append("solved")
    return changes, added_filters


class _Steps:
    """Shows the progress of a preparation. While a step runs, its title, its number of rows and its rows per second are
    shown. When the step has finished, a line with its result is printed."""

    def __init__(self) -> None:
        from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
        self._progress = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._task = self._progress.add_task("")
        self._title = ""
        self._rows = 0
        self._started = 0.0

    def start(self, title: str) -> None:
        self._title, self._rows, self._started = escape(title), 0, time.monotonic()
        self._progress.update(self._task, description=self._title)

    def rows(self, count: int) -> None:
        self._rows += count
        self._progress.update(
            self._task, description=f"{self._title}: {counted(self._rows, 'row')}, {self._rate()}"
        )

    def finish(self, text: str) -> None:
        rate = f", {self._rate()}" if self._rows else ""
        err.print(f"[dim]{self._title}: {text}{rate}[/]", soft_wrap=True)

    def _rate(self) -> str:
        return f"{self._rows / max(time.monotonic() - self._started, 1e-3):,.0f} rows/s"

    def __enter__(self) -> _Steps:
        self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._progress.stop()


def _print_card(card: Card, output: Path) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("source", "read", "refused", "dropped", "left", "taken"):
        table.add_column(heading, justify="left" if heading == "source" else "right")
    for name, each in card.sources.items():
        numbers = (
            each["read"],
            sum(each["refused"].values()),
            sum(each["dropped"].values()),
            each["left"],
            each["taken"],
        )
        table.add_row(escape(name), *(f"{number:,}" for number in numbers))
    out.print(table)
    out.print(
        "Rows of each source. refused: unusable; dropped: by a filter; taken: written to data.parquet.",
        style="dim",
    )
    for name, each in card.sources.items():
        if each.get("missing"):
            missing = f"{counted(each['missing'], 'row')} fewer than the {each['target']:,} that the mixture asks for"
            print_notice(err, f"{name}: {missing}", "yellow")
    _print_form({name: each["form"] for name, each in card.sources.items() if "form" in each})
    dropped = ", ".join(f"{step['dropped']:,} {step['filter']}" for step in card.steps if step["dropped"])
    print_notice(out, f"dropped, in order: {dropped or 'none'}", "")
    if not card.checked:
        print_notice(
            err,
            "not checked against any benchmark: use --against to name the benchmarks that you will evaluate on",
            "yellow",
        )
    kind = card.kind.removesuffix("s") if card.rows == 1 else card.kind
    _print_file(f"{card.rows:,} {kind}", output / "data.parquet")
    if any(sum(each["refused"].values()) + sum(each["dropped"].values()) for each in card.sources.values()):
        _print_file("each refused or dropped row, with the reason", output / "dropped.jsonl")
        _print_file("data card, with counts and examples of these rows", output / "card.md")
    else:
        _print_file("data card", output / "card.md")


def _print_file(contents: str, file: Path) -> None:
    out.print(f"{contents}: [cyan]{escape(str(file))}[/]", soft_wrap=True)


_FORM_NOTES = {
    "mixed": "× a conversation is shown without its system text, because only some turns have the format's form",
    "lost_thoughts": "× a thought is left out, because the format has no place for it",
    "unlearnt_turns": "× a turn is not trained on, because the format's later prompts leave out its thought",
}
"""Dict from the name of a count in `FormCounts` to the warning that is printed if the count is not 0."""


def _print_form(forms: Mapping[str, Mapping[str, int]], rewarded: bool = True) -> None:
    """Print how many turns of each source have the answer form that their prompt asks for, and warn about all other
    turns.

    `rewarded` is true if the model's format asks for a form of answers that RL rewards.
    """
    from rich import box
    from rich.table import Table

    if not forms:
        return
    table = Table(box=box.SIMPLE_HEAD)
    columns = {
        "marked": "in answer form",
        "rewarded_endings": "boxed",
        "turns": "turns",
        "demanded_turns": "asked for a form",
        "compliant_turns": "keep it",
    }
    for heading in ("source", *columns.values()):
        table.add_column(heading, justify="left" if heading == "source" else "right")
    for name, form in forms.items():
        table.add_row(escape(name), *(f"{form[key]:,}" for key in columns))
    out.print(table)
    for name, form in forms.items():
        if ignoring := form["demanded_turns"] - form["compliant_turns"]:
            verb = "turn does" if ignoring == 1 else "turns do"
            broken = f"{ignoring:,} {verb} not keep the form that their system text or question asks for"
            err.print(f"[yellow]{escape(name)}[/]: {broken}", soft_wrap=True)
        for key, what in _FORM_NOTES.items():
            # Cards of earlier versions lack these counts.
            if count := form.get(key, 0):
                err.print(f"[yellow]{escape(name)}[/]: {count:,} {what}", soft_wrap=True)
    if rewarded and not any(form["rewarded_endings"] for form in forms.values()):
        err.print(
            "[yellow]no conversation ends in the form that RL rewards[/]: raise answer_form, or add sources whose "
            "replies give a value",
            soft_wrap=True,
        )


@app.command(
    epilog=examples(
        ("a table, and three rows", "rstar2 data inspect data/rl"),
        (
            "rows as the model sees them, with token counts",
            "rstar2 data inspect data/rl --tokenizer models/smollm2 --format listed-tools",
        ),
    )
)
def inspect(
    path: Annotated[Path, typer.Argument(help="A prepared folder, or its data.parquet.")],
    rows: Annotated[int, typer.Option("-n", "--rows", min=0, help="Rows to show, drawn at random.")] = 3,
    seed: Annotated[int, typer.Option(help="Seed for the random rows.")] = 0,
    tokenizer: Tokenizer = None,
    format: Format = None,
    force_format: ForceFormat = False,
) -> None:
    """Show prepared data: row counts by source, and a few random rows.

    With --tokenizer, the rows are shown as the model sees them, and their lengths are counted in tokens.
    """
    from rich import box
    from rich.table import Table

    from rstar2.data.mixture.look import by_source, count_tokens, form_by_source, open_prepared
    from rstar2.errors import UserError
    from rstar2.loop.formats.format import default_format
    from rstar2.loop.turns.demands import format_texts

    if tokenizer is None and (format is not None or force_format):
        raise UserError(
            "--format and --force-format need a tokenizer",
            "Give the model with --tokenizer, or leave out --format and --force-format.",
        )
    prepared = open_prepared(path)
    table = Table("source", box=box.SIMPLE_HEAD)
    table.add_column("rows", justify="right")
    for name, count in by_source(prepared).items():
        table.add_row(escape(name), f"{count:,}")
    table.add_row("all", f"{prepared.rows:,}")
    out.print(table)
    codec = _codec(tokenizer, format, force_format) if tokenizer else None
    if prepared.kind == "conversations":
        texts = codec.texts if codec else format_texts(default_format())
        forms = form_by_source(prepared, texts)
        _print_form(forms, bool(texts.rewarded))
        if (counted_rows := sum(form["conversations"] for form in forms.values())) < prepared.rows:
            out.print(
                f"turns counted in {counted_rows:,} of the {counted(prepared.rows, 'row')}", style="dim"
            )
    tokens_of = _tokens_of(codec) if codec else None
    for row in prepared.sample(rows, seed):
        tokens = f", {tokens_of([row])[0]} tokens" if tokens_of else ""
        out.rule(escape(f"{row['id']}{tokens}"), align="left")
        out.print(_rendered(row, codec), markup=False, soft_wrap=True)
        if prepared.kind == "problems":
            out.print(f"answer: {row['answer']}", markup=False, style="dim", soft_wrap=True)
    if tokens_of and tokenizer:
        lengths = count_tokens(tokenizer, tokens_of, prepared.file, prepared.kind)
        out.rule(align="left")
        out.print(
            f"tokens: mean {lengths['mean']:.0f}, longest {lengths['most']:,}; "
            f"{percent(lengths['over'])} of {lengths['counted']:,} rows have more than {lengths['limit']:,}"
        )


app.command("agree", epilog=agree_verb.EPILOG)(agree_verb.command)


@app.command(
    "from-traces",
    epilog=examples(
        (
            "from an evaluation on training problems",
            "rstar2 data from-traces runs/eval --output data/traces --against aime24 --against aime25",
        ),
        (
            "two traces of a problem, with at most one failed call each",
            "rstar2 data from-traces runs/rl --output data/traces --per-problem 2 --failed-calls 1",
        ),
        (
            "mix them with another source",
            "rstar2 data prepare data/traces/data.parquet toolace --output data/sft",
        ),
        ("train on them", "rstar2 sft --model runs/rl --data data/traces --run runs/again"),
    ),
)
def from_traces(
    run: Annotated[
        Path,
        typer.Argument(help="An evaluation or a training run, a folder in one, or a file of traces."),
    ],
    output: Annotated[Path, typer.Option(help="The folder to write; use the same one to resume.")],
    per_problem: Annotated[
        int,
        typer.Option(
            min=1,
            help="Maximum number of traces per problem. The traces with the lowest penalty in "
            "Resampling on Correct (RoC) are taken first.",
        ),
    ] = 4,
    failed_calls: Annotated[int, typer.Option(min=0, help="Maximum number of failed calls in a trace.")] = 0,
    model: Annotated[
        str | None,
        typer.Option(
            help="The model that wrote the traces: the model's folder, or the folder of a run. "
            "[default: the run's]"
        ),
    ] = None,
    against: Annotated[
        list[str] | None,
        typer.Option(
            help="Drop conversations that share sequences of words with this benchmark (its name or a "
            "file). Repeatable."
        ),
    ] = None,
    change: Change = None,
) -> None:
    """Make an SFT set from a run's correct, clean traces (rejection sampling), with a data card.

    A trace is taken if its answer is correct and in the form that RL rewards, it was not cut off, and it has at most
    --failed-calls failed calls. The rows contain the token ids that the model wrote. Traces of held-out problems and of
    benchmarks are left out, unless RUN is exactly the folder or file with these traces.
    """
    from rstar2.data.mixture.prepare import prepare
    from rstar2.train.rejection import Selection, plan_traces, traces_of

    for warning in traces_of(run).warnings():
        err.print(escape(warning), style="yellow", soft_wrap=True)
    plan = plan_traces(run, Selection(per_problem, failed_calls), model, against or (), change or ())
    with _Steps() as steps:
        card = prepare(plan, output, steps)
    _print_card(card, output)


@app.command(epilog=examples(("compare two preparations", "rstar2 data diff data/rl data/rl2")))
def diff(
    first: Annotated[Path, typer.Argument(help="A prepared folder.")],
    second: Annotated[Path, typer.Argument(help="Another prepared folder.")],
) -> None:
    """Show which rows differ between two prepared sets, by source; the exit code is 1 if any rows differ."""
    from rstar2.data.mixture.look import difference

    delta = difference(first, second)
    for text, kind, counts in (
        (f"rows only in {first}", "first", delta.only_first),
        (f"rows only in {second}", "second", delta.only_second),
        ("rows in both, with different content", "changed", delta.changed),
    ):
        if counts:
            listed = ", ".join(f"{count:,} of {source}" for source, count in counts.items())
            line = f"{text}: {listed}; such as {', '.join(delta.examples[kind])}"
            out.print(line, markup=False, soft_wrap=True)
    out.print(f"identical rows: {delta.same:,}")
    if delta.only_first or delta.only_second or delta.changed:
        raise typer.Exit(1)


def _codec(tokenizer: str, format: str | None = None, force_format: bool = False) -> ChatCodec:
    from rstar2.engines.models import local_model
    from rstar2.loop.turns.choose import FormatChoice, load_codec

    return load_codec(local_model(tokenizer), FormatChoice(format, force_format))


def _counter(tokenizer: str | None) -> CountTokens | None:
    if tokenizer is None:
        return None
    from functools import partial

    from rstar2.data.mixture.look import count_tokens

    return partial(count_tokens, tokenizer, _tokens_of(_codec(tokenizer)))


def _rendered(row: dict[str, Any], codec: ChatCodec | None) -> str:
    """Returns a row as the model sees it, or its plain text if `codec` is None."""
    if codec is not None:
        return str(codec.tokenizer.decode(_token_ids(row, codec), skip_special_tokens=False))
    if "problem" in row:
        return str(row["problem"])
    from rstar2.loop.turns.tags import message_text

    return "\n".join(f"{message['role']}: {message_text(message)}" for message in row["messages"])


def _token_ids(row: dict[str, Any], codec: ChatCodec) -> list[int]:
    from rstar2.train.conversations import encode

    if "problem" in row:
        return codec.prompt(codec.format.messages(row["problem"]))
    return encode(row, codec).input_ids.tolist()


def _tokens_of(codec: ChatCodec) -> TOKENS_OF:
    return lambda rows: [len(_token_ids(row, codec)) for row in rows]
