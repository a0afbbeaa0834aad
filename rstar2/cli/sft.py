"""`rstar2 sft`: stage 0."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from rstar2.cli.common import (
    Change,
    JudgeToken,
    Profile,
    Recipe,
    RunFolder,
    checked_judge,
    counted,
    err,
    examples,
    out,
)
from rstar2.cli.plan import warn_before_sft
from rstar2.cli.training import (
    ProgressRows,
    model_here,
    need_training_extra,
    profile_for,
    shell_lines,
    worker_environment_line,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rstar2.train.recipe import SftRecipe
    from rstar2.train.split import Split
    from rstar2.train.survey import Survey

EPILOG = examples(
    ("the paper's stage 0", "rstar2 sft --model Qwen/Qwen3-14B-Base --data data/sft --run runs/sft"),
    (
        "on a laptop, for a tiny model",
        "rstar2 sft --model runs/demo/base --data data/sft --profile laptop "
        "--set batch=16 --set lr=3e-3 --set epochs=1 --run runs/tiny",
    ),
    (
        "measure it on problems every 200 steps, and return the step that solves most of them",
        "rstar2 sft --model Qwen/Qwen3-14B-Base --data data/sft --run runs/sft "
        "--set held_out.data=data/rl-held-out --set held_out.every=200",
    ),
    ("print what would run", "rstar2 sft --model Qwen/Qwen3-14B-Base --data data/sft --dry-run"),
)


def command(
    model: Annotated[
        str,
        typer.Option(
            help="A model with a ChatML tokenizer: its folder, the folder of a run or stage, or a hub id."
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(
            help="A folder from `rstar2 data prepare`, or a parquet or JSON lines file with a `messages` column."
        ),
    ],
    run: RunFolder = Path("runs/sft"),
    recipe: Recipe = "sft",
    profile: Profile = None,
    judge: Annotated[
        str | None,
        typer.Option(
            envvar="RSTAR2_JUDGE",
            callback=checked_judge,
            help="URL of a running judge for the samples of held_out.data. [default: one is started for the run]",
        ),
    ] = None,
    judge_token: JudgeToken = None,
    judge_workers: Annotated[int, typer.Option(min=1, help="Workers of the judge that is started.")] = 2,
    change: Change = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan, the resolved recipe and VERL's command, and exit."),
    ] = False,
) -> None:
    """Fine-tune a model on tool-use conversations with VERL's SFT trainer (stage 0)."""
    from rstar2.engines.models import find_model, local_model
    from rstar2.train.command import sft_command, verl_overrides
    from rstar2.train.recipe_files import sft_recipe
    from rstar2.train.trainer.verl_config import check_verl_keys

    here = model_here(model)
    profile = profile or profile_for(here)
    resolved = sft_recipe(profile, change or [], recipe)
    find_model(model)
    check_verl_keys("sft_trainer_engine", [verl_overrides(resolved.verl)])
    if dry_run:
        from rstar2.cli.plan import show_sft
        from rstar2.train.survey import survey

        with err.status("looking at the conversations"):
            conversations = survey(resolved, Path(here), data)
        show_sft(here, resolved, conversations, run)
        for line in survey_lines(conversations, resolved):
            out.print(line, markup=False, soft_wrap=True)
        out.print(worker_environment_line(), style="dim", soft_wrap=True)
        out.print_json(resolved.model_dump_json())
        typer.echo(
            shell_lines(sft_command(resolved, run, here, run, validated=resolved.chosen_by != "last").argv)
        )
        return
    need_training_extra(rollouts_on=[resolved.hardware] if resolved.held_out.data else [])
    from rstar2.train.stopping import end_resumably

    end_resumably()
    from rstar2.eval.settings import JudgeChoice
    from rstar2.loop.judge_check import try_judge
    from rstar2.train.hardware import check_hardware
    from rstar2.train.machine_checks import check_folder, check_gpus, check_login, check_nodes

    # First what takes a moment: the next imports take seconds, and a hub's model may have to be downloaded.
    check_hardware([resolved.hardware])
    check_folder(run)
    with err.status("trying the GPUs, the nodes and the trackers"):
        check_gpus([resolved.hardware])
        check_nodes([resolved.hardware], run, None)
        check_login(resolved.trackers)
    from rstar2.train.start_checks import plan_sft

    choice = JudgeChoice(judge, judge_token, judge_workers)
    if judge is not None and resolved.held_out.data:
        try_judge(judge, judge_token)
    folder = local_model(model)
    title = escape(f"encoding the conversations of {data}")
    with err.status(title) as status:
        plan = plan_sft(
            resolved, folder, data, choice, lambda count: status.update(f"{title}: {count:,} conversations")
        )
    from rstar2.runs import open_run
    from rstar2.train.pipeline import run_sft_plan

    for line in split_lines(plan.split, plan.recipe):
        out.print(line, markup=False, soft_wrap=True)
    warn_before_sft(plan, run)
    with open_run(run, "sft", plan.config(), plan.compared) as opened:
        out.print(worker_environment_line(), style="dim", soft_wrap=True)
        out.print(f"trainer log: [cyan]tail -f {escape(str(opened.logs))}/sft.log[/]")
        with ProgressRows() as progress:
            trained = run_sft_plan(plan, opened, progress)
    out.print(f"model    [cyan]{escape(str(trained))}[/]")
    same = f" --profile {profile}" if profile else ""
    next_line = f"rstar2 train --stage 1{same} --model {trained} --data data/rl"
    out.print(f"next     [cyan]{escape(next_line)}[/]", soft_wrap=True)


