"""`rstar2 data agree`: finds the candidate RL problems whose label agrees with a model's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rstar2.cli import common
from rstar2.cli.common import err, examples, out
from rstar2.cli.eval import Judge, JudgeWorkers, Wait

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
    in_flight: Annotated[int, typer.Option(min=1, help="Number of rollouts that run at the same time.")] = 64,
    wait: Wait = 300.0,
) -> None:
    """Sample a model on every candidate problem and record how often its answer agrees with the label.

    The command runs an evaluation, but stores no traces. The command writes the id, sample and verdict of each rollout
    to verdicts.jsonl in the run's folder. Pass the run's folder to `data prepare`: as --agree, or as --measured if you
    use --pass-rate or --exclude-solved.
    """
    from rstar2.eval.measure import measure
    from rstar2.eval.plan import EvalRequest
    from rstar2.eval.settings import JudgeChoice
    from rstar2.eval.stored import VERDICTS
    from rstar2.eval.target import Target
    from rstar2.eval.terminal.views import AgreementView
    from rstar2.loop.turns.choose import FormatChoice

    request = EvalRequest(
        target=Target(model, url, model_name, format=FormatChoice(format, force_format), api_key=api_key),
        benchmarks=[candidates],
        settings={
            "samples": samples,
            "temperature": temperature,
            "max_tokens": max_tokens,
            "seed": seed,
            "in_flight": in_flight,
            "wait_s": wait,
        },
        judge=JudgeChoice(judge, judge_token, judge_workers),
        limit=limit,
        record=VERDICTS,
        folder=run_folder,
        kind="agree",
    )
    measure(request, AgreementView(out, err))
