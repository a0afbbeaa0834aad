"""Assembles a recipe from its TOML file, a hardware profile and the changes of `--set`. The values of the profile
replace values of the file, and the changes of `--set` replace values of both."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from rstar2.config import dotted, merged, read_toml, recipes_folder, resolve
from rstar2.errors import UserError, did_you_mean
from rstar2.plugins import search_in
from rstar2.train.curriculum import CURRICULA
from rstar2.train.recipe import STAGES, SftRecipe, StageRecipe
from rstar2.train.select import SELECTIONS

PAPER = "paper"
"""The name of the paper's recipe. The recipe `paper` has one file per stage, from `stage1.toml` to `stage3.toml`."""
_STAGE = re.compile(r"\s*stage(\d+)\.")
RecipeKind = Literal["stage", "sft", "demo", "profile"]


def read_recipe(name: str, kind: RecipeKind) -> tuple[Path, dict[str, Any]]:
    """Reads a recipe or a hardware profile. Returns the path of the file, and the values in the file.

    If the recipe is a file of the user, modules in the file's folder can be named as `module:object`.

    Args:
        name: a path to a .toml file, or the name of a shipped recipe or profile.

    Raises:
        UserError: the file does not exist, or is not of the given kind.
    """
    path, shipped = Path(name), recipes_folder() / f"{name}.toml"
    if path.suffix != ".toml" or not path.is_file():
        path = shipped
    word = "profile" if kind == "profile" else "recipe"
    hint = f"Give a .toml file or one of: {', '.join(shipped_recipes(kind))}."
    if not path.is_file():
        raise UserError(f"no {word} {name}{did_you_mean(name, shipped_recipes(kind))}", hint)
    if path != shipped:
        search_in(path.parent)
    values = read_toml(path)
    if (file_kind := _kind(values)) != kind and file_kind in ("demo", "profile"):
        description = "a hardware profile" if file_kind == "profile" else "the demo's recipe"
        raise UserError(f"{name} is {description}, not a {word} for this command", hint)
    return path, values


def _kind(values: dict[str, Any]) -> RecipeKind:
    if values and values.keys() <= {"stage", "sft"}:
        return "profile"
    return "demo" if "rl" in values else "sft" if "epochs" in values else "stage"


def shipped_recipes(kind: RecipeKind) -> list[str]:
    """Returns the names of the shipped recipes of a kind."""
    files = sorted(recipes_folder().glob("*.toml"))
    return [PAPER] * (kind == "stage") + [file.stem for file in files if _kind(read_toml(file)) == kind]


