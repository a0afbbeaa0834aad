"""The whole estimate of a run: each stage's, and of all what a person looks at first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rstar2.model_shape import ModelShape
from rstar2.train.command import SFT_KEEP
from rstar2.train.estimate.fit import division_warnings, memory_warnings, stage_warnings
from rstar2.train.estimate.limits import (
    Pieces,
    limit_warnings,
    queue_warnings,
    stage_pieces,
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
"""The paper's run took half of it."""
FEWEST_PROMPTS = 16
"""A step of fewer problems is not suggested."""
MOST_NODES = 64
"""More machines are not suggested."""


@dataclass(frozen=True)
class StageEstimate:
    """One RL stage."""

    memory_per_gpu: Memory
    step: Step
    judge: Judge
    disk: Disk
    checkpoint: Saving
    longest_silence: Pieces
    """To compare with `hardware.hung_after_s`."""
    hours: float
    filter_hours: float
    """To sample the training problems before it; 0 where the stage takes all."""
    agent_loop_processes: int
    warnings: list[str]


@dataclass(frozen=True)
class RunEstimate:
    """The stages of a run, by number, from a model's shape and their recipes alone."""

    shape: ModelShape
    gpus: int
    assumptions: Assumptions
    stages: dict[int, StageEstimate]
    run_warnings: list[str]
    """About the run as a whole."""

    @property
    def largest(self) -> int:
        """The stage of most tokens a step; of equal ones the last."""
        return max(self.stages, key=lambda number: (self.stages[number].step.most_tokens, number))

    @property
    def hours(self) -> dict[str, float]:
        """By stage, and in all."""
        hours = {}
        for number, stage in self.stages.items():
            if stage.filter_hours:
                hours[f"stage{number}_filter"] = stage.filter_hours
            hours[f"stage{number}"] = stage.hours
        return {**hours, "total": sum(hours.values())}

    @property
    def disk(self) -> int:
        """Bytes of all stages, one after another in the run's folder."""
        return sum(stage.disk.total for stage in self.stages.values())

    @property
    def warnings(self) -> list[str]:
        """Warnings of the run and its stages, without duplicates. One that is not about all stages names its stages."""
        said: dict[str, list[int]] = {}
        for number, stage in self.stages.items():
            for warning in stage.warnings:
                said.setdefault(warning, []).append(number)
        return self.run_warnings + [
            warning
            if len(numbers) == len(self.stages)
            else f"stage {', '.join(map(str, numbers))}: {warning}"
            for warning, numbers in said.items()
        ]

    def record(self) -> dict[str, Any]:
        """For JSON: memory, step and judge are those of the largest stage; `stages` has each. Bytes and seconds."""
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
    """A model's size, for JSON."""
    return {"parameters": shape.parameters, "kv_bytes_per_token": shape.kv_bytes(2), **asdict(shape)}


def estimate_run(
    shape: ModelShape,
    recipes: dict[int, StageRecipe],
    judge_workers: int | None = None,
    machine_memory: int | None = None,
    rates: Rates | None = None,
    assumptions: Assumptions | None = None,
) -> RunEstimate:
    """Calculate what stages cost.

    Args:
        judge_workers: those of the judge that will be used, where it is known.
        machine_memory: bytes that the ranks of a CPU share, where they are known.
        rates: tokens per second that the user states.
        assumptions: what is expected of rollouts; by default what is known of the paper's.
    """
    given, rates = assumptions or Assumptions(), rates or Rates()
    stages = {}
    for number, recipe in recipes.items():
        memory = stage_memory(shape, recipe, given.update(recipe))
        step = stage_step(shape, recipe, memory, rates, given)
        judge = stage_judge(recipe, step, given, judge_workers)
        before = filter_hours(recipe, step, given)
        disk = stage_disk(
            shape,
            recipe.checkpoint.keep + recipe.rules.may_go_back,
            1 + recipe.exported_models,
            filter_disk(recipe, given),
            queue_disk(recipe, step, given),
        )
        every = recipe.checkpoint
        checkpoint = saving(
            every.every, every.every_minutes, step.seconds, disk.checkpoint + disk.queue, given
        )
        pieces = stage_pieces(shape, recipe, step, disk, given)
        stages[number] = StageEstimate(
            memory_per_gpu=memory,
            step=step,
            judge=judge,
            disk=disk,
            checkpoint=checkpoint,
            longest_silence=pieces,
            hours=recipe.steps * step.seconds / 3600,
            filter_hours=before,
            agent_loop_processes=recipe.agent_loop_processes,
            warnings=[
                *stage_warnings(shape, recipe, memory, judge, machine_memory),
                *filter_warnings(number, recipe, before),
                *limit_warnings(shape, recipe, pieces, checkpoint, given),
                *queue_warnings(recipe, judge),
            ],
        )
    hardware = next(iter(recipes.values())).hardware
    run_warnings = list(duration_warnings(shape, list(recipes.values()), rates, given))
    return RunEstimate(shape, hardware.nodes * hardware.gpus_per_node, given, stages, run_warnings)


