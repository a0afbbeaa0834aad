"""`rstar2 sft`: supervised fine-tuning (SFT), stage 0 of the recipe."""

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
from rstar2.terminal import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rstar2.eval.settings import JudgeChoice
    from rstar2.train.recipe import SftRecipe
    from rstar2.train.split import Split
    from rstar2.train.start_checks import SftPlan
    from rstar2.train.survey import Survey

EPILOG = examples(
    ("the paper's stage 0", "rstar2 sft --model Qwen/Qwen3-14B-Base --data data/sft --run runs/sft"),
    (
        "on a laptop, for a tiny model",
        "rstar2 sft --model runs/demo/base --data data/sft --profile laptop "
        "--set batch=16 --set lr=3e-3 --set epochs=1 --run runs/tiny",
    ),
    (
        "measure the model on held-out problems every 200 steps, and choose the step that solves the most",
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
            help="URL of a running judge, which runs the programs of the samples for held_out.data. "
            "[default: one is started for the run]",
        ),
    ] = None,
    judge_token: JudgeToken = None,
    judge_workers: Annotated[
        int, typer.Option(min=1, help="Number of workers of the judge that is started.")
    ] = 2,
    change: Change = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan, the resolved recipe and VERL's command, and exit."),
    ] = False,
) -> None:
    """Fine-tune a model on tool-use conversations with VERL's SFT trainer (stage 0)."""
    from rstar2.engines.models import find_model
    from rstar2.eval.settings import JudgeChoice
    from rstar2.train.command import verl_overrides
    from rstar2.train.recipe_files import sft_recipe
    from rstar2.train.trainer.verl_config import check_verl_keys

    here = model_here(model)
    profile = profile or profile_for(here)
    resolved = sft_recipe(profile, change or [], recipe)
    find_model(model)
    check_verl_keys("sft_trainer_engine", [verl_overrides(resolved.verl)])
    if dry_run:
        _show_plan(resolved, here, data, run)
        return
    plan = _checked_plan(resolved, model, data, run, JudgeChoice(judge, judge_token, judge_workers))
    trained = _train(plan, run)
    out.print(f"model    [cyan]{escape(str(trained))}[/]", soft_wrap=True)
    same_profile = f" --profile {profile}" if profile else ""
    next_line = f"rstar2 train --stage 1{same_profile} --model {trained} --data data/rl"
    out.print(f"next     [cyan]{escape(next_line)}[/]", soft_wrap=True)


def _show_plan(recipe: SftRecipe, model: Path | str, data: Path, run: Path) -> None:
    """Print the plan, the resolved recipe and VERL's command."""
    from rstar2.cli.plan import show_sft
    from rstar2.train.command import sft_command
    from rstar2.train.survey import survey

    with err.status("looking at the conversations"):
        conversations = survey(recipe, Path(model), data)
    show_sft(model, recipe, conversations, run)
    for line in survey_lines(conversations, recipe):
        out.print(line, markup=False, soft_wrap=True)
    out.print(worker_environment_line(), style="dim", soft_wrap=True)
    out.print_json(recipe.model_dump_json())
    typer.echo(shell_lines(sft_command(recipe, run, model, run, validated=recipe.chosen_by != "last").argv))


def _checked_plan(recipe: SftRecipe, model: str, data: Path, run: Path, judge: JudgeChoice) -> SftPlan:
    """Check the machines, the judge, the model and the data, and return the plan of the run.

    The fast checks come first, because later checks import packages for several seconds and may download a model.
    """
    need_training_extra(rollouts_on=[recipe.hardware] if recipe.held_out.data else [])
    from rstar2.train.stopping import end_resumably

    end_resumably()
    from rstar2.engines.models import local_model
    from rstar2.loop.judge_check import try_judge
    from rstar2.train.hardware import check_hardware
    from rstar2.train.machine_checks import check_folder, check_gpus, check_login, check_nodes

    check_hardware([recipe.hardware])
    check_folder(run)
    with err.status("checking the GPUs, the nodes and the trackers"):
        check_gpus([recipe.hardware])
        check_nodes([recipe.hardware], run, None)
        check_login(recipe.trackers)
    from rstar2.train.start_checks import plan_sft

    if judge.url is not None and recipe.held_out.data:
        try_judge(judge.url, judge.token)
    folder = local_model(model)
    title = escape(f"encoding the conversations of {data}")
    with err.status(title) as status:
        return plan_sft(
            recipe,
            folder,
            data,
            judge,
            lambda count: status.update(f"{title}: {counted(count, 'conversation')}"),
        )


def _train(plan: SftPlan, run: Path) -> Path:
    """Run SFT, show its progress, and return the folder of the trained model."""
    from rstar2.runs import open_run
    from rstar2.train.pipeline import run_sft_plan

    for line in split_lines(plan.split, plan.recipe):
        out.print(line, markup=False, soft_wrap=True)
    warn_before_sft(plan, run)
    with open_run(run, "sft", plan.config(), plan.compared) as opened:
        out.print(worker_environment_line(), style="dim", soft_wrap=True)
        out.print(f"trainer log: [cyan]tail -f {escape(str(opened.logs))}/sft.log[/]", soft_wrap=True)
        with ProgressRows() as progress:
            return run_sft_plan(plan, opened, progress)


def survey_lines(conversations: Survey, recipe: SftRecipe) -> Iterator[str]:
    """Yield lines with the numbers of conversations, as `split_lines` does.

    If a number is an estimate, its line says so.
    """
    if conversations.split is not None:
        yield from split_lines(conversations.split, recipe)
    elif (estimate := conversations.estimate) is not None:
        if estimate.too_long:
            yield f"about {too_long_line(estimate.too_long, recipe)}"
        measured = f"; the loss is measured on about {counted(estimate.held_out, 'other')}, held out"
        if recipe.validation.data:
            measured = f"; the loss is measured on conversations of {recipe.validation.data}"
        elif not estimate.held_out:
            measured = ""
        yield f"about {counted(estimate.train, 'conversation')} to train on{measured}"
        yield (
            f"these are estimates from {estimate.sampled:,} of {counted(estimate.conversations, 'conversation')}: "
            "SFT encodes all of them when it starts"
        )
    else:
        yield (
            f"{counted(conversations.conversations, 'conversation')}; how many are too long or held out is unknown: "
            f"{conversations.unknown}"
        )


def too_long_line(count: int, recipe: SftRecipe) -> str:
    """Returns a line with the number of conversations over the token limit, and whether they are left out or cut."""
    done = "left out" if recipe.too_long == "drop" else "cut"
    return f"{counted(count, 'conversation')} with more than {recipe.max_tokens} tokens: {done}"


def split_lines(split: Split, recipe: SftRecipe) -> Iterator[str]:
    """Yield lines with the numbers of conversations that are left out, trained on and held out, with the reasons."""
    if split.too_long:
        yield too_long_line(split.too_long, recipe)
    if split.cut_to_nothing:
        yield f"{counted(split.cut_to_nothing, 'conversation')} left out: the cut comes before the first answer"
    if split.repeated:
        yield (
            f"{counted(split.repeated, 'conversation')} of {recipe.validation.data} left out: they ask nearly the same "
            "as the training data"
        )
    measured = ""
    if len(split.validation):
        where = f"of {recipe.validation.data}" if recipe.validation.data else "held out"
        measured = f"; the loss is measured on {counted(len(split.validation), 'other')}, {where}"
    yield f"{counted(len(split.train), 'conversation')} to train on{measured}"
