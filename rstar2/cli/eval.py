"""`rstar2 eval`: measures a model on benchmarks, compares two runs, and controls a run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

import rstar2.eval
from rstar2.cli import common
from rstar2.cli.common import (
    RUN,
    RunArgument,
    RunGroup,
    completed_by,
    err,
    examples,
    out,
    write_page,
)
from rstar2.data.benchmarks import NAMES
from rstar2.terminal import counted

GENERAL = tuple(
    sorted(
        path.stem.replace("_", "-")
        for path in (Path(rstar2.eval.__file__).parent / "benchmarks").glob("[!_]*.py")
    )
)
"""Names of the benchmarks that are not about mathematics. The names are taken from file names, so that the help text
can be printed without importing the benchmarks' packages."""
GROUPS = ("paper-math", "paper-general", "paper-all")


def known_names() -> list[str]:
    return [*dict.fromkeys((*NAMES, *GENERAL)), *GROUPS]


app = typer.Typer(name="eval", cls=RunGroup, rich_markup_mode="rich", add_completion=False)


Benchmarks = Annotated[
    list[str],
    typer.Argument(
        metavar="BENCHMARK|GROUP|FILE.jsonl|MODULE:OBJECT...",
        help=f"A benchmark: {', '.join(dict.fromkeys((*NAMES, *GENERAL)))}. A group: {', '.join(GROUPS)}. JSON lines "
        "with `problem`, `answer` and optionally `id`. Or a `Benchmark` of your own module. Instead of a benchmark, a "
        "command: `setup` makes a harness's environment, `compare` compares two runs, `ctl` controls a run.",
        autocompletion=completed_by(known_names),
    ),
]
Oracle = Annotated[
    bool,
    typer.Option(
        "--oracle",
        help="Check the set-up without a model: the gold answers are graded instead of a model's answers, and "
        "every tenth gold answer is changed to a wrong one.",
    ),
]
_OWN = "; by default the benchmark's own number"
MaxTokens = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"Maximum number of tokens after the prompt, tool output included{_OWN}, 30000 for mathematics.",
    ),
]
Samples = Annotated[
    int | None,
    typer.Option("-n", "--samples", min=1, help=f"Number of rollouts per problem{_OWN}, 16 for mathematics."),
]
Temperature = Annotated[
    float | None,
    typer.Option(min=0, max=2, help=f"Sampling temperature; 0 is greedy{_OWN}, 0.6 for mathematics."),
]
Baseline = Annotated[
    Path | None,
    typer.Option(help="Read the baseline answers for arena-hard from this file instead of the hub."),
]
JudgeModelUrl = Annotated[
    str | None,
    typer.Option(
        help="URL of an OpenAI-compatible server with a model that grades arena-hard. The server's "
        "key is in OPENAI_API_KEY."
    ),
]
JudgeModelName = Annotated[
    str | None, typer.Option(help="Which model of the --judge-model-url server to use, if it has several.")
]
NativeCalls = Annotated[
    bool,
    typer.Option(
        "--native-calls", help="For BFCL: put the functions into the request's `tools`, not into the prompt."
    ),
]
NoTools = Annotated[
    bool, typer.Option("--no-tools", help="With --api chat: send no tools, for a model that accepts none.")
]
ToolsInText = Annotated[
    bool,
    typer.Option(
        "--tools-in-text",
        help="With --api chat: list the tools in the system text, and read the calls from the text of the answer.",
    ),
]
RequestBody = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        help="A further field of each request to the --url server. The value is JSON or a text. A dot "
        "separates the names of nested fields: `chat_template_kwargs.enable_thinking=false`. "
        "Repeatable.",
    ),
]
PerProblem = Annotated[
    bool, typer.Option("--per-problem", help="Also show a table with the result of each problem.")
]
Judge = Annotated[
    str | None,
    typer.Option(
        callback=common.checked_judge, help="URL of a judge; by default one is started for the run."
    ),
]
JudgeWorkers = Annotated[
    int, typer.Option(min=1, max=4096, help="Number of workers of the judge that is started for the run.")
]
Wait = Annotated[
    float,
    typer.Option(
        min=0,
        help="Seconds to wait for a server that does not answer. The wait for its first answer is at most 30 s, and at "
        "most 5 s if nothing listens at its address.",
    ),
]
RunFolder = Annotated[
    Path | None,
    typer.Option(
        "--run",
        help="The run's folder; by default one that is named after the settings. Another `rstar2 eval` "
        "with the same folder may add samples (-n), problems (--limit) and benchmarks.",
    ),
]


