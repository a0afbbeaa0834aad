"""`rstar2 demo`: trains a tiny model with the whole recipe."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.markup import escape

from rstar2.cli.common import Change, Recipe, examples, out, write_page
from rstar2.cli.training import ProgressRows, need_training_extra, shell_lines, timing_table

if TYPE_CHECKING:
    from rstar2.demo.recipe import DemoPlan
    from rstar2.judge.schema import Isolation

EPILOG = examples(
    ("the whole recipe, in minutes, on two cores", "rstar2 demo"),
    ("GRPO-RoC and plain GRPO, from the same SFT model", "rstar2 demo --compare"),
    ("another seed, in a folder of its own", "rstar2 demo --seed 2 --run runs/demo-seed2"),
    (
        "more steps in each of the three stages",
        "rstar2 demo --run runs/longer --set rl.steps=30 --set stage2.steps=20 --set stage3.steps=20",
    ),
    ("print what would run, without running it", "rstar2 demo --dry-run"),
)


def command(
    run: Annotated[
        Path | None,
        typer.Option(
            help="The run's folder; use the same one to resume a stopped run. By default runs/demo, or "
            "runs/demo-seedN for seed N."
        ),
    ] = None,
    recipe: Recipe = "demo",
    seed: Annotated[
        int | None, typer.Option(min=0, help="Random seed of the data, the model and the sampling.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also train with plain GRPO, and plot both methods.")
    ] = False,
    isolation: Annotated[
        Literal["strict", "landlock", "none"] | None,
        typer.Option(
            help="The judge's isolation tier; by default the strongest tier that works on this machine, "
            "never none."
        ),
    ] = None,
    change: Change = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the resolved recipe and VERL's commands, and exit.")
    ] = False,
) -> None:
    """Train a tiny model from scratch to think in Python, and measure it after every stage.

    VERL runs supervised fine-tuning (SFT), then three stages of GRPO with Resampling on Correct (GRPO-RoC). The judge
    runs every program. No GPU is needed.
    """
    from rstar2.demo.recipe import demo_plan
    from rstar2.train.command import verl_overrides
    from rstar2.train.trainer.verl_config import check_verl_keys

    plan = demo_plan(recipe, seed, change or [])
    folder = run or plan.folder
    check_verl_keys("ppo_trainer", (verl_overrides(stage.verl) for stage in plan.stages.values()))
    if dry_run:
        _show_plan(plan, recipe, folder)
    else:
        _run(plan, folder, compare, isolation)


def _show_plan(plan: DemoPlan, recipe: str, folder: Path) -> None:
    """Print the plan of the run, the resolved recipe and VERL's commands."""
    from rstar2.cli.plan import show_run
    from rstar2.demo.recipe import commands
    from rstar2.demo.tiny import config_values
    from rstar2.eval.settings import JudgeChoice
    from rstar2.model_shape import shape_of

    shape, problems = shape_of(config_values(plan.demo.model), recipe), plan.demo.problems.train
    show_run(shape, plan.stages, JudgeChoice().workers, folder, problems)
    out.print_json(json.dumps(plan.config()))
    for name, trainer in commands(plan, folder):
        out.print(f"[bold]{name}[/]")
        typer.echo(shell_lines(trainer.argv))


def _run(plan: DemoPlan, folder: Path, compare: bool, isolation: Isolation | None) -> None:
    """Run the demo, show its progress and its results, and write its report page."""
    need_training_extra(rollouts_on=[stage.hardware for stage in plan.stages.values()])
    from rstar2.train.stopping import end_resumably

    end_resumably()
    from rstar2.judge.queue.embedded_redis import server_binary

    server_binary()
    from rstar2.data import builtin
    from rstar2.demo.pipeline import run_demo
    from rstar2.demo.show import plot, table, write_figure
    from rstar2.eval.settings import JudgeChoice
    from rstar2.runs import open_run
    from rstar2.train.records.timing import run_timing

    with open_run(folder, "demo", plan.config(), plan.compared) as opened:
        logs = escape(f"tail -f {opened.logs}/*.log")
        out.print(f"run folder [cyan]{escape(str(folder))}[/]; trainer logs: [cyan]{logs}[/]", soft_wrap=True)
        with ProgressRows() as progress:
            summary = run_demo(plan, opened, compare, progress, JudgeChoice(isolation=isolation))
        write_figure(folder)
        page = write_page(folder)
    out.print(table(summary))
    out.print(plot(folder, summary))
    out.print(timing_table(run_timing(folder)))
    out.print(f"report   [cyan]{escape(str(page))}[/]", soft_wrap=True)
    # A model this small can only solve problems that are worded like its training data.
    question = builtin.held_out(plan.demo.seed, 1)[0].problem
    chat = escape(f'rstar2 chat --run {folder} --prompt "{question}"')
    out.print(f"next     [cyan]{chat}[/]", soft_wrap=True)
