"""Recipes: the settings of SFT and of an RL stage, read from TOML files."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from rstar2.config import Strict, merged, read_toml, recipes_folder, resolve
from rstar2.errors import UserError
from rstar2.eval.grader.reading_rules import ReadingRule
from rstar2.train.roc import RocSettings

STAGES = (1, 2, 3)
_STAGE = re.compile(r"\s*stage(\d+)\.")


class Hardware(Strict):
    """What the training runs on."""

    device: Literal["cuda", "cpu"] = "cuda"
    nodes: int = Field(1, ge=1)
    gpus_per_node: int = Field(8, ge=1)
    """On a CPU: ranks."""
    tensor_parallel: int = Field(1, ge=1)
    """GPUs a rollout engine spans."""


class RolloutSettings(Strict):
    """How a group is rolled out."""

    prompts: int = Field(512, ge=1)
    """Problems per step."""
    rollouts: int = Field(32, ge=1)
    """2G: rollouts per problem."""
    tokens: int = Field(8192, ge=1)
    """Tokens after the prompt, tool output included."""
    prompt_tokens: int = Field(2048, ge=1)
    """Longer prompts are left out."""
    max_turns: int = Field(10, ge=1)
    temperature: float = Field(1.0, gt=0)
    tool_timeout_s: float = Field(10.0, gt=0)
    """Wall-clock seconds a program may take."""
    traceback_lines: int = Field(20, ge=1)
    """Last lines of a traceback that the model sees."""
    reply_characters: int = Field(4000, ge=2)
    """How much of a call's output the model sees; the middle of a longer one is left out."""


class OptimSettings(Strict):
    """AdamW and the clipped objective."""

    lr: float = Field(1e-6, gt=0)
    warmup_steps: int = Field(20, ge=0)
    """The first step has 1 / warmup_steps of `lr`."""
    state: Literal["fresh", "continued"] = "fresh"
    """continued: AdamW's moments and the warm-up go on from where the stage left them that made the model."""
    weight_decay: float = Field(0.01, ge=0)
    clip_low: float = Field(0.2, gt=0)
    clip_high: float = Field(0.28, gt=0)


class CheckpointSettings(Strict):
    """When training is saved."""

    every: int = Field(10, ge=1)
    """Steps between checkpoints; the last step is always saved."""
    keep: int = Field(2, ge=1)


class JudgeSettings(Strict):
    """What training does while the judge is away or loses programs."""

    wait_s: float = Field(600.0, gt=0)
    """Seconds that a tool call waits for its result beyond the program's own limit; then it is lost."""
    max_lost_share: float = Field(0.05, ge=0, lt=1)
    """A step of which more rollouts than this share lost a call is not trained on: training waits for the judge and
    rolls the step out again with the next problems. Below, such rollouts are left out before RoC selects."""
    stop_after_s: float = Field(1800.0, gt=0)
    """Seconds of such waiting after which the training ends. Its last checkpoint is kept."""


class StageRecipe(Strict):
    """One RL stage (arXiv 2508.20722, table of stages)."""

    steps: int = Field(ge=1)
    rollout: RolloutSettings = RolloutSettings()
    roc: RocSettings = RocSettings()
    optim: OptimSettings = OptimSettings()
    judge: JudgeSettings = JudgeSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    hardware: Hardware = Hardware()
    reward: ReadingRule | Literal["constant"] = "paper"
    """The rule by which the answer is read, see `rstar2.eval.grader.reading_rules`; 1 where it is correct, else 0.
    constant: every trace gets 1, a control that cannot learn."""
    drop_solved: int = Field(0, ge=0)
    """Leave out problems that the starting policy solves this many times of as many; 0 keeps all."""
    traces_per_step: int = Field(64, ge=-1)
    """Rollouts of each step that are kept as traces in the stage's folder, drawn at random; 0 none, -1 all.
    Unless 0, every failed rollout is kept too: one that the engine could not finish, or that lost a tool call to
    a fault of the judge. A rollout that is merely wrong is not a failed one."""
    seed: int = 1
    wandb: bool = False
    """Log to Weights & Biases too."""
    verl: dict[str, Any] = Field(default_factory=dict)
    """VERL's own keys, dotted, for what has no name here."""

    @property
    def trace_share(self) -> float:
        """The share of rollouts that carry their trace to the sampler, which keeps `traces_per_step` of them.

        More than twice what is needed, since every rollout decides for itself.
        """
        if self.traces_per_step <= 0:
            return float(self.traces_per_step < 0)
        return min(1.0, (2 * self.traces_per_step + 8) / (self.rollout.prompts * self.rollout.rollouts))

    @model_validator(mode="after")
    def _group_fits(self) -> StageRecipe:
        if self.roc.down_sample_to_n > self.rollout.rollouts:
            raise ValueError(
                f"roc.down_sample_to_n = {self.roc.down_sample_to_n} is more than "
                f"rollout.rollouts = {self.rollout.rollouts}"
            )
        return self