def duration_warnings(
    shape: ModelShape, recipes: list[StageRecipe], rates: Rates, given: Assumptions
) -> Iterator[str]:
    """Whether a run takes weeks, with changes after which it does not."""

    def hours(recipes: list[StageRecipe]) -> float:
        total = 0.0
        for recipe in recipes:
            step = stage_step(shape, recipe, stage_memory(shape, recipe, given.update(recipe)), rates, given)
            total += recipe.steps * step.seconds / 3600 + filter_hours(recipe, step, given)
        return total

    def first(key: str, changed: Iterable[tuple[int, list[StageRecipe]]]) -> str:
        """The first change that is enough, as a key and its value; only the key if none is."""
        enough = (value for value, recipes in changed if hours(recipes) <= LONG_RUN_HOURS)
        value = next(enough, None)
        return key if value is None else f"{key}={value}"

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
    """Whether the filter before a stage takes long enough that a user wants to know."""
    if hours > LONG_FILTER_HOURS:
        yield (
            f"the training problems are sampled {recipe.drop_solved} times each before stage {number}, about "
            f"{hours:.0f} hours on all engines: give a run that has sampled them already (--solved), or set "
            'solved_by="outcomes" or drop_solved=0'
        )


def start_warnings(model: Path, first: int) -> Iterator[str]:
    """Whether training begins with a later stage, from a model that no stage before it made."""
    made_by = {
        folder.parent.parent.name if folder.parent.name == "models" else folder.parent.name
        for folder in (model.absolute(), model.resolve())
    }
    if made_by.isdisjoint(f"stage{number}" for number in range(1, first)) and first > 1:
        yield (
            f"stage {first} is to start from {model}, which is not the model of an earlier stage: begin with --stage "
            f"1, or give the folder of stage {first - 1} or of its run (--model)"
        )


def sft_saving(shape: ModelShape, recipe: SftRecipe, sample: Sequence[int]) -> Saving:
    """The checkpoints of SFT; `sample` has the tokens of some of the conversations, as for `sft_memory`."""
    given = Assumptions()
    mean = sum(sample) / len(sample) if sample else recipe.max_tokens
    step_s = sft_step_s(shape, recipe, mean, given)
    checkpoint = sft_disk(shape, recipe).checkpoint
    return saving(recipe.checkpoint_every, recipe.checkpoint_every_minutes, step_s, checkpoint, given)


def sft_disk(shape: ModelShape, recipe: SftRecipe) -> Disk:
    """The disk of SFT's checkpoints and model: the best step's checkpoint or model stays beside the last ones."""
    by = recipe.chosen_by
    return stage_disk(shape, SFT_KEEP + (by == "validation"), models=1 + bool(recipe.held_out.data))


def sft_warnings(recipe: SftRecipe, shape: ModelShape, memory: Memory, checkpoint: Saving) -> Iterator[str]:
    """One sentence for each thing of SFT that does not fit."""
    yield from division_warnings(shape, recipe.hardware)
    yield from memory_warnings(recipe.hardware, memory)
    yield from time_limit_warnings(shape, recipe.hardware, checkpoint, 0.0, Assumptions())