def survey_lines(found: Survey, recipe: SftRecipe) -> Iterator[str]:
    """What would become of the conversations, as of `split_lines`; an estimate says that it is one."""
    if found.split is not None:
        yield from split_lines(found.split, recipe)
    elif (estimate := found.estimate) is not None:
        if estimate.too_long:
            yield f"about {too_long_line(estimate.too_long, recipe)}"
        ends = f"; the loss is measured on about {counted(estimate.held_out, 'other')}, held out"
        if recipe.validation.data:
            ends = f"; the loss is measured on conversations of {recipe.validation.data}"
        elif not estimate.held_out:
            ends = ""
        yield f"about {counted(estimate.train, 'conversation')} to train on{ends}"
        yield (
            f"these are estimates from {estimate.sampled:,} of {counted(estimate.conversations, 'conversation')}: "
            "SFT encodes all of them when it starts"
        )
    else:
        yield (
            f"{counted(found.conversations, 'conversation')}; how many are too long or held out is unknown: "
            f"{found.unknown}"
        )


def too_long_line(count: int, recipe: SftRecipe) -> str:
    """How many conversations have too many tokens, and what becomes of them."""
    done = "left out" if recipe.too_long == "drop" else "cut"
    return f"{counted(count, 'conversation')} with more than {recipe.max_tokens} tokens: {done}"


def split_lines(found: Split, recipe: SftRecipe) -> Iterator[str]:
    """What becomes of the conversations: how many are left out and why, how many are trained on and measured."""
    if found.too_long:
        yield too_long_line(found.too_long, recipe)
    if found.cut_to_nothing:
        yield f"{counted(found.cut_to_nothing, 'conversation')} left out: the cut comes before the first answer"
    if found.repeated:
        yield (
            f"{counted(found.repeated, 'conversation')} of {recipe.validation.data} left out: they ask nearly the same "
            "as the training data"
        )
    measured = counted(len(found.validation), "other")
    where = f"of {recipe.validation.data}" if recipe.validation.data else "held out"
    ends = f"; the loss is measured on {measured}, {where}" if len(found.validation) else ""
    yield f"{counted(len(found.train), 'conversation')} to train on{ends}"