def on_top(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merges two layers of a recipe. A value of `over` replaces the value of `base`.

    Three keys can be written in two ways, and are first brought to one form:

    - `verl` can be nested or dotted. The keys of both layers are written in dotted form, so that a key that `--set`
      adds later replaces dotted keys too.
    - `select` can be a name or a table. A name is turned into a table. If `over` names another selection than `base`,
      the settings of the selection in `base` are dropped.
    - `curriculum` works in the same way as `select`.
    """
    below, above = _in_one_form(base), _in_one_form(over)
    for functions in (SELECTIONS, CURRICULA):
        name = above.get(functions.key, {}).get("name")
        if name is not None and name != below.get(functions.key, {}).get("name", functions.default):
            below.pop(functions.key, None)
    return merged(below, above)


def _in_one_form(layer: dict[str, Any]) -> dict[str, Any]:
    """Returns a layer of a recipe with dotted VERL keys, and with tables for the selection and the curriculum."""
    changed: dict[str, Any] = {}
    if isinstance(verl := layer.get("verl"), dict):
        changed["verl"] = dotted(verl)
    for key in (SELECTIONS.key, CURRICULA.key):
        if isinstance(name := layer.get(key), str):
            changed[key] = {"name": name}
    return {**layer, **changed}


def stage_range(text: str) -> list[int]:
    """Returns the stages that a text such as `2` or `1..3` names.

    Raises UserError if a stage does not exist, or if the range is descending.
    """
    first, dots, last = text.partition("..")
    numbers = [first, last if dots else first]
    if not all(number in map(str, STAGES) for number in numbers) or numbers[0] > numbers[1]:
        raise UserError(f"--stage {text}: no such stage", "Give 1, 2, 3, or a range such as 1..3.")
    return list(range(int(numbers[0]), int(numbers[1]) + 1))


def stage_recipe(
    stage: int,
    profile: str | None,
    overrides: list[str],
    recipe: str = PAPER,
    over: dict[str, Any] | None = None,
    where: str | None = None,
    within: tuple[str, ...] = (),
) -> StageRecipe:
    """Assembles the recipe of an RL stage from its file, the profile's table `[stage]`, `over` and `overrides`.

    The recipe `paper` has one file per stage. Every other recipe is one file for all stages.

    Args:
        overrides: texts of the form `a.b=c`, from `--set`.
        over: a further layer of values, between the profile and the overrides.
        where: the origin of the values, for messages. The default is the recipe's file.
        within: see `rstar2.config.resolve`.

    Raises:
        UserError: a file, key or value is wrong. The message names `where`, or the override.
    """
    path, values = read_recipe(f"stage{stage}" if recipe == PAPER else recipe, "stage")
    if table := next((key for key in values if _STAGE.match(f"{key}.")), ""):
        raise UserError(
            f"{path}: a recipe file is for all stages and cannot have a table [{table}]",
            f"Change a single stage with --set {table}.KEY=VALUE.",
        )
    values = on_top(on_top(values, _profile(profile, "stage")), over or {})
    return resolve(StageRecipe, values, overrides, where or str(path), within, f"stage{stage}.")


def stage_recipes(
    stages: list[int], profile: str | None, overrides: list[str], recipe: str = PAPER
) -> dict[int, StageRecipe]:
    """Assembles the recipes of several stages with `stage_recipe`, and checks that the stages can follow each other.

    An override of the form `stage2.a.b=c` changes stage 2 only. A stage starts from the model of the stage before, so
    both must have the same format. A stage that continues the optimizer must also have the same learning rate, weight
    decay and number of ranks, because VERL cannot change these values.

    Raises:
        UserError: an override names a stage that is not run, two stages cannot follow each other, or `stage_recipe`
            raises this error.
    """
    recipes = {}
    for stage in stages:
        stage_overrides = []
        for override in overrides:
            named = _STAGE.match(override)
            if named and int(named[1]) not in stages:
                raise UserError(f"--set {override}: stage {named[1]} is not run", f"The stages are {stages}.")
            if named is None or int(named[1]) == stage:
                stage_overrides.append(override)
        recipes[stage] = stage_recipe(stage, profile, stage_overrides, recipe)
    for (first, first_recipe), (second, second_recipe) in pairwise(recipes.items()):
        if (first_recipe.format or None) != (second_recipe.format or None):
            raise UserError(
                f"stage {second} starts from stage {first}'s model and so keeps its format, "
                f"{first_recipe.format or 'its own'}: it cannot use {second_recipe.format or 'another'}",
                "Set format for all stages, or leave it out.",
            )
        if second_recipe.optim.state == "continued":
            _check_continues(first, first_recipe, second, second_recipe)
    return recipes


def _check_continues(first: int, first_recipe: StageRecipe, second: int, second_recipe: StageRecipe) -> None:
    """Raises UserError if the second stage cannot continue the optimizer of the first stage."""
    fresh = f"or begin stage {second} with a new optimizer: --set stage{second}.optim.state=fresh."
    for key in ("lr", "weight_decay"):
        old, new = getattr(first_recipe.optim, key), getattr(second_recipe.optim, key)
        if old != new:
            raise UserError(
                f"stage {second} continues stage {first}'s optimizer and so keeps optim.{key} = {old:g}: it cannot "
                f"use {new:g}",
                f"Give both stages the same value, {fresh}",
            )
    if first_recipe.hardware.ranks != second_recipe.hardware.ranks:
        raise UserError(
            f"stage {second} continues stage {first}'s optimizer, which is saved by {first_recipe.hardware.ranks} "
            f"ranks (hardware.nodes times hardware.gpus_per_node): it cannot use {second_recipe.hardware.ranks}",
            f"Give both stages the same number, {fresh}",
        )


def sft_recipe(
    profile: str | None,
    overrides: list[str],
    recipe: str | None = None,
    over: dict[str, Any] | None = None,
    where: str | None = None,
    within: tuple[str, ...] = (),
) -> SftRecipe:
    """Assembles the recipe of SFT in the same way as `stage_recipe`, with the profile's table `[sft]`."""
    path, values = read_recipe(recipe or "sft", "sft")
    values = on_top(on_top(values, _profile(profile, "sft")), over or {})
    return resolve(SftRecipe, values, overrides, where or str(path), within)


def _profile(name: str | None, table: str) -> dict[str, Any]:
    if name is None:
        return {}
    _, values = read_recipe(name, "profile")
    unknown = sorted(set(values) - {"stage", "sft"})
    if unknown:
        raise UserError(
            f"profile {name}: unknown table {unknown[0]}", "A profile has the tables [stage] and [sft]."
        )
    return dict(values.get(table, {}))
