"""`rstar2 plan`: estimates the memory, time and disk that training will need. Nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from rstar2.cli.common import AsJson, Change, Profile, completed_by, err, examples, out, recipe_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rich.table import Table

    from rstar2.eval.settings import JudgeChoice
    from rstar2.model_shape import ModelShape
    from rstar2.train.estimate.report import RunEstimate, StageEstimate
    from rstar2.train.estimate.work import Assumptions
    from rstar2.train.recipe import Hardware, SftRecipe, StageRecipe
    from rstar2.train.start_checks import SftPlan, TrainPlan
    from rstar2.train.survey import Survey

EPILOG = examples(
    ("the paper's three stages on its hardware", "rstar2 plan --model Qwen/Qwen3-14B --profile 64xmi300x"),
    (
        "does a 4B model fit on one GPU, with rollouts twice as long?",
        "rstar2 plan --model Qwen/Qwen3-4B --profile 1xh200 --stage 1 --set rollout.tokens=16384 "
        "--set hardware.update_tokens=18432",
    ),
    (
        "hours from measured tokens per second",
        "rstar2 plan --model Qwen/Qwen3-8B --profile 8xh100 --generate-tps 2400 --update-tps 2900",
    ),
    (
        "with the rollout lengths of another run",
        "rstar2 plan --model Qwen/Qwen3-8B --profile 8xh100 --like runs/rl",
    ),
    ("for a script", "rstar2 plan --model Qwen/Qwen3-14B --profile 64xh100 --json"),
)


def _known_models() -> Iterable[str]:
    from rstar2.model_shape import SHAPES

    return SHAPES


def command(
    model: Annotated[
        str,
        typer.Option(
            help="A folder with a model's config.json, the folder of a run or stage, or a hub id. Weights are not "
            "needed.",
            autocompletion=completed_by(_known_models),
        ),
    ],
    stage: Annotated[str, typer.Option(help="1, 2, 3, or a range such as 1..3.")] = "1..3",
    profile: Profile = None,
    recipe: Annotated[
        str,
        typer.Option(
            help="A recipe by name, such as paper, release or 7b-8xh100, or a file used for every stage.",
            autocompletion=completed_by(recipe_names),
        ),
    ] = "paper",
    change: Change = None,
    judge_workers: Annotated[
        int | None, typer.Option(min=1, help="Workers of the judge that will be used.")
    ] = None,
    generate_tps: Annotated[
        float | None,
        typer.Option(min=0.001, help="Tokens per second that one GPU generates. [default: calculated]"),
    ] = None,
    update_tps: Annotated[
        float | None,
        typer.Option(min=0.001, help="Tokens per second that one GPU trains on. [default: calculated]"),
    ] = None,
    like: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Assume the rollout lengths and tool calls of this run, or of this stage of a run. [default: the "
            "paper's]",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Estimate what training will cost: memory, work per step, judge, disk, hours, and what does not fit.

    Starts nothing. Parameter counts are exact; memory and hours are estimates, printed with their assumptions.
    """
    from rstar2.engines.models import folder_with_config, named_shape
    from rstar2.train.estimate.measured import measured_assumptions
    from rstar2.train.estimate.report import estimate_run, start_warnings
    from rstar2.train.estimate.work import Rates
    from rstar2.train.recipe_files import stage_range, stage_recipes

    recipes = stage_recipes(stage_range(stage), profile, change or [], recipe)
    hardware = [each.hardware for each in recipes.values()]
    estimate = estimate_run(
        named_shape(model, download=True), recipes, judge_workers, _machine_memory(hardware),
        Rates(generate_tps, update_tps), measured_assumptions(like) if like else None,
    )  # fmt: skip
    warnings = [
        *_cluster_warnings(each.machines for each in recipes.values()),
        *start_warnings(folder_with_config(model) or Path(model), min(recipes)),
        *estimate.warnings,
    ]
    if as_json:
        import json

        typer.echo(json.dumps({**estimate.record(), "warnings": warnings}))
        return
    _show(estimate, recipes)
    _warn(warnings)