@app.command(
    RUN,
    epilog=examples(
        ("AIME 2024 by the paper's protocol, on a vLLM server", "rstar2 eval aime24 --url http://gpu:8000"),
        (
            "a quick look: a local model, one sample of each of 30 problems from a file",
            "rstar2 eval aime24 --model runs/demo --data aime24.jsonl -n 1 --max-tokens 512 --limit 30",
        ),
        (
            "several benchmarks at once",
            "rstar2 eval aime24 aime25 math500 --url http://gpu:8000 --run runs/night",
        ),
        (
            "two more samples of each problem",
            "rstar2 eval aime24 --url http://gpu:8000 --run runs/night -n 18",
        ),
        (
            "a model behind any OpenAI-compatible endpoint",
            "rstar2 eval aime24 --url http://127.0.0.1:8000/v1 --api chat --model-name gpt-oss-120b",
        ),
        (
            "a hosted model with low reasoning effort, without tools",
            "rstar2 eval aime24 --url http://127.0.0.1:8000/v1 --api chat --model-name gpt-oss-120b --no-tools "
            "--request-body reasoning.effort=low",
        ),
        (
            "all benchmarks of the paper, after `rstar2 eval setup paper-all`",
            "rstar2 eval paper-all --url http://gpu:8000 --judge-model-url https://api.openai.com "
            "--judge-model-name gpt-4.1",
        ),
        ("problems of your own", "rstar2 eval problems.jsonl --model runs/demo/stage1"),
        (
            "a benchmark of your own, BENCHMARK in my_bench.py",
            "rstar2 eval my_bench:BENCHMARK --model runs/demo/stage1",
        ),
        ("check data, judge and grader without a model; the score is 90 %", "rstar2 eval math500 --oracle"),
        ("compare two runs, paired by problem", "rstar2 eval compare runs/before runs/after"),
    ),
)
def run(
    benchmarks: Benchmarks,
    model: common.Model = None,
    url: common.Url = None,
    model_name: common.ModelName = None,
    api: common.Api = "tokens",
    api_key: common.ApiKey = None,
    no_tools: NoTools = False,
    tools_in_text: ToolsInText = False,
    request_body: RequestBody = None,
    format: common.Format = None,
    force_format: common.ForceFormat = False,
    oracle: Oracle = False,
    judge: Judge = None,
    judge_token: common.JudgeToken = None,
    judge_workers: JudgeWorkers = 2,
    samples: Samples = None,
    temperature: Temperature = None,
    top_p: common.TopP = 1.0,
    top_k: Annotated[int, typer.Option(min=0, help="Sample from the k likeliest tokens; 0 is off.")] = 0,
    max_tokens: MaxTokens = None,
    max_turns: Annotated[int, typer.Option(min=1, help="Maximum number of model turns in a rollout.")] = 30,
    seed: Annotated[int, typer.Option(min=0, help="Sampling seed.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N problems.")] = None,
    data: common.Data = None,
    baseline: Baseline = None,
    judge_model_url: JudgeModelUrl = None,
    judge_model_name: JudgeModelName = None,
    native_calls: NativeCalls = False,
    in_flight: Annotated[
        int, typer.Option(min=1, help="Number of rollouts, and of gradings, that run at the same time.")
    ] = 64,
    wait: Wait = 300.0,
    run_folder: RunFolder = None,
    per_problem: PerProblem = False,
) -> None:
    """Measure a model on benchmarks.

    Samples every problem, runs the model's Python and grades its answers. By default, each benchmark is run by its own
    protocol. To resume a stopped run, run the same command again. Ctrl-C stops the run after the samples in flight; a
    second Ctrl-C abandons these samples.
    """
    from rstar2.engines.request_fields import request_fields
    from rstar2.errors import UserError
    from rstar2.eval.benchmarks import BenchmarkFiles, JudgeModel
    from rstar2.eval.measure import measure
    from rstar2.eval.plan import EvalRequest
    from rstar2.eval.settings import JudgeChoice
    from rstar2.eval.target import Target
    from rstar2.eval.terminal.views import EvalView
    from rstar2.loop.turns.choose import FormatChoice

    if run_folder is not None and not (model or url or oracle):
        raise UserError(
            f"no model to measure: --run {run_folder} is the folder for the evaluation, not a model",
            f"To measure the model that a run trained, give --model {run_folder}.",
        )
    settings = {
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
    if no_tools and tools_in_text:
        raise UserError("--no-tools and --tools-in-text exclude each other", "Give one of them.")
    key = os.environ.get("OPENAI_API_KEY")
    request = EvalRequest(
        target=Target(
            model,
            url,
            model_name,
            oracle,
            FormatChoice(format, force_format),
            api,
            api_key,
            "nothing" if no_tools else "text" if tools_in_text else "request",
            request_fields(request_body or ()),
        ),
        benchmarks=benchmarks,
        settings={name: value for name, value in settings.items() if value is not None},
        judge=JudgeChoice(judge, judge_token, judge_workers),
        files=BenchmarkFiles(data, baseline, native_calls),
        judge_model=JudgeModel(judge_model_url, judge_model_name, key) if judge_model_url else None,
        limit=limit,
        folder=run_folder,
    )
    measure(request, EvalView(out, err, write_page, per_problem))


@app.command(
    epilog=examples(
        ("the harness of BFCL v3", "rstar2 eval setup bfcl-v3"),
        ("every harness that the paper's benchmarks need", "rstar2 eval setup paper-all"),
    )
)
def setup(
    benchmarks: Annotated[
        list[str],
        typer.Argument(
            metavar="BENCHMARK|GROUP...",
            help="Benchmarks whose answers are scored by their own harness.",
            autocompletion=completed_by(known_names),
        ),
    ],
) -> None:
    """Make the Python environments of benchmark harnesses, in the user's data folder.

    An environment that works is not changed. A broken, incomplete or outdated environment is made again. `rstar2
    doctor` checks the environments.
    """
    from rstar2.eval.benchmarks import harnesses_of
    from rstar2.eval.harnesses.environment import installed, set_up

    for harness in harnesses_of(benchmarks):
        err.print(f"{harness.name}: {', '.join(harness.pins)}", markup=False, soft_wrap=True)
        is_new = set_up(harness)
        packages = counted(len(installed(harness)), "package")
        state = "made" if is_new else "already complete"
        out.print(f"{harness.name} {state}: {packages} in {harness.folder}", markup=False, soft_wrap=True)


@app.command(
    epilog=examples(
        ("list the running samples with their seconds", "rstar2 eval ctl runs/night"),
        ("start no more samples; those in flight finish", "rstar2 eval ctl runs/night pause"),
        ("start samples again", "rstar2 eval ctl runs/night resume"),
        ("run 16 samples at once", "rstar2 eval ctl runs/night in-flight 16"),
        ("cancel a sample that does not finish", "rstar2 eval ctl runs/night cancel aime24/60/3"),
    )
)
def ctl(
    run: RunArgument,
    action: Annotated[
        str,
        typer.Argument(
            metavar="ACTION",
            help="status, pause, resume, in-flight N or cancel BENCHMARK/PROBLEM/SAMPLE.",
            autocompletion=completed_by(lambda: ("status", "pause", "resume", "in-flight", "cancel")),
        ),
    ] = "status",
    value: Annotated[
        str,
        typer.Argument(
            metavar="VALUE", help="For in-flight: N. For cancel: the name of the sample, as status lists it."
        ),
    ] = "",
) -> None:
    """Control a running evaluation: pause and resume it, set how many samples run at a time, or cancel a sample.

    The command also works over ssh, and for a run under nohup. A cancelled sample does not count as a wrong answer. The
    sample is left out and counted as cancelled, and the evaluation samples it again when it is resumed.
    """
    from rstar2.eval.control import ask

    state = ask(run, action, value)
    running = sorted(state["sampling"].items(), key=lambda each: -each[1])
    paused = "paused, " if state["paused"] else ""
    out.print(f"{paused}{len(running)} of at most {state['in_flight']} samples are running", markup=False)
    for name, seconds in running:
        out.print(f"{seconds:8.1f} s  {name}", markup=False, soft_wrap=True)


@app.command(
    epilog=examples(
        ("two runs", "rstar2 eval compare runs/before runs/after"),
        (
            "the model before and after a stage, in one run",
            "rstar2 eval compare runs/demo/eval/sft runs/demo/eval/stage3",
        ),
        ("as JSON", "rstar2 eval compare runs/before runs/after --json"),
    )
)
def compare(
    run_a: Annotated[
        Path, typer.Argument(metavar="RUN_A", help="A run's folder, or the folder of one of its benchmarks.")
    ],
    run_b: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_B", help="The other run, or one of its benchmarks, with the same problems."
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Compare two runs problem by problem, and show the difference, its interval and the problems that flipped.

    A line below the table gives the smallest difference that a comparison of this size can detect. A problem flips if
    one run gets it right in more than half of its samples and the other run does not. If samples of a run are missing,
    a paragraph above the table says so. A benchmark's own scores, such as BFCL's categories, have a separate table.
    """
    import json

    from rstar2.eval.compare import compare_runs
    from rstar2.eval.terminal.tables import (
        MOST_FLIPS,
        comparison_tables,
        detectable_line,
        flips_table,
        incomplete_lines,
        score_differences_table,
    )

    comparisons = compare_runs(run_a, run_b)
    if as_json:
        out.print_json(json.dumps([each.as_json() for each in comparisons]))
        return
    out.print(f"A {run_a}\nB {run_b}\n", markup=False, soft_wrap=True)
    for each in comparisons:
        for line in incomplete_lines(each):
            out.print(f"{line}\n", style="yellow", markup=False, highlight=False)
    for table in comparison_tables(comparisons, out):
        out.print(table)
    out.print()
    for each in comparisons:
        out.print(detectable_line(each), markup=False, highlight=False)
    for each in comparisons:
        if each.scores:
            out.print()
            out.print(score_differences_table(each.name, each.scores))
    for each in comparisons:
        if each.changed:
            differences = f"{each.name}: these settings differ: {', '.join(each.changed)}"
            err.print(differences, style="yellow", markup=False)
        if each.unpaired:
            unpaired = counted(each.unpaired, "problem")
            err.print(
                f"{each.name}: {unpaired} left out, because only one of the runs has them",
                style="yellow",
                markup=False,
            )
        if each.flipped:
            out.print()
            out.print(flips_table(each))
        if (hidden := len(each.flipped) - MOST_FLIPS) > 0:
            out.print(f"{counted(hidden, 'more problem')} flipped: --json lists all", highlight=False)
