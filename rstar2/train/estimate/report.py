"""The whole estimate of a run: an estimate for each stage, and the sums and warnings of the run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rstar2.model_shape import ModelShape
from rstar2.train.command import SFT_KEEP
from rstar2.train.estimate.fit import division_warnings, memory_warnings, stage_warnings
from rstar2.train.estimate.limits import (
    SilentParts,
    limit_warnings,
    queue_warnings,
    silent_parts,
    time_limit_warnings,
)
from rstar2.train.estimate.memory import Memory, stage_memory
from rstar2.train.estimate.work import (
    Assumptions,
    Disk,
    Judge,
    Rates,
    Saving,
    Step,
    filter_disk,
    filter_hours,
    queue_disk,
    saving,
    sft_step_s,
    stage_disk,
    stage_judge,
    stage_step,
)
from rstar2.train.recipe import SftRecipe, StageRecipe

LONG_FILTER_HOURS = 6.0
LONG_RUN_HOURS = 14 * 24.0
"""The user is warned about a run that takes more hours than this. The limit is twice the time of the paper's run."""
FEWEST_PROMPTS = 16
"""The lowest number of problems per step that a warning suggests."""
MOST_NODES = 64
"""The largest number of machines that a warning suggests."""


@dataclass(frozen=True)
class StageEstimate:
    """The estimate of one RL stage."""

    memory_per_gpu: Memory
    step: Step
    judge: Judge
    disk: Disk
    checkpoint: Saving
    longest_silence: SilentParts
    """The longest periods, in seconds, in which the stage gives no sign of life. `hardware.hung_after_s` should be
    longer than each period."""
    hours: float
    filter_hours: float
    """Number of hours for sampling the training problems before the stage; 0 if the stage uses all problems."""
    agent_loop_processes: int
    warnings: list[str]


@dataclass(frozen=True)
class RunEstimate:
    """The estimate of a run, from the model's shape and the stages' recipes."""

    shape: ModelShape
    gpus: int
    assumptions: Assumptions
    stages: dict[int, StageEstimate]
    """The estimate of each stage, by the stage's number."""
    run_warnings: list[str]
    """Warnings about the run as a whole."""

    @property
    def largest(self) -> int:
        """The number of the stage with the most tokens per step. If several stages have equally many tokens, the number
        of the last of these stages."""
        return max(self.stages, key=lambda number: (self.stages[number].step.most_tokens, number))

    @property
    def hours(self) -> dict[str, float]:
        """Number of hours of each filter and stage, keyed by name, and the sum of all hours under `total`."""
        hours = {}
        for number, stage in self.stages.items():
            if stage.filter_hours:
                hours[f"stage{number}_filter"] = stage.filter_hours
            hours[f"stage{number}"] = stage.hours
        return {**hours, "total": sum(hours.values())}

    @property
    def disk(self) -> int:
        """Number of bytes that all stages need in the run's folder."""
        return sum(stage.disk.total for stage in self.stages.values())

    @property
    def warnings(self) -> list[str]:
        """Warnings of the run and its stages, without duplicates.

        A warning that is not about all stages begins with the numbers of its stages.
        """
        stages_of: dict[str, list[int]] = {}
        for number, stage in self.stages.items():
            for warning in stage.warnings:
                stages_of.setdefault(warning, []).append(number)
        return self.run_warnings + [
            warning
            if len(numbers) == len(self.stages)
            else f"stage{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}: {warning}"
            for warning, numbers in stages_of.items()
        ]

    def record(self) -> dict[str, Any]:
        """Returns the estimate for JSON, in bytes and seconds.

        The record's keys `memory_per_gpu`, `step` and `judge` describe the largest stage. The key `stages` describes
        every stage.
        """
        largest = self.stages[self.largest]
        stages = {f"stage{number}": asdict(stage) for number, stage in self.stages.items()}
        return {
            "model": model_record(self.shape),
            "gpus": self.gpus,
            "stage": self.largest,
            "memory_per_gpu": asdict(largest.memory_per_gpu),
            "step": asdict(largest.step),
            "judge": asdict(largest.judge),
            "disk": {
                **asdict(largest.disk),
                "all_stages": self.disk,
            },
            "hours": self.hours,
            "warnings": self.warnings,
            "assumptions": asdict(self.assumptions),
            "stages": stages,
        }