def show_run(
    model: Path | str | ModelShape,
    recipes: dict[int, StageRecipe],
    judge_workers: int | None,
    run: Path,
    problems: int,
) -> None:
    """Print the plan with which a dry run begins, or a line if the size of the model is not known.

    Args:
        model: its folder, its hub id, or its shape.
        recipes: the recipes of the stages, by stage number.
        judge_workers: programs that the judge runs at once; None if that is not known.
        run: the run's folder, on whose disk the free space is measured.
        problems: the number of training problems.

    Raises:
        UserError: RAY_ADDRESS names a cluster that does not answer.
    """
    from rstar2.train.estimate.report import estimate_run, start_warnings
    from rstar2.train.estimate.work import Assumptions

    warnings = _cluster_warnings(each.machines for each in recipes.values())
    shape: ModelShape | None
    if isinstance(model, Path | str):
        warnings += start_warnings(Path(model), min(recipes))
        shape = _shape(model)
    else:
        shape = model
    if shape is None:
        _warn(warnings)
    else:
        memory = _machine_memory([each.hardware for each in recipes.values()])
        estimate = estimate_run(
            shape, recipes, judge_workers, memory, assumptions=Assumptions(problems=problems)
        )
        _show(estimate, recipes)
        _warn([*warnings, *estimate.warnings, *_disk_warnings(estimate.disk, run, may_keep_fewer=True)])


def show_sft(model: Path | str, recipe: SftRecipe, conversations: Survey, run: Path) -> None:
    """Print the plan with which a dry run of SFT begins. See `show_run`."""
    from rstar2.train.estimate.memory import sft_memory
    from rstar2.train.estimate.report import sft_disk, sft_saving

    shortage = _cluster_warnings([recipe.hardware])
    shape = _shape(model)
    if shape is None:
        _warn(shortage)
        return
    expected = conversations.lengths
    memory, disk = sft_memory(shape, recipe, expected), sft_disk(shape, recipe)
    checkpoint = sft_saving(shape, recipe, expected)
    table = _table(shape, recipe.hardware, ["SFT"])
    for name in ("weights", "gradients", "optimizer", "activations", "gathered"):
        table.add_row(name, _gib(getattr(memory, name)))
    if recipe.hardware.device == "cpu":
        table.add_row("the process itself", _gib(memory.process))
    table.add_row("total, at most", _of(memory.update_total, memory.capacity), end_section=not expected)
    if expected:
        table.add_row("  with this data", _gib(memory.expected_update_total), end_section=True)
    table.add_row("a step: seconds", f"{checkpoint.step_s:,.0f}")
    table.add_row("checkpoint every, steps", f"{checkpoint.steps_between}")
    table.add_row("  a kill costs, hours", f"{checkpoint.lost_s / 3600:,.1f}")
    table.add_row("  signal before kill, s", f"{checkpoint.signal_before_s:,.0f}", end_section=True)
    table.add_row("disk: a checkpoint", f"{_gib(disk.checkpoint)} GiB")
    table.add_row("  the run", f"{_gib(disk.total)} GiB")
    out.print(table)
    _warn([*conversations.form, *shortage, *_sft_warnings(shape, recipe, expected, run)])


def warn_before_sft(plan: SftPlan, run: Path) -> None:
    """Print warnings before SFT starts, about what the conversations teach, memory, limits and disk."""
    _warn(plan.split.data.form.warnings())
    shape = _shape(plan.model)
    if shape is not None:
        _warn(_sft_warnings(shape, plan.recipe, plan.split.lengths.tolist(), run))


def _sft_warnings(shape: ModelShape, recipe: SftRecipe, lengths: list[int], run: Path) -> Iterator[str]:
    """Yield warnings about memory, limits and disk of SFT.

    `lengths` are the numbers of tokens of a sample of the conversations, or empty if they are not known.
    """
    from rstar2.train.estimate.memory import sft_memory
    from rstar2.train.estimate.report import sft_disk, sft_saving, sft_warnings

    memory, checkpoint = sft_memory(shape, recipe, lengths), sft_saving(shape, recipe, lengths)
    yield from sft_warnings(recipe, shape, memory, checkpoint)
    yield from _disk_warnings(sft_disk(shape, recipe).total, run, may_keep_fewer=False)


