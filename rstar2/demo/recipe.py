"""What the demo's recipe says, and the recipes of its stages that follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pydantic import Field

from rstar2.config import Strict, merged, resolve
from rstar2.eval.settings import EvalSettings
from rstar2.train.recipe import SftRecipe, StageRecipe, find, read_toml, sft_recipe, stage_recipe
from rstar2.train.tiny import TinyModel

PROFILE = "laptop"
STAGES = (1, 2, 3)


class DemoProblems(Strict):
    """How many built-in problems are used."""

    train: int = Field(ge=1)
    held_out: int = Field(ge=1)


class DemoTraces(Strict):
    """The synthetic conversations of SFT."""

    count: int = Field(ge=1)
    flaws: dict[str, float]
    """Shares, see `rstar2.data.builtin.traces`."""


class DemoRecipe(Strict):
    """The demo, whole. `sft`, `rl` and `stage1` to `stage3` hold keys of the recipes they change."""

    seed: int = 1
    model: TinyModel
    problems: DemoProblems
    traces: DemoTraces
    eval: EvalSettings
    sft: dict[str, Any]
    rl: dict[str, Any]
    """For all three stages."""
    stage1: dict[str, Any] = Field(default_factory=dict)
    stage2: dict[str, Any] = Field(default_factory=dict)
    stage3: dict[str, Any] = Field(default_factory=dict)


@dataclass(frozen=True)
class DemoPlan:
    """Everything resolved."""

    demo: DemoRecipe
    sft: SftRecipe
    stages: dict[int, StageRecipe]
    plain: dict[int, StageRecipe]
    """The same stages under plain GRPO, for the comparison."""

    def config(self) -> dict[str, Any]:
        """What a run folder remembers, so that no other recipe goes on in it."""
        stages = {f"stage{number}": recipe.model_dump(mode="json") for number, recipe in self.stages.items()}
        return {
            "demo": self.demo.model_dump(mode="json"),
            "sft": self.sft.model_dump(mode="json"),
            **stages,
        }


def demo_plan(recipe: str, seed: int | None, overrides: list[str]) -> DemoPlan:
    """Read the demo's recipe and resolve its stages.

    Raises:
        UserError: a file, key or value is wrong.
    """
    path = find(recipe)
    values = read_toml(path) | ({} if seed is None else {"seed": seed})
    demo = resolve(DemoRecipe, values, overrides, str(path))
    over = {number: merged(demo.rl, getattr(demo, f"stage{number}")) for number in STAGES}
    plain = {"roc": {"variant": "off"}}
    return DemoPlan(
        demo=demo,
        sft=sft_recipe(PROFILE, [], over={"seed": demo.seed, **demo.sft}),
        stages={n: stage_recipe(n, PROFILE, [], over={"seed": demo.seed, **over[n]}) for n in STAGES},
        plain={
            n: stage_recipe(n, PROFILE, [], over=merged({"seed": demo.seed, **over[n]}, plain))
            for n in STAGES
        },
    )