def model_record(shape: ModelShape) -> dict[str, Any]:
    """Returns a model's size for JSON."""
    return {"parameters": shape.parameters, "kv_bytes_per_token": shape.kv_bytes(2), **asdict(shape)}


def estimate_run(
    shape: ModelShape,
    recipes: dict[int, StageRecipe],
    judge_workers: int | None = None,
    machine_memory: int | None = None,
    rates: Rates | None = None,
    assumptions: Assumptions | None = None,
) -> RunEstimate:
    """Estimates the stages of a run.

    Args:
        shape: the model's shape.
        recipes: the stages' recipes, keyed by stage number.
        judge_workers: number of the judge's workers, or None if the number is unknown.
        machine_memory: bytes of memory that all ranks on a CPU share, or None if this memory is unknown.
        rates: tokens per second that the user specified, or None if the rates are to be calculated.
        assumptions: assumptions about rollouts, or None for the assumptions from the paper.
    """
    assumptions, rates = assumptions or Assumptions(), rates or Rates()
    stages = {}
    for number, recipe in recipes.items():
        memory = stage_memory(shape, recipe, assumptions.update(recipe))
        step = stage_step(shape, recipe, memory, rates, assumptions)
        judge = stage_judge(recipe, step, assumptions, judge_workers)
        before = filter_hours(recipe, step, assumptions)
        disk = stage_disk(
            shape,
            recipe.checkpoint.keep + recipe.rules.may_go_back,
            1 + recipe.exported_models,
            filter_disk(recipe, assumptions),
            queue_disk(recipe, step, assumptions),
        )
        every = recipe.checkpoint
        checkpoint = saving(
            every.every, every.every_minutes, step.seconds, disk.checkpoint + disk.queue, assumptions
        )
        parts = silent_parts(shape, recipe, step, disk, assumptions)
        stages[number] = StageEstimate(
            memory_per_gpu=memory,
            step=step,
            judge=judge,
            disk=disk,
            checkpoint=checkpoint,
            longest_silence=parts,
            hours=recipe.steps * step.seconds / 3600,
            filter_hours=before,
            agent_loop_processes=recipe.agent_loop_processes,
            warnings=[
                *stage_warnings(shape, recipe, memory, judge, machine_memory),
                *filter_warnings(number, recipe, before),
                *limit_warnings(shape, recipe, parts, checkpoint, assumptions),
                *queue_warnings(recipe, judge),
            ],
        )
    hardware = next(iter(recipes.values())).hardware
    run_warnings = list(duration_warnings(shape, list(recipes.values()), rates, assumptions))
    return RunEstimate(shape, hardware.nodes * hardware.gpus_per_node, assumptions, stages, run_warnings)


def disk_with_one_checkpoint(estimate: RunEstimate, recipes: Mapping[int, StageRecipe]) -> int:
    """Returns the number of bytes that all stages would need in the run's folder with checkpoint.keep=1."""
    stages = ((stage.disk, recipes[number].checkpoint.keep) for number, stage in estimate.stages.items())
    return estimate.disk - sum((keep - 1) * (disk.checkpoint + disk.queue) for disk, keep in stages)


def duration_warnings(
    shape: ModelShape, recipes: list[StageRecipe], rates: Rates, assumptions: Assumptions
) -> Iterator[str]:
    """Yields a warning if a run takes longer than `LONG_RUN_HOURS`, with changes that make the run shorter."""

    def hours(recipes: list[StageRecipe]) -> float:
        total = 0.0
        for recipe in recipes:
            step = stage_step(
                shape, recipe, stage_memory(shape, recipe, assumptions.update(recipe)), rates, assumptions
            )
            total += recipe.steps * step.seconds / 3600 + filter_hours(recipe, step, assumptions)
        return total

    def first(key: str, changed: Iterable[tuple[int, list[StageRecipe]]]) -> str:
        """Returns the option --set with the first value of a recipe key that makes the run short enough. If no value
        makes the run short enough, returns only the key."""
        enough = (value for value, recipes in changed if hours(recipes) <= LONG_RUN_HOURS)
        value = next(enough, None)
        return key if value is None else f"`--set {key}={value}`"

    total = hours(recipes)
    if total <= LONG_RUN_HOURS:
        return
    hardware, prompts = recipes[0].hardware, recipes[0].rollout.prompts
    fewer = first("rollout.prompts", ((count, _with_prompts(recipes, count)) for count in _halves(prompts)))
    less = f"train on less: fewer problems per step ({fewer}), fewer rollout.rollouts or fewer steps"
    if hardware.device == "cpu":
        help_ = f"train on GPUs (--profile 8xh100), take a smaller model, or {less}"
    else:
        more = first(
            "hardware.nodes", ((count, _with_nodes(recipes, count)) for count in _doubles(hardware.nodes))
        )
        help_ = f"use more machines ({more}), or {less}"
        if 1 < hardware.ranks <= 8:
            help_ += ". The recipe 7b-8xh100 (--recipe) is meant for eight GPUs"
    yield f"the run takes about {total:,.0f} hours, {total / 168:,.0f} weeks: {help_}"