def warn_before_start(plan: TrainPlan, run: Path) -> None:
    """Print warnings before a run starts, about memory, disk, and a judge that is too small for a step."""
    from rstar2.train.estimate.report import estimate_run, start_warnings
    from rstar2.train.estimate.work import Assumptions

    _warn(start_warnings(plan.model, min(plan.recipes)))
    shape = _shape(plan.model)
    if shape is not None:
        memory = _machine_memory([each.hardware for each in plan.recipes.values()])
        known = Assumptions(problems=len(plan.rows))
        estimate = estimate_run(shape, plan.recipes, _workers(plan.judge), memory, assumptions=known)
        _warn([*estimate.warnings, *_disk_warnings(estimate.disk, run, may_keep_fewer=True)])


def _cluster_warnings(hardware: Iterable[Hardware]) -> list[str]:
    from rstar2.train.hardware import cluster_shortage

    shortage = cluster_shortage(hardware)
    return [] if shortage is None else [shortage]


def _disk_warnings(needed: int, run: Path, may_keep_fewer: bool) -> Iterator[str]:
    import shutil

    from rstar2.files import existing_folder
    from rstar2.train.estimate.fit import disk_warnings

    free = shutil.disk_usage(existing_folder(run)).free
    return disk_warnings(max(0, needed - _stored_bytes(run)), free, may_keep_fewer)


def _stored_bytes(run: Path) -> int:
    """Returns the size of the checkpoints and models that an earlier start of the run wrote, in bytes."""
    kinds = ("checkpoints", "models", "model", "solved")
    # SFT has these folders in the run's folder itself, RL in the folder of each stage.
    folders = (folder for kind in kinds for folder in (run / kind, *run.glob(f"stage*/{kind}")))
    files = (file for folder in folders for file in folder.glob("**/*"))
    return sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())


def _workers(judge: JudgeChoice) -> int | None:
    """Returns the number of programs that a judge runs at once, or None if the judge does not say.

    Raises JudgeError if the judge at `judge.url` does not answer.
    """
    if judge.url is None:
        return judge.workers
    from rstar2.judge.client import SyncJudgeClient

    with SyncJudgeClient(judge.url, judge.token) as client:
        workers = client.health()["workers"]
        return workers if isinstance(workers, int) else None


def _shape(model: Path | str) -> ModelShape | None:
    from rstar2.engines.models import named_shape
    from rstar2.errors import UserError

    try:
        return named_shape(str(model), download=False)
    except UserError as error:
        err.print(f"no plan: {error.message}", soft_wrap=True, markup=False)
        return None


def _machine_memory(hardware: Iterable[Hardware]) -> int | None:
    """Returns this machine's memory in bytes, or None if all stages train in the memory of GPUs."""
    from rstar2.machine import memory_bytes

    return memory_bytes()[0] if any(each.device == "cpu" for each in hardware) else None


