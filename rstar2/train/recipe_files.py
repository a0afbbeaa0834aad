"""Puts a recipe together: the file that is shipped or given, a hardware profile on top, and what `--set` changes."""

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
"""The recipe with a file for each stage: `stage1.toml` to `stage3.toml`."""
_STAGE = re.compile(r"\s*stage(\d+)\.")
RecipeKind = Literal["stage", "sft", "demo", "profile"]


def read_recipe(name: str, kind: RecipeKind) -> tuple[Path, dict[str, Any]]:
    """The file of a recipe or a profile, named by its path or as one that is shipped, and what it holds.

    What it names as `module:object` may be in a module beside it. Raises a UserError if there is no such file, or it is
    of another kind.
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
    if (found := _kind(values)) != kind and found in ("demo", "profile"):
        is_ = "a hardware profile" if found == "profile" else "the demo's recipe"
        raise UserError(f"{name} is {is_}, not a {word} for this", hint)
    return path, values


def _kind(values: dict[str, Any]) -> RecipeKind:
    if values and values.keys() <= {"stage", "sft"}:
        return "profile"
    return "demo" if "rl" in values else "sft" if "epochs" in values else "stage"


def shipped_recipes(kind: RecipeKind) -> list[str]:
    """The names of the shipped recipes of a kind."""
    files = sorted(recipes_folder().glob("*.toml"))
    return [PAPER] * (kind == "stage") + [file.stem for file in files if _kind(read_toml(file)) == kind]


def on_top(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`merged`, but for keys that can be written in two ways: those of VERL, the selection and the curriculum.

    VERL's keys are dotted in both, so that the one on top wins however either is written. What `--set` adds to the
    dotted keys comes after them, and wins too. A selection's name alone is a table in both; the settings of another
    selection than the one on top are dropped. A curriculum likewise.
    """
    below, above = _one_way(base), _one_way(over)
    for functions in (SELECTIONS, CURRICULA):
        name = above.get(functions.key, {}).get("name")
        if name is not None and name != below.get(functions.key, {}).get("name", functions.default):
            below.pop(functions.key, None)
    return merged(below, above)


def _one_way(layer: dict[str, Any]) -> dict[str, Any]:
    """A layer of a recipe with keys that can be written in two ways written in one."""
    ways: dict[str, Any] = {}
    if isinstance(verl := layer.get("verl"), dict):
        ways["verl"] = dotted(verl)
    for key in (SELECTIONS.key, CURRICULA.key):
        if isinstance(name := layer.get(key), str):
            ways[key] = {"name": name}
    return {**layer, **ways}


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
    recipe: str = PAPER,
    over: dict[str, Any] | None = None,
    where: str | None = None,
    within: tuple[str, ...] = (),
) -> StageRecipe:
    """The recipe of an RL stage: its file, on top the profile's `[stage]`, `over` and `--set`.

    The recipe `paper` has a file for each stage, every other one for all. A wrong file, key or value is a UserError,
    which names `where`, by default the file, or the override. For `within` see `rstar2.config.resolve`.
    """
    path, values = read_recipe(f"stage{stage}" if recipe == PAPER else recipe, "stage")
    if table := next((key for key in values if _STAGE.match(f"{key}.")), ""):
        raise UserError(
            f"{path}: [{table}] is not read from a recipe, which is that of every stage",
            f"Set what differs in it with --set {table}.KEY=VALUE.",
        )
    values = on_top(on_top(values, _profile(profile, "stage")), over or {})
    return resolve(StageRecipe, values, overrides, where or str(path), within, f"stage{stage}.")


def stage_recipes(
    stages: list[int], profile: str | None, overrides: list[str], recipe: str = PAPER
) -> dict[int, StageRecipe]:
    """The recipes of several stages, as `stage_recipe` makes them; `stage2.a.b=c` changes stage 2 alone.

    A UserError besides where an override names a stage that is not among them, or a stage is to continue the optimizer
    of the one before with other settings, which VERL would not heed, or on another number of ranks, or a stage names
    another format than the one before, whose model it starts from.
    """
    found = {}
    for stage in stages:
        own = []
        for override in overrides:
            named = _STAGE.match(override)
            if named and int(named[1]) not in stages:
                raise UserError(f"--set {override}: stage {named[1]} is not run", f"Stages: {stages}.")
            if named is None or int(named[1]) == stage:
                own.append(override)
        found[stage] = stage_recipe(stage, profile, own, recipe)
    for (before, one), (after, other) in pairwise(found.items()):
        if (one.format or None) != (other.format or None):
            raise UserError(
                f"stage {after} starts from stage {before}'s model and so keeps its format, {one.format or 'its own'}: "
                f"it cannot use {other.format or 'another'}",
                "Set format for all stages, or leave it out.",
            )
        if other.optim.state == "continued":
            _check_continues(before, one, after, other)
    return found


def _check_continues(before: int, one: StageRecipe, after: int, other: StageRecipe) -> None:
    """Raise a UserError where a stage cannot continue the optimizer of the one before it."""
    fresh = f"or start stage {after} afresh with --set stage{after}.optim.state=fresh."
    for key in ("lr", "weight_decay"):
        old, new = getattr(one.optim, key), getattr(other.optim, key)
        if old != new:
            raise UserError(
                f"stage {after} continues stage {before}'s optimizer and so keeps optim.{key} = {old:g}: it cannot "
                f"use {new:g}",
                f"Set both the same, {fresh}",
            )
    if one.hardware.ranks != other.hardware.ranks:
        raise UserError(
            f"stage {after} continues stage {before}'s optimizer, which {one.hardware.ranks} ranks write "
            f"(hardware.nodes times hardware.gpus_per_node): it cannot use {other.hardware.ranks}",
            f"Set both the same, {fresh}",
        )


def sft_recipe(
    profile: str | None,
    overrides: list[str],
    recipe: str | None = None,
    over: dict[str, Any] | None = None,
    where: str | None = None,
    within: tuple[str, ...] = (),
) -> SftRecipe:
    """The recipe of SFT, put together as `stage_recipe` does with the profile's `[sft]` table."""
    path, values = read_recipe(recipe or "sft", "sft")
    values = on_top(on_top(values, _profile(profile, "sft")), over or {})
    return resolve(SftRecipe, values, overrides, where or str(path), within)


def _profile(name: str | None, table: str) -> dict[str, Any]:
    if name is None:
        return {}
    _, values = read_recipe(name, "profile")
    unknown = sorted(set(values) - {"stage", "sft"})
    if unknown:
        raise UserError(f"profile {name}: unknown table {unknown[0]}", "A profile holds [stage] and [sft].")
    return dict(values.get(table, {}))