def _halves(prompts: int) -> Iterator[int]:
    while prompts >= 2 * FEWEST_PROMPTS:
        prompts //= 2
        yield prompts


def _doubles(nodes: int) -> Iterator[int]:
    while nodes <= MOST_NODES // 2:
        nodes *= 2
        yield nodes


def _with_prompts(recipes: list[StageRecipe], prompts: int) -> list[StageRecipe]:
    return [
        recipe.model_copy(update={"rollout": recipe.rollout.model_copy(update={"prompts": prompts})})
        for recipe in recipes
    ]


def _with_nodes(recipes: list[StageRecipe], nodes: int) -> list[StageRecipe]:
    return [
        recipe.model_copy(update={"hardware": recipe.hardware.model_copy(update={"nodes": nodes})})
        for recipe in recipes
    ]


def filter_warnings(number: int, recipe: StageRecipe, hours: float) -> Iterator[str]:
    """Yields a warning if the filter before a stage takes longer than `LONG_FILTER_HOURS`."""
    if hours > LONG_FILTER_HOURS:
        yield (
            f"the training problems are sampled {recipe.drop_solved} times each before stage {number}, which takes "
            f"about {hours:.0f} hours on all engines: name a run that has already sampled these problems (--solved), "
            'or set solved_by="outcomes" or drop_solved=0'
        )


def start_warnings(model: Path, first: int) -> Iterator[str]:
    """Yields a warning if training begins with a later stage, but the model does not come from an earlier stage.

    Args:
        model: the folder of the model that training starts from.
        first: the number of the first stage.
    """
    made_by = {
        folder.parent.parent.name if folder.parent.name == "models" else folder.parent.name
        for folder in (model.absolute(), model.resolve())
    }
    if made_by.isdisjoint(f"stage{number}" for number in range(1, first)) and first > 1:
        yield (
            f"stage {first} would start from {model}, which is not the model of an earlier stage: begin with --stage "
            f"1, or name the folder of stage {first - 1} or of its run (--model)"
        )


def sft_saving(shape: ModelShape, recipe: SftRecipe, sample: Sequence[int]) -> Saving:
    """Estimates how often SFT saves checkpoints, and how long saving takes.

    Args:
        shape: the model's shape.
        recipe: SFT's recipe.
        sample: the number of tokens of each conversation in a sample; empty if the numbers are unknown.
    """
    assumptions = Assumptions()
    mean = sum(sample) / len(sample) if sample else recipe.max_tokens
    step_s = sft_step_s(shape, recipe, mean, assumptions)
    checkpoint = sft_disk(shape, recipe).checkpoint
    return saving(recipe.checkpoint_every, recipe.checkpoint_every_minutes, step_s, checkpoint, assumptions)


def sft_disk(shape: ModelShape, recipe: SftRecipe) -> Disk:
    """Estimates the disk space of SFT's checkpoints and models. The files of the best step stay on the disk in addition
    to the files of the last steps."""
    by = recipe.chosen_by
    return stage_disk(shape, SFT_KEEP + (by == "validation"), models=1 + bool(recipe.held_out.data))


def sft_warnings(recipe: SftRecipe, shape: ModelShape, memory: Memory, checkpoint: Saving) -> Iterator[str]:
    """Yields the warnings about SFT."""
    yield from division_warnings(shape, recipe.hardware)
    yield from memory_warnings(recipe.hardware, memory)
    yield from time_limit_warnings(shape, recipe.hardware, checkpoint, 0.0, Assumptions())