def _table(shape: ModelShape, hardware: Hardware, columns: list[str]) -> Table:
    from rich.table import Table

    gpus = hardware.nodes * hardware.gpus_per_node
    devices = f"{gpus} × {hardware.gpu.upper()}" if hardware.device == "cuda" else f"{gpus} CPU rank"
    title = escape(f"{shape.kind}, {shape.parameters:,} parameters, on {devices}")
    table = Table("memory: GiB per GPU" if hardware.device == "cuda" else "memory: GiB", title=title)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _show(estimate: RunEstimate, recipes: dict[int, StageRecipe]) -> None:
    stages = estimate.stages
    hardware = next(iter(recipes.values())).hardware
    table = _table(estimate.shape, hardware, [f"stage {number}" for number in stages])

    def row(name: str, cell: Callable[[StageEstimate], str], last: bool = False) -> None:
        table.add_row(name, *map(cell, stages.values()), end_section=last)

    row("update: weights", lambda each: _gib(each.memory_per_gpu.weights))
    row("  gradients", lambda each: _gib(each.memory_per_gpu.gradients))
    row("  optimizer", lambda each: _gib(each.memory_per_gpu.optimizer))
    row("  activations", lambda each: _gib(each.memory_per_gpu.activations))
    row("  gathered layers", lambda each: _gib(each.memory_per_gpu.gathered))
    if hardware.device == "cpu":
        row("  the process itself", lambda each: _gib(each.memory_per_gpu.process))
    row("  total, at most", lambda each: _of(each.memory_per_gpu.update_total, each.memory_per_gpu.capacity))
    row("  at expected lengths", lambda each: _gib(each.memory_per_gpu.expected_update_total), True)
    row("rollouts: engine weights", lambda each: _gib(each.memory_per_gpu.engine_weights))
    row("  workspace", lambda each: _gib(each.memory_per_gpu.engine_workspace))
    row("  KV cache", lambda each: _gib(each.memory_per_gpu.kv_cache))
    row("  kept by the trainer", lambda each: _gib(each.memory_per_gpu.kept_by_trainer))
    row("  total", lambda each: _of(each.memory_per_gpu.rollout_total, each.memory_per_gpu.capacity), True)
    row("engine: rollouts that fit", lambda each: f"{each.memory_per_gpu.full_length_rollouts}")
    row("  rollouts sent at once", lambda each: f"{each.memory_per_gpu.sequences_in_flight}", True)
    table.add_row("mode", *(recipe.mode for recipe in recipes.values()))
    row("a step: rollouts", lambda each: f"{each.step.rollouts:,}")
    if any(recipe.recover.failures for recipe in recipes.values()):
        row("  more after failed calls", lambda each: f"{each.step.recoveries:,}")
    row("  tokens", lambda each: f"{each.step.tokens / 1e6:,.1f} M")
    row("  tool calls", lambda each: f"{each.step.tool_calls:,}")
    row("  generated/s, a GPU", lambda each: f"{each.step.generate_tokens_per_s:,.0f}")
    row("  trained on/s, a GPU", lambda each: f"{each.step.update_tokens_per_s:,.0f}")
    row(
        "  seconds (rollouts)",
        lambda each: f"{each.step.seconds:,.0f} ({each.step.generate_s:,.0f})",
        True,
    )
    row("judge: cores", lambda each: f"{each.judge.cores}")
    row("agent loop: processes", lambda each: f"{each.agent_loop_processes}", True)
    row("checkpoint every, steps", lambda each: f"{each.checkpoint.steps_between}")
    row("  seconds to save", lambda each: f"{each.checkpoint.save_s:,.0f}")
    row("  a kill costs, hours", lambda each: f"{each.checkpoint.lost_s / 3600:,.1f}")
    row("  signal before kill, s", lambda each: f"{each.checkpoint.signal_before_s:,.0f}", True)
    row("disk: a checkpoint", lambda each: f"{_gib(each.disk.checkpoint + each.disk.queue)} GiB")
    row("  the stage", lambda each: f"{_gib(each.disk.total)} GiB", True)
    if any(each.filter_hours for each in stages.values()):
        row("hours of the filter", lambda each: f"{each.filter_hours:,.1f}")
    row("hours", lambda each: f"{each.hours:,.1f}")
    out.print(table)
    assumed = estimate.assumptions
    out.print(
        f"Assumed: {_lengths(assumed)}, {assumed.calls_per_rollout:.3g} tool calls each, {assumed.program_s:g} core "
        f"seconds a call, {assumed.problems:,} problems before stage 3, a disk of "
        f"{assumed.disk_bytes_per_s / 1e9:g} GB/s.",
        style="dim",
        soft_wrap=True,
    )


def _lengths(assumed: Assumptions) -> str:
    """Returns the assumptions about the lengths of prompts and rollouts, in words."""
    if assumed.mean_tokens is None:
        mean = f"{assumed.mean_token_share:.0%} of their budget"
    else:
        mean = f"{assumed.mean_tokens:,.0f} tokens"
    groups = (
        ""
        if assumed.trained_groups == 1
        else f", {assumed.trained_groups:.0%} of the largest step's groups trained on"
    )
    return f"prompts of {assumed.mean_prompt_tokens:,.0f} tokens or as the budget allows, rollouts of {mean}{groups}"


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        out.print(f"[yellow]![/] {escape(warning)}", soft_wrap=True)


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.1f}"


def _of(size: int, capacity: int | None) -> str:
    return _gib(size) if capacity is None else f"{_gib(size)} of {_gib(capacity)}"
