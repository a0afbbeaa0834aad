"""What `rstar2 train` and `rstar2 sft` are asked to do, checked before a run folder is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.data.parquet import read_rows
from rstar2.errors import UserError
from rstar2.eval.settings import JudgeChoice
from rstar2.judge.queue.embedded_redis import server_binary
from rstar2.train.inputs import check_model, digest, read_conversations
from rstar2.train.recipe import SftRecipe, StageRecipe
from rstar2.train.solved import problems_of, traces_of_eval


@dataclass(frozen=True)
class TrainPlan:
    """The stages to run and what they start from."""

    recipes: dict[int, StageRecipe]
    model: Path
    data: Path
    rows: list[dict[str, Any]]
    solved: Path | None
    """The `rstar2 eval` run that counts how often the training problems are solved."""
    judge: JudgeChoice

    def config(self) -> dict[str, Any]:
        """What the run's folder keeps, so that nothing else resumes it."""
        return {
            "recipes": {
                str(number): recipe.model_dump(mode="json") for number, recipe in self.recipes.items()
            },
            "model": str(self.model.absolute()),
            "data": str(self.data.absolute()),
            "data_sha256": digest(self.data),
            "solved": str(self.solved.absolute()) if self.solved else None,
        }


@dataclass(frozen=True)
class SftPlan:
    """Conversations to fine-tune a model on."""

    recipe: SftRecipe
    model: Path
    data: Path
    conversations: list[dict[str, Any]]

    def config(self) -> dict[str, Any]:
        """What the run's folder keeps, so that nothing else resumes it."""
        return {
            "recipe": self.recipe.model_dump(mode="json"),
            "model": str(self.model.absolute()),
            "data": str(self.data.absolute()),
            "data_sha256": digest(self.data),
        }


def plan_training(
    recipes: dict[int, StageRecipe], model: Path, data: Path, solved: Path | None, judge: JudgeChoice
) -> TrainPlan:
    """Check everything that can be checked before the first stage.

    Raises:
        UserError: model, data or `solved` cannot be used, the data is too small, or no judge can be started.
    """
    check_model(model)
    rows = read_rows(data, "prompt")
    needed = max(recipe.rollout.prompts for recipe in recipes.values())
    if len(rows) < needed:
        raise UserError(
            f"{data} has {len(rows)} problems, a step needs {needed}", "Set rollout.prompts lower."
        )
    if solved is not None:
        traces_of_eval(solved)
    elif any(recipe.drop_solved for recipe in recipes.values()):
        problems_of(rows)
    if judge.url is None:
        server_binary()
        if any(recipe.hardware.nodes > 1 for recipe in recipes.values()):
            raise UserError(
                "on several nodes the judge must be reachable from all of them",
                "Start one (rstar2 judge up --host … --token …) and name it with --judge.",
            )
    return TrainPlan(recipes, model, data, rows, solved, judge)


def plan_sft(recipe: SftRecipe, model: Path, data: Path) -> SftPlan:
    """Check everything that can be checked before SFT.

    Raises:
        UserError: model or data cannot be used, or the data is less than one batch.
    """
    check_model(model)
    rows = read_conversations(data)
    if len(rows) < recipe.batch:
        raise UserError(
            f"{data} has {len(rows)} conversations, a batch needs {recipe.batch}", "Set batch lower."
        )
    return SftPlan(recipe, model, data, rows)
