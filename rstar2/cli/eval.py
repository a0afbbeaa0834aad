"""`rstar2 eval`: measure a model on benchmarks, and compare two measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from rstar2.cli import common
from rstar2.cli.common import counted, err, examples, out
from rstar2.data.benchmarks import NAMES

if TYPE_CHECKING:
    from typer._click import Command, Context

    from rstar2.eval.measure import EvalPlan

RUN = "run"
"""The command that benchmarks without a command go to."""


class _EvalGroup(TyperGroup):
    """Takes benchmarks where other groups take a command."""

    def list_commands(self, ctx: Context) -> list[str]:
        return [name for name in super().list_commands(ctx) if name != RUN]

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args if args[:1] and args[0] in self.commands else [RUN, *args])

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return "" if name == RUN else name, command, rest


app = typer.Typer(name="eval", cls=_EvalGroup, rich_markup_mode="rich", add_completion=False)


Benchmarks = Annotated[
    list[str],
    typer.Argument(
        metavar="BENCHMARK|FILE.jsonl...",
        help=f"{', '.join(NAMES)}, or JSON lines with "
        "`problem`, `answer` and perhaps `id`. `compare` compares two runs.",
    ),
]
Oracle = Annotated[bool, typer.Option("--oracle", help="Answer from the gold, every tenth wrong on purpose.")]
MaxTokens = Annotated[int, typer.Option(min=1, help="Tokens after the prompt, tool output included.")]
PerProblem = Annotated[bool, typer.Option("--per-problem", help="Show the table of problems too.")]
Judge = Annotated[str | None, typer.Option(help="URL of a judge; without it one is started for the run.")]
JudgeWorkers = Annotated[
    int, typer.Option(min=1, max=4096, help="Programs at once in the judge that is started.")
]
Wait = Annotated[
    float,
    typer.Option(
        min=0, help="Seconds to wait for a server that does not answer; at most 5 for one that never did."
    ),
]
RunFolder = Annotated[
    Path | None, typer.Option("--run", help="The run's folder; by default one named after the settings.")
]


@app.command(
    RUN,
    epilog=examples(
        ("AIME 2024 by the paper's protocol, on a vLLM server", "rstar2 eval aime24 --url http://gpu:8000"),
        (
            "a quick look: a local model, one sample of 30 problems of a file",
            "rstar2 eval aime24 --model runs/demo --data aime24.jsonl -n 1 --max-tokens 512 --limit 30",
        ),
        ("several at once", "rstar2 eval aime24 aime25 math500 --url http://gpu:8000 --run runs/night"),
        (
            "a model behind any OpenAI-compatible endpoint",
            "rstar2 eval aime24 --url http://127.0.0.1:8000/v1 --api chat --model-name scripted",
        ),
        ("problems of your own", "rstar2 eval problems.jsonl --model runs/demo/stage1"),
        ("check data, judge and grader without a model: scores 90 %", "rstar2 eval math500 --oracle"),
        ("two measurements, paired by problem", "rstar2 eval compare runs/before runs/after"),
    ),
)
def run(
    benchmarks: Benchmarks,
    model: common.Model = None,
    url: common.Url = None,
    model_name: common.ModelName = None,
    api: common.Api = "tokens",
    api_key: common.ApiKey = None,
    format: common.Format = None,
    force_format: common.ForceFormat = False,
    oracle: Oracle = False,
    judge: Judge = None,
    judge_token: common.JudgeToken = None,
    judge_workers: JudgeWorkers = 2,
    samples: Annotated[int, typer.Option("-n", "--samples", min=1, help="Rollouts per problem.")] = 16,
    temperature: common.Temperature = 0.6,
    top_p: common.TopP = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="0 is off.")] = 0,
    max_tokens: MaxTokens = 30_000,
    max_turns: Annotated[int, typer.Option(min=1, help="Turns of the model.")] = 30,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many problems.")] = None,
    data: common.Data = None,
    in_flight: Annotated[int, typer.Option(min=1, help="Rollouts at once.")] = 64,
    wait: Wait = 300.0,
    run_folder: RunFolder = None,
    per_problem: PerProblem = False,
) -> None:
    """Measure a model on benchmarks.

    Every problem is sampled, the model's Python is run, its answers are graded. The defaults are the paper's
    protocol. The same command again continues where a stopped run ended.
    Ctrl-C finishes what is in flight; a second one does not.
    """
    from rstar2.config import resolve
    from rstar2.errors import UserError
    from rstar2.eval.settings import EvalSettings, JudgeChoice
    from rstar2.eval.target import Target, reach_server
    from rstar2.prompts import FormatChoice

    values = {
        "samples": samples,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "max_tokens": max_tokens,
        "max_turns": max_turns,
        "seed": seed,
        "in_flight": in_flight,
        "wait_s": wait,
    }
    if run_folder is not None and not (model or url or oracle):
        raise UserError(
            "no model to measure: --run is the folder that the evaluation is kept in",
            f"To measure the model that a run made: --model {run_folder}",
        )
    target = Target(model, url, model_name, oracle, FormatChoice(format, force_format), api, api_key)
    settings = resolve(EvalSettings, values, [], "eval")
    # Before all that takes long: the other imports, and a dataset hub without a network.
    server = reach_server(target, settings.wait_s)

    from rstar2.eval.measure import prepare

    choice = JudgeChoice(judge, judge_token, judge_workers)
    plan = prepare(target, server, benchmarks, settings, choice, data, limit)
    _measure(plan, run_folder or plan.folder, per_problem)


def _measure(plan: EvalPlan, folder: Path, per_problem: bool) -> None:
    from rstar2.eval.live import LiveView
    from rstar2.eval.measure import measure
    from rstar2.eval.tables import problems_table, settings_lines, summaries_table
    from rstar2.report import write_report
    from rstar2.runs import open_run

    protocol = plan.settings.protocol()
    with open_run(folder, "eval", plan.config) as run:
        counts = ", ".join(
            f"{name} ({counted(len(part), 'problem')})" for name, part in plan.problems.items()
        )
        out.print(f"[bold]{counts}[/bold] on {plan.opened.engine.name} → {folder}", soft_wrap=True)
        out.print(f"format: {plan.opened.codec.source}", style="dim", markup=False, soft_wrap=True)
        for what in plan.opened.identity.get("inexact", ()):
            err.print(f"not exact: {what}", style="yellow", markup=False, soft_wrap=True)
        out.print(settings_lines(protocol, out.width), style="dim", soft_wrap=True)
        results, interrupted = measure(plan, run, LiveView(err))
        out.print(summaries_table([(result.name, result.summary) for result in results], out))
        if per_problem:
            for result in results:
                out.print(problems_table(result))
        out.print(f"report: {write_report(folder)}", soft_wrap=True)
        if interrupted:
            err.print("start the same command again to continue")
            raise KeyboardInterrupt


@app.command(
    epilog=examples(
        ("did the change help?", "rstar2 eval compare runs/before runs/after"),
        (
            "did the stage? two benchmarks of one run",
            "rstar2 eval compare runs/demo/eval/sft runs/demo/eval/stage3",
        ),
        ("as JSON", "rstar2 eval compare runs/before runs/after --json"),
    )
)
def compare(
    run_a: Annotated[
        Path, typer.Argument(metavar="RUN_A", help="A run's folder, or one of its benchmarks'.")
    ],
    run_b: Annotated[Path, typer.Argument(metavar="RUN_B", help="Another one, on the same problems.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Compare two runs, paired by problem: the difference with its interval, and the problems that flipped.

    A problem flips when one run gets it right in more than half of its samples and the other does not.
    """
    import json

    from rstar2.eval.compare import compare_runs
    from rstar2.eval.tables import comparison_tables, flips_table

    found = compare_runs(run_a, run_b)
    if as_json:
        out.print_json(json.dumps([each.as_json() for each in found]))
        return
    out.print(f"A {run_a}\nB {run_b}\n", soft_wrap=True)
    for table in comparison_tables(found, out):
        out.print(table)
    for each in found:
        if each.changed:
            err.print(f"[yellow]{each.name}: other settings: {', '.join(each.changed)}[/]")
        if each.unpaired:
            alone = counted(each.unpaired, "problem")
            err.print(f"[yellow]{each.name}: in one run only, and left out: {alone}[/]")
        if each.flipped:
            out.print()
            out.print(flips_table(each))
