"""`rstar2 sft`: stage 0."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from rstar2.cli.common import Change, Profile, Recipe, RunFolder, counted, err, examples, out
from rstar2.cli.plan import warn_before_sft
from rstar2.cli.training import (
    ProgressRows,
    model_here,
    need_training_extra,
    profile_for,
    shell_lines,
    worker_environment_line,
)

EPILOG = examples(
    ("the paper's stage 0", "rstar2 sft --model Qwen3-14B-Base/ --data data/sft --run runs/sft"),
    (
        "on a laptop, for a tiny model",
        "rstar2 sft --model runs/demo/base --data data/sft --profile laptop "
        "--set batch=16 --set lr=3e-3 --set epochs=1 --run runs/tiny",
    ),
    ("print what would run", "rstar2 sft --model Qwen3-14B-Base/ --data data/sft --dry-run"),
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
    change: Change = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the plan, the resolved recipe and VERL's command, and exit."),
    ] = False,
) -> None:
    """Fine-tune a model on tool-use conversations with VERL's SFT trainer (stage 0)."""
    from rstar2.engines.models import find_model, local_model
    from rstar2.train.command import own_overrides, sft_command
    from rstar2.train.recipe_files import sft_recipe
    from rstar2.train.trainer.verl_config import check_verl_keys

    here = model_here(model)
    profile = profile or profile_for(here)
    resolved = sft_recipe(profile, change or [], recipe)
    find_model(model)
    check_verl_keys("sft_trainer_engine", [own_overrides(resolved.verl)])
    if dry_run:
        from rstar2.cli.plan import show_sft
        from rstar2.train.start_checks import check_conversations

        show_sft(here, resolved, check_conversations(resolved, data), run)
        out.print(worker_environment_line(), style="dim", soft_wrap=True)
        out.print_json(resolved.model_dump_json())
        typer.echo(shell_lines(sft_command(resolved, run, here, data).argv))
        return
    need_training_extra()
    from rstar2.train.stopping import end_resumably

    end_resumably()
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

    folder = local_model(model)
    with err.status(escape(f"encoding the conversations of {data}")):
        plan = plan_sft(resolved, folder, data)
    from rstar2.runs import open_run
    from rstar2.train.pipeline import run_sft_plan

    if plan.too_long:
        done = "left out" if resolved.too_long == "drop" else "cut"
        number = counted(plan.too_long, "conversation")
        out.print(f"{number} with more than {resolved.max_tokens} tokens: {done}")
    if plan.cut_to_nothing:
        out.print(
            f"{counted(plan.cut_to_nothing, 'conversation')} left out: the cut comes before the first answer"
        )
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
