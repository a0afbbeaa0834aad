"""Recipes refuse what they do not know, and say where."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import Field, ValidationError

from rstar2.config import Strict, load_recipe, resolve
from rstar2.errors import UserError


class Trainer(Strict):
    steps: int = Field(gt=0)
    lr: float = 1e-4
    name: str = "adam"


class Recipe(Strict):
    seed: int = 0
    trainer: Trainer
    stages: tuple[int, ...] = ()


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.toml"
    path.write_text("seed = 3\n[trainer]\nsteps = 20\n")
    return path


def test_a_recipe_is_read_and_does_not_change_later(recipe: Path) -> None:
    held = load_recipe(Recipe, recipe)
    assert held == Recipe(seed=3, trainer=Trainer(steps=20))
    with pytest.raises(ValidationError):
        held.seed = 4  # type: ignore[misc]


def test_set_replaces_and_adds_values_of_every_toml_type(recipe: Path) -> None:
    held = load_recipe(
        Recipe,
        recipe,
        ["seed=4", "trainer.lr = 1e-3", "trainer.name=sgd", "stages=[1, 2]", "trainer.steps=5"],
    )
    assert held == Recipe(seed=4, trainer=Trainer(steps=5, lr=1e-3, name="sgd"), stages=(1, 2))


def test_an_unknown_key_is_named_with_the_known_ones_at_its_place(recipe: Path) -> None:
    with pytest.raises(UserError, match=r"(?m)unknown key trainer\.step$") as caught:
        load_recipe(Recipe, recipe, ["trainer.step=5"])
    assert caught.value.hint == "Known keys there: steps, lr, name."
    assert str(recipe) in caught.value.message
    with pytest.raises(UserError, match="unknown key trainers") as caught:
        load_recipe(Recipe, recipe, ["trainers.steps=5"])
    assert caught.value.hint == "Known keys there: seed, trainer, stages."


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("trainer.steps=many", r"trainer\.steps = 'many'.*integer"),
        ("trainer.steps=0", r"trainer\.steps = 0.*greater than 0"),
        ("trainer.steps", "not of the form a.b=c"),
        ("=3", "not of the form a.b=c"),
        ("trainer..steps=3", "not of the form a.b=c"),
        ("seed.deep=3", "seed is a value, not a table"),
        ("trainer=3", r"trainer = 3"),
    ],
)
def test_a_wrong_override_names_itself(recipe: Path, override: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_recipe(Recipe, recipe, [override])


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UserError, match=r"(?m)^here: trainer\.steps is missing$"):
        resolve(Recipe, {"trainer": {}}, [], "here")


def test_resolving_leaves_the_given_values_alone() -> None:
    values = {"trainer": {"steps": 1}}
    resolve(Recipe, values, ["trainer.steps=2"], "here")
    assert values == {"trainer": {"steps": 1}}


def test_a_missing_file_and_a_file_that_is_not_toml_are_each_one_message(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read the recipe"):
        load_recipe(Recipe, tmp_path / "absent.toml")
    broken = tmp_path / "broken.toml"
    broken.write_text("seed = = 3")
    with pytest.raises(UserError, match=r"broken\.toml is not TOML: .*line 1"):
        load_recipe(Recipe, broken)