class SftRecipe(Strict):
    """Stage 0: supervised fine-tuning on tool-use conversations."""

    epochs: int = Field(3, ge=1)
    batch: int = Field(128, ge=1)
    lr: float = Field(5e-6, gt=0)
    warmup_ratio: float = Field(0.04, ge=0, le=1)
    weight_decay: float = Field(0.01, ge=0)
    max_tokens: int = Field(16384, ge=1)
    too_long: Literal["drop", "cut"] = "drop"
    """What becomes of a conversation of more tokens: left out, or cut at its end. Either way they are counted."""
    hardware: Hardware = Hardware()
    checkpoint_every: int = Field(500, ge=1)
    seed: int = 1
    wandb: bool = False
    verl: dict[str, Any] = Field(default_factory=dict)


def find(name: str) -> Path:
    """A recipe by path, or by the name of one that is shipped with rstar2; a UserError where there is none."""
    shipped = recipes_folder() / f"{name}.toml"
    path = Path(name)
    if path.suffix == ".toml" and path.is_file():
        return path
    if shipped.is_file():
        return shipped
    known = ", ".join(sorted(file.stem for file in recipes_folder().glob("*.toml")))
    raise UserError(f"no recipe {name}", f"Give a .toml file or one of: {known}.")


def stage_range(text: str) -> list[int]:
    """The stages that `2` or `1..3` means; a UserError where there is no such stage, or it runs backwards."""
    first, dots, last = text.partition("..")
    numbers = [first, last if dots else first]
    if not all(number in map(str, STAGES) for number in numbers) or numbers[0] > numbers[1]:
        raise UserError(f"--stage {text}: no such stage", "Give 1, 2, 3, or a range such as 1..3.")
    return list(range(int(numbers[0]), int(numbers[1]) + 1))


def stage_recipe(
    stage: int,
    profile: str | None,
    overrides: list[str],
    recipe: str | None = None,
    over: dict[str, Any] | None = None,
    where: str | None = None,
    within: tuple[str, ...] = (),
) -> StageRecipe:
    """The recipe of an RL stage: the stage's file, on top the profile's `[stage]`, `over` and `--set`.

    A wrong file, key or value is a UserError, which names `where`, by default the stage's file, or the override. For
    `within` see `rstar2.config.resolve`.
    """
    path = find(recipe or f"stage{stage}")
    values = merged(merged(read_toml(path), _profile(profile, "stage")), over or {})
    return resolve(StageRecipe, values, overrides, where or str(path), within)


def stage_recipes(
    stages: list[int], profile: str | None, overrides: list[str], recipe: str | None = None
) -> dict[int, StageRecipe]:
    """The recipes of several stages, as `stage_recipe` makes them; `stage2.a.b=c` changes stage 2 alone.

    A UserError besides where an override names a stage that is not among them.
    """
    found = {}
    for stage in stages:
        own = []
        for override in overrides:
            named = _STAGE.match(override)
            if named and int(named[1]) not in stages:
                raise UserError(f"--set {override}: stage {named[1]} is not run", f"Stages: {stages}.")
            if named is None or int(named[1]) == stage:
                own.append(override[named.end() :] if named else override)
        found[stage] = stage_recipe(stage, profile, own, recipe)
    return found


def sft_recipe(
    profile: str | None,
    overrides: list[str],
    recipe: str | None = None,
    over: dict[str, Any] | None = None,
    where: str | None = None,
    within: tuple[str, ...] = (),
) -> SftRecipe:
    """The recipe of SFT, put together as `stage_recipe` does with the profile's `[sft]` table."""
    path = find(recipe or "sft")
    values = merged(merged(read_toml(path), _profile(profile, "sft")), over or {})
    return resolve(SftRecipe, values, overrides, where or str(path), within)


def _profile(name: str | None, table: str) -> dict[str, Any]:
    if name is None:
        return {}
    values = read_toml(find(name))
    unknown = sorted(set(values) - {"stage", "sft"})
    if unknown:
        raise UserError(f"profile {name}: unknown table {unknown[0]}", "A profile holds [stage] and [sft].")
    return dict(values.get(table, {}))
