"""`rstar2 train`: reinforcement learning with GRPO and Resampling on Correct (GRPO-RoC), in stages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from rstar2.cli.common import (
    Change,
    JudgeToken,
    Profile,
    RunFolder,
    checked_judge,
    completed_by,
    err,
    examples,
    out,
    recipe_names,
)
from rstar2.cli.plan import warn_before_start
from rstar2.cli.training import (
    ProgressRows,
    model_here,
    need_training_extra,
    profile_for,
    shell_lines,
    timing_table,
    worker_environment_line,
)
from rstar2.terminal import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rstar2.eval.settings import JudgeChoice
    from rstar2.train.answers import UnreadableAnswer
    from rstar2.train.recipe import StageRecipe
    from rstar2.train.start_checks import TrainPlan

EPILOG = examples(
    ("stage 1 on one node of 8 GPUs", "rstar2 train --stage 1 --model runs/sft --data data/rl"),
    (
        "stages 1 and 2 on 8 nodes of a Ray cluster, with a running judge",
        "rstar2 train --stage 1..2 --model runs/sft --data data/rl --profile 64xh100 "
        "--judge http://judge:8088",
    ),
    (
        "all three stages, each from the previous stage's model",
        "rstar2 train --stage 1..3 --model runs/sft --data data/rl --run runs/rl",
    ),
    (
        "the same, with a larger token budget in stage 2",
        "rstar2 train --stage 1..3 --model runs/sft --data data/rl --profile 64xmi300x "
        "--set stage2.rollout.tokens=16384 --dry-run",
    ),
    (
        "on a laptop, for a tiny model",
        "rstar2 train --stage 1 --profile laptop --model runs/demo/sft/model "
        "--data runs/demo/stage1/train.parquet --set steps=5 --set rollout.prompts=8 --set rollout.rollouts=8 "
        "--set groups.keep=4 --set rollout.tokens=128 --set optim.lr=3e-4",
    ),
    (
        "print the resolved recipes and VERL's commands",
        "rstar2 train --stage 1..3 --model runs/sft --data data/rl --dry-run",
    ),
)


MAX_ANSWERS = 5
"""Maximum number of unreadable answers that are listed for one file."""


def command(
    stage: Annotated[str, typer.Option(help="The stages to train: 1, 2, 3, or a range such as 1..3.")],
    model: Annotated[
        str,
        typer.Option(
            help="The model the first stage starts from: its folder, the folder of a run or stage, or a hub id."
        ),
    ],
    data: Annotated[
        Path,
        typer.Option(help="A folder from `rstar2 data prepare`, or a parquet file in VERL's own format."),
    ],
    run: RunFolder = Path("runs/train"),
    recipe: Annotated[
        str,
        typer.Option(
            help="A recipe by name, such as paper, release or 7b-8xh100, or a file used for every stage.",
            autocompletion=completed_by(recipe_names),
        ),
    ] = "paper",
    profile: Profile = None,
    judge: Annotated[
        str | None,
        typer.Option(
            envvar="RSTAR2_JUDGE",
            callback=checked_judge,
            help="URL of a running judge. [default: one is started for the run]",
        ),
    ] = None,
    judge_token: JudgeToken = None,
    judge_workers: Annotated[
        int, typer.Option(min=1, help="Number of workers of the judge that is started.")
    ] = 2,
    solved: Annotated[
        Path | None,
        typer.Option(
            help="For stage 3: answers to the training problems, by the model that the stage starts from. "
            "Give an `rstar2 eval` run over these problems, or the `solved` folder of "
            "a stage that filtered the problems."
        ),
    ] = None,
    change: Change = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan, the resolved recipes and VERL's commands, and exit."),
    ] = False,
) -> None:
    """Train a model by GRPO-RoC with VERL, in stages that each start from the previous stage's model.

    Resampling on Correct (RoC) samples twice as many rollouts of a problem as it trains on. Among the correct rollouts,
    it prefers rollouts with few failed tool calls.
    """
    from rstar2.engines.models import find_model
    from rstar2.eval.settings import JudgeChoice
    from rstar2.train.command import verl_overrides
    from rstar2.train.recipe_files import stage_range, stage_recipes
    from rstar2.train.trainer.verl_config import check_verl_keys

    here = model_here(model)
    profile = profile or profile_for(here)
    recipes = stage_recipes(stage_range(stage), profile, change or [], recipe)
    find_model(model)
    check_verl_keys("ppo_trainer", (verl_overrides(each.verl) for each in recipes.values()))
    request = _TrainRequest(recipes, data, solved, run, JudgeChoice(judge, judge_token, judge_workers))
    if dry_run:
        _show_plan(request, here)
    else:
        _train(_checked_plan(request, model), run)


@dataclass(frozen=True)
class _TrainRequest:
    """The options of `rstar2 train`, with the recipes of its stages resolved."""

    recipes: dict[int, StageRecipe]
    data: Path
    solved: Path | None
    run: Path
    judge: JudgeChoice


def _show_plan(request: _TrainRequest, model: Path | str) -> None:
    """Print the plan, the resolved recipes and VERL's commands.

    Raises UserError if the data or the model's tokenizer cannot be used. A model that is named by its hub id is not
    checked if it is not on this machine.
    """
    from rstar2.cli.plan import show_run
    from rstar2.train.command import stage_commands
    from rstar2.train.start_checks import check_data, check_start

    if any(Path(model).glob("tokenizer*")):
        check_start(request.recipes, Path(model))
    rows, _, unreadable = check_data(request.recipes, request.data, request.solved)
    for line in unreadable_lines(unreadable):
        out.print(line, markup=False, soft_wrap=True)
    workers = None if request.judge.url else request.judge.workers
    show_run(model, request.recipes, workers, request.run, len(rows))
    out.print(worker_environment_line(), style="dim", soft_wrap=True)
    for number, recipe, trainer in stage_commands(request.recipes, model, request.run):
        out.print(f"[bold]stage {number}[/]")
        out.print_json(recipe.model_dump_json())
        typer.echo(shell_lines(trainer.argv))


def _checked_plan(request: _TrainRequest, model: str) -> TrainPlan:
    """Check the machines, the judge, the model and the data, and return the plan of the run.

    The fast checks come first, because later checks import packages for several seconds and may download a model.
    """
    recipes, judge = request.recipes, request.judge
    machines = [recipe.machines for recipe in recipes.values()]
    need_training_extra(rollouts_on=machines)
    from rstar2.train.stopping import end_resumably

    end_resumably()
    from rstar2.engines.models import local_model
    from rstar2.loop.judge_check import try_judge
    from rstar2.train.hardware import check_hardware
    from rstar2.train.machine_checks import check_folder, check_gpus, check_login, check_nodes

    check_hardware(machines)
    check_folder(request.run)
    from rstar2.train.start_checks import (
        check_judge_place,
        check_model,
        check_programs,
        check_start,
        plan_training,
    )

    check_judge_place(recipes, judge)
    address = None if judge.url is None else (judge.url, judge.token)
    if address is not None:
        try_judge(*address)
    with err.status("checking the GPUs, the nodes and the trackers"):
        check_gpus(machines)
        check_nodes(machines, request.run, address)
        for trackers in {(recipe.trackers, recipe.trace_trackers) for recipe in recipes.values()}:
            check_login(*trackers)
    folder = local_model(model)
    if address is not None:
        check_model(folder)
        with err.status(escape(f"running programs on the judge at {judge.url}")):
            check_programs(recipes, address, check_start(recipes, folder))
    with err.status(escape(f"counting the tokens of the prompts of {request.data}")):
        return plan_training(recipes, folder, request.data, request.solved, judge)


def _train(plan: TrainPlan, run: Path) -> None:
    """Run the stages of a plan, and show their progress and durations."""
    for line in left_out(plan):
        out.print(line, markup=False, soft_wrap=True)
    warn_before_start(plan, run)
    from rstar2.runs import open_run
    from rstar2.train.pipeline import run_train_plan
    from rstar2.train.records.timing import run_timing

    with open_run(run, "train", plan.config(), plan.compared) as opened:
        out.print(worker_environment_line(), style="dim", soft_wrap=True)
        out.print(f"trainer logs: [cyan]tail -f {escape(str(opened.logs))}/*.log[/]", soft_wrap=True)
        with ProgressRows() as progress:
            trained = run_train_plan(plan, opened, progress)
    out.print(timing_table(run_timing(run)))
    out.print(f"model    [cyan]{escape(str(trained))}[/]", soft_wrap=True)
    out.print(f"next     [cyan]rstar2 eval aime25 --model {escape(str(trained))}[/]", soft_wrap=True)


def unreadable_lines(unreadable: Mapping[Path, Sequence[UnreadableAnswer]]) -> Iterator[str]:
    """Yield a line for each data file that contains unreadable reference answers.

    The line gives the number of problems with unreadable reference answers, and the first few of these answers.
    """
    for file, answers in unreadable.items():
        if answers:
            more = f", and {len(answers) - MAX_ANSWERS} more" if len(answers) > MAX_ANSWERS else ""
            listed = "; ".join(map(str, answers[:MAX_ANSWERS]))
            problems = counted(len(answers), "problem")
            yield f"{file}: left out {problems} with unreadable reference answers: {listed}{more}"


def left_out(plan: TrainPlan) -> Iterator[str]:
    """Yield a line for each file and each stage from which problems are left out, with the reason."""
    yield from unreadable_lines(plan.unreadable)
    for number, recipe in plan.recipes.items():
        counts = (
            (plan.too_long[number], "problem"),
            (plan.held_out_too_long.get(number, 0), "held-out problem"),
        )
        if numbers := " and ".join(counted(count, noun) for count, noun in counts if count):
            limit = recipe.rollout.prompt_tokens
            yield f"stage {number}: left out {numbers} with a prompt of more than {limit} tokens"
