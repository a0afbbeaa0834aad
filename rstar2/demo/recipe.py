"""The demo's recipe file, and the recipes of SFT and of the stages, which are computed from this file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, model_validator

from rstar2.config import KeysOf, Strict, resolve
from rstar2.demo.tiny import TinyModel
from rstar2.errors import UserError
from rstar2.eval.settings import HOW_IT_RUNS, EvalSettings
from rstar2.train.changeable import compared, without
from rstar2.train.command import Command, sft_command, stage_commands
from rstar2.train.hardware import LAPTOP
from rstar2.train.recipe import STAGES, SftRecipe, StageRecipe
from rstar2.train.recipe_files import on_top, read_recipe, sft_recipe, stage_recipe
from rstar2.train.trainer.tracking import check_trackers

StageKeys = Annotated[dict[str, Any], KeysOf(StageRecipe)]


class DemoProblems(Strict):
    """The number of built-in problems for training, and the number of held-out built-in problems."""

    train: int = Field(ge=1)
    held_out: int = Field(ge=1)


class Flaws(Strict):
    """The share of traces with each kind of flaw (see `rstar2.data.builtin.traces`).

    Traces outside these shares have no flaw.
    """

    repaired: float = Field(0.0, ge=0, le=1)
    guessed: float = Field(0.0, ge=0, le=1)
    wrong: float = Field(0.0, ge=0, le=1)
    missing: float = Field(0.0, ge=0, le=1)
    repeated: float = Field(0.0, ge=0, le=1)

    @model_validator(mode="after")
    def _at_most_all(self) -> Flaws:
        total = sum(self.model_dump().values())
        if total > 1:
            raise ValueError(f"the shares add up to {total:g}, more than 1")
        return self


class DemoTraces(Strict):
    """The synthetic conversations of SFT."""

    count: int = Field(ge=1)
    flaws: Flaws


class DemoRecipe(Strict):
    """The recipe of the demo. `sft`, `rl` and `stage1` to `stage3` replace keys of the recipes of SFT and RL."""

    seed: int = Field(1, ge=0)
    model: TinyModel
    problems: DemoProblems
    traces: DemoTraces
    eval: EvalSettings
    sft: Annotated[dict[str, Any], KeysOf(SftRecipe)]
    rl: StageKeys
    """Keys for all three stages."""
    stage1: StageKeys = Field(default_factory=dict)
    stage2: StageKeys = Field(default_factory=dict)
    stage3: StageKeys = Field(default_factory=dict)


@dataclass(frozen=True)
class DemoPlan:
    """The demo's recipe, and the resolved recipes of SFT and the stages."""

    demo: DemoRecipe
    sft: SftRecipe
    stages: dict[int, StageRecipe]
    plain: dict[int, StageRecipe]
    """The resolved recipes of the same stages with plain GRPO, for the comparison."""

    @property
    def folder(self) -> Path:
        """The default folder of the run."""
        return Path("runs") / ("demo" if self.demo.seed == 1 else f"demo-seed{self.demo.seed}")

    def config(self) -> dict[str, Any]:
        """The content of the run's config.json. A run is resumed only with the same recipe (see `compared`)."""
        stages = {f"stage{number}": recipe.model_dump(mode="json") for number, recipe in self.stages.items()}
        return {"demo": self.demo.model_dump(mode="json"), "sft": self.sft.model_dump(mode="json"), **stages}

    @staticmethod
    def compared(config: dict[str, Any]) -> dict[str, Any]:
        """The part of a run's config that must be the same when the run is resumed (see `rstar2.train.changeable`)."""
        stages = {
            name: compared(recipe, SftRecipe if name == "sft" else StageRecipe)
            for name, recipe in config.items()
            if name != "demo"
        }
        demo = config["demo"]
        changes = {name: compared(demo[name]) for name in ("sft", "rl", "stage1", "stage2", "stage3")}
        return {"demo": {**demo, "eval": without(demo["eval"], HOW_IT_RUNS), **changes}, **stages}


def demo_plan(recipe: str, seed: int | None, overrides: list[str]) -> DemoPlan:
    """Read the demo's recipe and resolve its stages. Raises UserError for a wrong file, key or value."""
    path, values = read_recipe(recipe, "demo")
    values |= {} if seed is None else {"seed": seed}
    demo = resolve(DemoRecipe, values, overrides, str(path))
    demo = demo.model_copy(update={"eval": demo.eval.model_copy(update={"seed": demo.seed})})
    over = {"seed": demo.seed, **demo.sft}
    sft = sft_recipe(LAPTOP, overrides, over=over, where=f"{path}, [sft]", within=("sft",))
    stages, plain = {}, {}
    for number in STAGES:
        over = {"seed": demo.seed, **on_top(demo.rl, getattr(demo, f"stage{number}"))}
        named: Any = {"where": f"{path}, [rl] and [stage{number}]", "within": ("rl", f"stage{number}")}
        stages[number] = stage_recipe(number, LAPTOP, overrides, over=over, **named)
        over = on_top(over, {"select": "random"})
        plain[number] = stage_recipe(number, LAPTOP, overrides, over=over, **named)
    _check(demo, sft, stages)
    return DemoPlan(demo=demo, sft=sft, stages=stages, plain=plain)


def commands(plan: DemoPlan, run: Path) -> list[tuple[str, Command]]:
    """The commands that start the trainer, one for each phase of the demo. `run` is the run's folder."""
    sft = sft_command(plan.sft, run / "sft", run / "base", run / "sft")
    stages = stage_commands(plan.stages, run / "sft" / "model", run)
    return [("SFT", sft), *((f"stage {number}", command) for number, _, command in stages)]


def _check(demo: DemoRecipe, sft: SftRecipe, stages: dict[int, StageRecipe]) -> None:
    """Raises UserError if a batch is larger than the data, or if a tracker cannot be used."""
    check_trackers(sft.trackers, sft=True)
    for stage in stages.values():
        check_trackers(stage.trackers, stage.trace_trackers)
    if demo.traces.count < sft.batch:
        raise UserError(
            f"traces.count = {demo.traces.count} is less than sft.batch = {sft.batch}",
            "Raise traces.count, or lower sft.batch.",
        )
    most = max(recipe.rollout.prompts for recipe in stages.values())
    if demo.problems.train < most:
        raise UserError(
            f"problems.train = {demo.problems.train} is less than rl.rollout.prompts = {most}",
            "Raise problems.train, or lower rl.rollout.prompts.",
        )
