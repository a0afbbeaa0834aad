"""`rstar2 data agree`: samples a model on candidates for RL, to keep those on which it agrees with the label."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rstar2.cli import common
from rstar2.cli.common import counted, err, examples, out
from rstar2.cli.eval import Judge, JudgeWorkers, Wait

if TYPE_CHECKING:
    from rstar2.eval.runner import EvalResult

EPILOG = examples(
    (
        "the paper's rule for OpenMathReasoning, first step: prepare the candidates",
        "rstar2 data prepare openmathreasoning --against math500 --output data/candidates",
    ),
    (
        "sample each candidate 16 times on a vLLM server; run the same command again to resume",
        "rstar2 data agree data/candidates --url http://gpu:8000 --run runs/agree",
    ),
    (
        "prepare the mixture without the problems where fewer than 2 of 16 samples agree",
        "rstar2 data prepare paper-rl --output data/rl --agree runs/agree --from project-euler=euler.jsonl",
    ),
)


def command(
    candidates: Annotated[str, typer.Argument(help="A prepared folder of problems.")],
    run_folder: Annotated[
        Path, typer.Option("--run", help="The run's folder; use the same one to resume a stopped run.")
    ],
    model: common.Model = None,
    url: common.Url = None,
    model_name: common.ModelName = None,
    api_key: common.ApiKey = None,
    format: common.Format = None,
    force_format: common.ForceFormat = False,
    judge: Judge = None,
    judge_token: common.JudgeToken = None,
    judge_workers: JudgeWorkers = 2,
    samples: Annotated[int, typer.Option("-n", "--samples", min=1, help="Rollouts per problem.")] = 16,
    temperature: common.Temperature = 0.6,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Token budget after the prompt, tool output included.")
    ] = 30_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sampling.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N problems.")] = None,
    in_flight: Annotated[int, typer.Option(min=1, help="Rollouts that run at once.")] = 64,
    wait: Wait = 300.0,
) -> None:
    """Sample a model on every candidate problem and record how often its answer agrees with the label.

    It is an evaluation that keeps no traces. The run's folder has verdicts.jsonl, with the id, sample and verdict of
    each rollout. Pass the folder to `data prepare` as --agree, or as --measured for --pass-rate and --exclude-solved.
    """
    from rstar2.config import resolve
    from rstar2.eval.benchmarks import Given
    from rstar2.eval.settings import EvalSettings, JudgeChoice
    from rstar2.eval.stored import VERDICTS
    from rstar2.eval.target import Target, reach_server
    from rstar2.eval.terminal.live import LiveView
    from rstar2.loop.turns.choose import FormatChoice
    from rstar2.runs import open_run

    values = {
        "samples": samples,
        "temperature": temperature,
        "max_tokens": max_tokens,
        "seed": seed,
        "in_flight": in_flight,
        "wait_s": wait,
    }
    target = Target(model, url, model_name, format=FormatChoice(format, force_format), api_key=api_key)
    server = reach_server(target, resolve(EvalSettings, values, [], "agree").wait_s)

    from rstar2.eval.measure import measure, prepare

    choice = JudgeChoice(judge, judge_token, judge_workers)
    plan = prepare(target, server, [candidates], values, choice, Given(), limit=limit, record=VERDICTS)
    with open_run(run_folder, "agree", plan.config) as run:
        problems = counted(sum(len(each.problems) for each in plan.benchmarks.values()), "problem")
        out.print(f"{problems} on {plan.opened.name} → {run_folder}", markup=False, soft_wrap=True)
        for note in plan.notes:
            err.print(note, style="yellow", markup=False, soft_wrap=True)
        results, interrupted, refused = measure(plan, run, LiveView(err))
        for result in results:
            _print(result, run_folder)
        if refused is not None:
            raise refused
        if interrupted:
            err.print("start the same command again to continue")
            raise KeyboardInterrupt


def _print(result: EvalResult, run_folder: Path) -> None:
    from rstar2.data.filters.settings import Agreement

    least = Agreement().least
    agreed = sum(row["correct"] >= least * row["samples"] for row in result.per_problem)
    whole = "" if result.complete else " so far"
    out.print(
        f"{agreed:,} of {counted(len(result.per_problem), 'problem')}{whole} have the label's answer in at "
        f"least {least:.1%} of their samples; to keep only these: --agree {run_folder}",
        markup=False,
        soft_wrap=True,
    )
