"""`rstar2 plan`: estimates the memory, time and disk that training will need. Nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from rstar2.cli.common import AsJson, Change, Profile, completed_by, err, examples, out, recipe_names
from rstar2.terminal import percent, print_notice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

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

_GATHERED = (
    "gathered layers: weights and gradients that a device collects from all others to compute a layer."
)
_LONGEST_NAME = 40
"""Maximum number of characters of a model's name in a table's title."""


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
    stage: Annotated[
        str, typer.Option(help="The stages to plan: 1, 2, 3, or a range such as 1..3.")
    ] = "1..3",
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
        int | None, typer.Option(min=1, help="Number of workers of the judge that training will use.")
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
    _show(estimate, recipes, _name(model))
    _warn(warnings)


def show_run(
    model: Path | str | ModelShape,
    recipes: dict[int, StageRecipe],
    judge_workers: int | None,
    run: Path,
    problems: int,
) -> None:
    """Print the plan at the beginning of a dry run. If the size of the model is not known, print a line that says so.

    Args:
        model: the model's folder, hub id, or shape.
        recipes: dict from stage number to recipe.
        judge_workers: number of programs that the judge runs at once; None if the number is not known.
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
        _show(estimate, recipes, _name(model) if isinstance(model, Path | str) else None)
        _warn([*warnings, *estimate.warnings, *_rl_disk_warnings(estimate, recipes, run)])


def show_sft(model: Path | str, recipe: SftRecipe, conversations: Survey, run: Path) -> None:
    """Print the plan at the beginning of a dry run of SFT. See `show_run`."""
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
    table = _blank_table(_name(model), shape, recipe.hardware, ["SFT"])
    cuda = recipe.hardware.device == "cuda"

    def block(heading: str, cells: dict[str, str]) -> None:
        table.add_section()
        table.add_row(f"[bold]{heading}[/]")
        for name, cell in cells.items():
            table.add_row(f"  {name}", cell)

    block(
        f"update: GiB of {_device(recipe.hardware)}",
        {
            "weights": _gib(memory.weights),
            "gradients": _gib(memory.gradients),
            "optimizer": _gib(memory.optimizer),
            "activations": _gib(memory.activations),
            "gathered layers": _gib(memory.gathered),
            **(
                {"CUDA and NCCL": _gib(_cuda_bytes())}
                if cuda
                else {"the process itself": _gib(memory.process)}
            ),
            f"peak, at most{_of_capacity(memory.capacity)}": _gib(memory.update_total),
            **({"peak with this data": _gib(memory.expected_update_total)} if expected else {}),
        },
    )
    block("one step", {"seconds": f"{checkpoint.step_s:,.0f}"})
    block(
        "checkpoints",
        {
            "steps between two checkpoints": f"{checkpoint.steps_between}",
            "seconds to save one": f"{checkpoint.save_s:,.0f}",
            "hours that a kill can cost": f"{checkpoint.lost_s / 3600:,.1f}",
            "seconds from the signal to the time limit": f"{checkpoint.signal_before_s:,.0f}",
        },
    )
    block("disk, GiB", {"one checkpoint": _gib(disk.checkpoint), "the whole run": _gib(disk.total)})
    table.caption = _GATHERED
    out.print(table)
    _warn([*conversations.form, *shortage, *_sft_warnings(shape, recipe, expected, run)])


def warn_before_sft(plan: SftPlan, run: Path) -> None:
    """Print warnings before SFT starts, about memory, limits, disk space, and the form of the conversations."""
    _warn(plan.split.data.form.warnings())
    shape = _shape(plan.model)
    if shape is not None:
        _warn(_sft_warnings(shape, plan.recipe, plan.split.lengths.tolist(), run))


def _sft_warnings(shape: ModelShape, recipe: SftRecipe, lengths: list[int], run: Path) -> Iterator[str]:
    """Yield warnings about the memory, limits and disk space of SFT.

    `lengths` has the length in tokens of each conversation in a sample. The list is empty if no lengths are known.
    """
    from rstar2.train.estimate.memory import sft_memory
    from rstar2.train.estimate.report import sft_disk, sft_saving, sft_warnings

    memory, checkpoint = sft_memory(shape, recipe, lengths), sft_saving(shape, recipe, lengths)
    yield from sft_warnings(recipe, shape, memory, checkpoint)
    disk = sft_disk(shape, recipe).total
    yield from _disk_warnings(disk, disk, run)


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
        _warn([*estimate.warnings, *_rl_disk_warnings(estimate, plan.recipes, run)])


def _cluster_warnings(hardware: Iterable[Hardware]) -> list[str]:
    from rstar2.train.hardware import cluster_shortage

    shortage = cluster_shortage(hardware)
    return [] if shortage is None else [shortage]


