"""Recipes reject unknown keys and wrong values, and name the place. The shipped recipes have the paper's values."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import Field, ValidationError

from rstar2.config import Strict, merged, read_toml, recipes_folder, resolve
from rstar2.demo.recipe import demo_plan
from rstar2.errors import UserError
from rstar2.train.recipe_files import RecipeKind, read_recipe, sft_recipe, stage_recipe, stage_recipes
from rstar2.train.select import SELECTIONS


class Trainer(Strict):
    steps: int = Field(gt=0)
    lr: float = 1e-4
    name: str = "adam"


class Recipe(Strict):
    seed: int = 0
    trainer: Trainer
    stages: tuple[int, ...] = ()


VALUES: dict[str, Any] = {"seed": 3, "trainer": {"steps": 20}}


def _resolve(*overrides: str) -> Recipe:
    return resolve(Recipe, VALUES, list(overrides), "here.toml")


def test_values_become_a_recipe_that_does_not_change_later() -> None:
    held = _resolve()
    assert held == Recipe(seed=3, trainer=Trainer(steps=20))
    with pytest.raises(ValidationError):
        held.seed = 4  # type: ignore[misc]


def test_set_replaces_and_adds_values_of_every_toml_type() -> None:
    held = _resolve("seed=4", "trainer.lr = 1e-3", "trainer.name=sgd", "stages=[1, 2]", "trainer.steps=5")
    assert held == Recipe(seed=4, trainer=Trainer(steps=5, lr=1e-3, name="sgd"), stages=(1, 2))


def test_an_unknown_key_is_named_with_the_known_ones_at_its_place() -> None:
    with pytest.raises(UserError) as caught:
        _resolve("trainer.step=5")
    assert caught.value.message == (
        "--set trainer.step=5: unknown key trainer.step; did you mean trainer.steps (a whole number above 0)?"
    )
    assert caught.value.hint == "Known keys in that table: steps, lr, name."
    with pytest.raises(
        UserError, match=r"unknown key trainers; did you mean trainer\.steps \(a whole"
    ) as caught:
        _resolve("trainers.steps=5")
    assert caught.value.hint == "Known keys in that table: seed, trainer, stages."
    with pytest.raises(UserError, match=r"unknown key trainers; did you mean trainer \(a table\)\?"):
        _resolve("trainers={}")
    for typed in ("lr", "lrr"):
        with pytest.raises(UserError, match=rf"unknown key {typed}; did you mean trainer\.lr \(a number\)\?"):
            _resolve(f"{typed}=5")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.steps=many", r"trainer\.steps must be a whole number above 0, not 'many'"),
        ("trainer.steps=0", r"trainer\.steps must be a whole number above 0, not 0"),
        ("trainer.name=3", r"trainer\.name must be a text, not 3"),
        ("seed={a = 1}", "seed must be a whole number, not a table"),
        ("stages=1", "stages must be a list, not 1"),
        ("trainer.steps", "not of the form a.b=c"),
        ("=3", "not of the form a.b=c"),
        ("trainer..steps=3", "not of the form a.b=c"),
        ("seed.deep=3", "seed is a value, not a table"),
        ("trainer=3", "trainer must be a table, not 3"),
        ("trainer.steps=true", r"trainer\.steps must be a whole number above 0, not True"),
        ("trainer.lr=false", r"trainer\.lr must be a number, not False"),
        ("trainer.lr=inf", r"trainer\.lr must be a number, not inf"),
        ("trainer.lr=nan", r"trainer\.lr must be a number, not nan"),
        ("trainer.steps=null", r"trainer\.steps must be a whole number above 0, not null"),
    ],
)
def test_a_wrong_override_names_itself(override: str, message: str) -> None:
    with pytest.raises(UserError, match=f"--set {re.escape(override)}: {message}"):
        _resolve("stages=[1]", override, "seed=7" if "seed" not in override else "trainer.lr=1")


def test_a_wrong_value_of_the_file_is_the_files() -> None:
    with pytest.raises(UserError, match=r"^here\.toml: seed must be a whole number, not 'x'"):
        resolve(Recipe, {**VALUES, "seed": "x"}, ["trainer.lr=1"], "here.toml")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("rl.stepz=1", "unknown key rl.stepz; did you mean rl.steps (a whole number of at least 1)?"),
        ("steps=1", "unknown key steps; did you mean rl.steps (a whole number of at least 1)?"),
        (
            "rollout.tokns=1",
            "unknown key rollout; did you mean rl.rollout.tokens (a whole number of at least 1)?",
        ),
        ("stage2.optim.lr=fast", "stage2.optim.lr must be a number above 0, not 'fast'"),
        ("sft.epochs=0", "sft.epochs must be a whole number of at least 1, not 0"),
        (
            "rl.select=x",
            f"select must be one of {', '.join(map(repr, SELECTIONS.shipped()))}, or 'module:object', not 'x'",
        ),
        (
            "rl.groups.keep=99",
            "groups.keep = 99 is more than rollout.rollouts = 8: lower groups.keep, or raise rollout.rollouts",
        ),
        ("traces.flaws.wrong=0.9", "the shares add up to 1.53, more than 1"),
    ],
)
def test_what_was_set_in_a_table_of_the_demo_is_named_as_it_was_typed(override: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        demo_plan("demo", None, ["seed=2", override])
    assert caught.value.message == f"--set {override}: {message}"


def test_null_unsets_an_optional_key_that_a_recipe_sets() -> None:
    assert demo_plan("demo", None, []).stages[1].rounds is not None
    assert demo_plan("demo", None, ["rl.groups.round=null"]).stages[1].rounds is None


def test_the_demo_has_groups_in_rounds_and_two_passes_over_the_rollouts_of_a_step() -> None:
    for stage in demo_plan("demo", None, []).stages.values():
        assert (stage.groups.round, stage.optim.epochs) == (4, 2)
        assert stage.algorithm.loss_weights == "problems"


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UserError) as caught:
        resolve(Recipe, {"trainer": {}}, [], "here.toml")
    assert caught.value.message == "here.toml: trainer.steps is missing"


def test_resolving_and_merging_leave_the_given_values_alone() -> None:
    _resolve("trainer.steps=2")
    over = {"trainer": {"lr": 1.0}, "seed": 4}
    assert merged(VALUES, over) == {"seed": 4, "trainer": {"steps": 20, "lr": 1.0}}
    assert VALUES == {"seed": 3, "trainer": {"steps": 20}}


def test_a_missing_file_and_a_file_that_is_not_toml_are_each_one_message(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the recipe"):
        read_toml(tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("seed = = 3")
    with pytest.raises(UserError, match=r"broken\.toml is not TOML: .*line 1"):
        read_toml(broken)


def test_the_papers_recipe_is_the_default_by_name() -> None:
    assert stage_recipes([1, 2, 3], None, [], "paper") == stage_recipes([1, 2, 3], None, [])


def test_an_unknown_recipe_is_met_with_those_there_are_of_its_kind() -> None:
    known = {}
    for kind in get_args(RecipeKind):
        with pytest.raises(
            UserError, match=f"no {'profile' if kind == 'profile' else 'recipe'} nope"
        ) as caught:
            read_recipe("nope", kind)
        known[kind] = set(
            caught.value.hint.removeprefix("Give a .toml file or one of: ").rstrip(".").split(", ")
        )
    assert {"paper", "release", "stage1"} <= known["stage"]
    assert (known["sft"], known["demo"]) == ({"sft"}, {"demo"})
    assert {"laptop", "8xh100"} <= known["profile"]
    assert sorted(itertools.chain(*known.values())) == sorted(
        ["paper", *(path.stem for path in recipes_folder().glob("*.toml"))]
    )


@pytest.mark.parametrize("name", ["demo", "laptop"])
def test_what_is_no_recipe_of_a_stage_is_told_as_what_it_is(name: str) -> None:
    with pytest.raises(UserError, match=rf"{name} is .*, not a recipe for this"):
        stage_recipe(1, None, [], name)


def test_a_table_of_one_stage_is_not_read_from_a_recipe(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text((recipes_folder() / "stage1.toml").read_text() + "\n[stage2.optim]\nlr = 1e-7\n")
    with pytest.raises(UserError, match=r"cannot have a table \[stage2\]") as caught:
        stage_recipes([1, 2], None, [], str(path))
    assert "--set stage2.KEY=VALUE" in caught.value.hint


@pytest.mark.parametrize(
    ("stage", "steps", "tokens", "turns", "drop_solved"),
    [(1, 300, 8 * 1024, 10, 0), (2, 85, 12 * 1024, 10, 0), (3, 125, 12 * 1024, 15, 8)],
)
def test_the_stages_are_the_papers(stage: int, steps: int, tokens: int, turns: int, drop_solved: int) -> None:
    """The values are in arXiv 2508.20722: in its table of stages, and in its text on the optimizer."""
    recipe = stage_recipe(stage, None, [])
    assert (recipe.steps, recipe.drop_solved) == (steps, drop_solved)
    rollout = recipe.rollout
    assert (rollout.prompts, rollout.rollouts, recipe.groups.keep) == (512, 32, 16)
    assert (rollout.tokens, rollout.prompt_tokens, rollout.max_turns) == (tokens, 2048, turns)
    assert rollout.temperature == 1.0
    optim = recipe.optim
    assert (optim.lr, optim.warmup_steps, *recipe.clip) == (1e-6, 20, 0.2, 0.28)
    assert recipe.select.name == "roc"
    assert recipe.reward == "paper"


@pytest.mark.parametrize(
    "change",
    [
        *(
            "hardware.hung_after_s=inf",
            "judge.wait_s=inf",
            "groups.refill_batches=inf",
            "select.penalty_floor=inf",
        ),
        *(
            "optim.lr=inf",
            "optim.clip_high=inf",
            "rollout.temperature=nan",
            "rollout.prompts=true",
            "seed=-1",
        ),
    ],
)
def test_a_number_that_no_training_could_use_is_refused(change: str) -> None:
    """Each of these numbers would cause an endless wait, or an error after hours."""
    with pytest.raises(UserError, match=rf"--set {change}: {change.split('=')[0]} must be a (whole )?number"):
        stage_recipe(1, None, [change])


def test_an_override_reaches_one_stage_of_several_or_all() -> None:
    recipes = stage_recipes([1, 2], None, ["stage2.rollout.tokens=99", "rollout.max_turns=3"])
    assert [recipe.rollout.tokens for recipe in recipes.values()] == [8192, 99]
    assert [recipe.rollout.max_turns for recipe in recipes.values()] == [3, 3]
    with pytest.raises(UserError, match=r"--set stage3\.steps=1: stage 3 is not run"):
        stage_recipes([1, 2], None, ["stage3.steps=1"])
    with pytest.raises(
        UserError, match=r"--set stage2\.rollout\.toks=1: unknown key stage2\.rollout\.toks; did"
    ):
        stage_recipes([1, 2], None, ["stage2.rollout.toks=1"])
    with pytest.raises(UserError, match=r"--set stage2\.steps=0: stage2\.steps must be .*, not 0"):
        stage_recipes([1, 2], None, ["stage2.steps=0"])


def test_sft_is_the_papers() -> None:
    recipe = sft_recipe(None, [])
    assert (recipe.epochs, recipe.batch, recipe.lr, recipe.warmup_ratio) == (3, 128, 5e-6, 0.04)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_laptop_changes_the_machine_and_not_the_method(stage: int) -> None:
    whole, laptop = stage_recipe(stage, None, []), stage_recipe(stage, "laptop", [])
    assert laptop.hardware.device == "cpu"
    assert (laptop.select, laptop.groups) == (whole.select, whole.groups)
    assert laptop.optim == whole.optim
    assert laptop.rollout == whole.rollout