def _rl_disk_warnings(estimate: RunEstimate, recipes: Mapping[int, StageRecipe], run: Path) -> Iterator[str]:
    from rstar2.train.estimate.report import disk_with_one_checkpoint

    return _disk_warnings(estimate.disk, disk_with_one_checkpoint(estimate, recipes), run)


def _disk_warnings(needed: int, with_one_checkpoint: int, run: Path) -> Iterator[str]:
    import shutil

    from rstar2.files import existing_folder
    from rstar2.train.estimate.fit import disk_warnings

    free = shutil.disk_usage(existing_folder(run)).free
    stored = _stored_bytes(run)
    return disk_warnings(max(0, needed - stored), max(0, with_one_checkpoint - stored), free)


def _stored_bytes(run: Path) -> int:
    """Returns the size, in bytes, of the checkpoints and models that the run wrote before it was resumed."""
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


def _name(model: Path | str) -> str:
    """Returns a model's name for a title: its hub id, or the last two parts of a long path."""
    name = str(model)
    return name if len(name) <= _LONGEST_NAME else str(Path("…", *Path(model).parts[-2:]))


def _machine_memory(hardware: Iterable[Hardware]) -> int | None:
    """Returns this machine's memory in bytes, or None if all stages train in the memory of GPUs."""
    from rstar2.machine import memory_bytes

    return memory_bytes()[0] if any(each.device == "cpu" for each in hardware) else None


def _blank_table(named: str | None, shape: ModelShape, hardware: Hardware, columns: list[str]) -> Table:
    """Returns a table with a title and columns, but without rows.

    `named` is the model's name for the title, or None if the model has no name.
    """
    from rich.table import Table

    gpus = hardware.nodes * hardware.gpus_per_node
    devices = f"{gpus} × {hardware.gpu.upper()}" if hardware.device == "cuda" else f"{gpus} CPU rank"
    model = shape.kind if named is None else f"{named} ({shape.kind})"
    title = escape(f"{model}: {shape.parameters:,} parameters, on {devices}")
    table = Table("", title=title, caption_justify="left")
    for column in columns:
        table.add_column(column, justify="right")
    return table


class _Rows:
    """Adds rows to a table in blocks, each with a heading. A row has a cell for each stage."""

    def __init__(self, table: Table, stages: Iterable[StageEstimate]) -> None:
        self._table = table
        self._stages = list(stages)

    def block(self, heading: str) -> None:
        self._table.add_section()
        self._table.add_row(f"[bold]{heading}[/]")

    def add(self, name: str, cell: Callable[[StageEstimate], str]) -> None:
        self._table.add_row(f"  {name}", *map(cell, self._stages))

    def gib(self, name: str, size: Callable[[StageEstimate], int]) -> None:
        self.add(name, lambda each: _gib(size(each)))


def _show(estimate: RunEstimate, recipes: dict[int, StageRecipe], named: str | None) -> None:
    stages = estimate.stages
    hardware = next(iter(recipes.values())).hardware
    table = _blank_table(named, estimate.shape, hardware, [f"stage {number}" for number in stages])
    rows = _Rows(table, stages.values())
    _add_memory(rows, hardware, next(iter(stages.values())).memory_per_gpu.capacity)
    _add_step(rows, list(recipes.values()))
    rows.block("judge and agent loop")
    rows.add("cores for the judge", lambda each: f"{each.judge.cores}")
    rows.add("agent loop processes", lambda each: f"{each.agent_loop_processes}")
    rows.block("checkpoints")
    rows.add("steps between two checkpoints", lambda each: f"{each.checkpoint.steps_between}")
    rows.add("seconds to save one", lambda each: f"{each.checkpoint.save_s:,.0f}")
    rows.add("hours that a kill can cost", lambda each: f"{each.checkpoint.lost_s / 3600:,.1f}")
    rows.add(
        "seconds from the signal to the time limit", lambda each: f"{each.checkpoint.signal_before_s:,.0f}"
    )
    rows.block("disk, GiB")
    rows.gib("one checkpoint", lambda each: each.disk.checkpoint + each.disk.queue)
    rows.gib("the whole stage", lambda each: each.disk.total)
    rows.block("time, hours")
    sampled_before = ", ".join(str(number) for number, each in stages.items() if each.filter_hours)
    if sampled_before:
        rows.add(
            f"to sample problems before stage {sampled_before}", lambda each: f"{each.filter_hours:,.1f}"
        )
    rows.add("the stage's steps", lambda each: f"{each.hours:,.1f}")
    assumed = estimate.assumptions
    problems = f"{assumed.problems:,} problems before stage {sampled_before}, " if sampled_before else ""
    table.caption = (
        "The update has two phases: the log-probabilities are computed first, and then the weights are updated. The "
        "peak is the memory of the phase that needs more memory. The row of activations shows the larger value of "
        "the two phases. The rows above the peak therefore do not add up to it.\n"
        f"{_GATHERED} engine workspace: the engine's activations and logits. trainer, not offloaded: the trainer's "
        "weights and optimizer that stay in this memory while the engine generates.\n"
        f"Assumed: {_lengths(assumed)}, {assumed.calls_per_rollout:.3g} tool calls per rollout, "
        f"{assumed.program_s:g} core seconds per call, {problems}a disk of {assumed.disk_bytes_per_s / 1e9:g} GB/s."
    )
    out.print(table)
    out.print(f"Hours in total: {estimate.hours['total']:,.1f}.", soft_wrap=True)


def _add_memory(rows: _Rows, hardware: Hardware, capacity: int | None) -> None:
    """Add the blocks of memory during the update and during the rollouts. `capacity` is a GPU's memory in bytes."""
    device, of_capacity = _device(hardware), _of_capacity(capacity)
    rows.block(f"update: GiB of {device}")
    rows.gib("weights", lambda each: each.memory_per_gpu.weights)
    rows.gib("gradients", lambda each: each.memory_per_gpu.gradients)
    rows.gib("optimizer", lambda each: each.memory_per_gpu.optimizer)
    rows.gib("activations", lambda each: each.memory_per_gpu.activations)
    rows.gib("gathered layers", lambda each: each.memory_per_gpu.gathered)
    if hardware.device == "cpu":
        rows.gib("the process itself", lambda each: each.memory_per_gpu.process)
    else:
        rows.gib("CUDA and NCCL", lambda each: _cuda_bytes())
    rows.gib(f"peak, at most{of_capacity}", lambda each: each.memory_per_gpu.update_total)
    rows.gib("peak at expected lengths", lambda each: each.memory_per_gpu.expected_update_total)
    rows.block(f"rollouts: GiB of {device}")
    rows.gib("engine weights", lambda each: each.memory_per_gpu.engine_weights)
    rows.gib("engine workspace", lambda each: each.memory_per_gpu.engine_workspace)
    rows.gib("KV cache", lambda each: each.memory_per_gpu.kv_cache)
    rows.gib("trainer, not offloaded", lambda each: each.memory_per_gpu.kept_by_trainer)
    rows.gib(f"total{of_capacity}", lambda each: each.memory_per_gpu.rollout_total)
    rows.block("rollouts of one engine")
    rows.add("fit at full length", lambda each: f"{each.memory_per_gpu.full_length_rollouts}")
    rows.add("are sent at once", lambda each: f"{each.memory_per_gpu.sequences_in_flight}")


def _add_step(rows: _Rows, recipes: list[StageRecipe]) -> None:
    per = "per GPU" if recipes[0].hardware.device == "cuda" else "per CPU rank"
    rows.block(f"one step, in mode {', '.join(dict.fromkeys(recipe.mode for recipe in recipes))}")
    rows.add("rollouts", lambda each: f"{each.step.rollouts:,}")
    if any(recipe.recover.failures for recipe in recipes):
        rows.add("more after failed calls", lambda each: f"{each.step.recoveries:,}")
    rows.add("tokens, millions", lambda each: f"{each.step.tokens / 1e6:,.1f}")
    rows.add("tool calls", lambda each: f"{each.step.tool_calls:,}")
    rows.add(f"tokens generated/s, {per}", lambda each: f"{each.step.generate_tokens_per_s:,.0f}")
    rows.add(f"tokens trained/s, {per}", lambda each: f"{each.step.update_tokens_per_s:,.0f}")
    rows.add("seconds", lambda each: f"{each.step.seconds:,.0f}")
    rows.add("seconds of its rollouts", lambda each: f"{each.step.generate_s:,.0f}")


def _device(hardware: Hardware) -> str:
    return "one GPU" if hardware.device == "cuda" else "one CPU rank"


def _of_capacity(capacity: int | None) -> str:
    return "" if capacity is None else f" (of {_gib(capacity)})"


def _cuda_bytes() -> int:
    from rstar2.train.estimate.memory import ASLEEP

    return ASLEEP


def _lengths(assumed: Assumptions) -> str:
    """Returns the assumptions about the lengths of prompts and rollouts, in words."""
    if assumed.mean_tokens is None:
        mean = f"{percent(assumed.mean_token_share, 0)} of their budget"
    else:
        mean = f"{assumed.mean_tokens:,.0f} tokens"
    groups = (
        ""
        if assumed.trained_groups == 1
        else f", training on {percent(assumed.trained_groups, 0)} of the largest step's groups"
    )
    prompts = f"prompts of {assumed.mean_prompt_tokens:,.0f} tokens (or their budget, if it is smaller)"
    return f"{prompts}, rollouts of {mean}{groups}"


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print_notice(out, f"! {warning}", "yellow")


def _gib(size: int) -> str:
    return f"{size / (1 << 30):,.1f}"
