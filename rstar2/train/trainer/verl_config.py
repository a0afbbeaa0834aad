"""Checks a recipe's keys of VERL's own config against that config, before anything is started."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rstar2.errors import UserError


def check_verl_keys(
    trainer: Literal["ppo_trainer", "sft_trainer_engine"], recipes: Iterable[list[str]]
) -> None:
    """Raise a UserError for a key or value that VERL's config does not take; of each recipe its `verl_overrides`.

    Takes half a second, as Hydra reads VERL's files without importing VERL. Where VERL is not installed, nothing is
    checked.
    """
    verl = find_spec("verl")
    wanted = {tuple(overrides) for overrides in recipes} - {()}
    if verl is None or not wanted:
        return
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException

    folders = verl.submodule_search_locations or []
    with initialize_config_dir(str(Path(folders[0]) / "trainer" / "config"), version_base=None):
        for overrides in wanted:
            try:
                compose(trainer, list(overrides))
            except HydraException as error:
                raise _refusal(error) from error


def _refusal(error: Exception) -> UserError:
    said, _, rest = str(error).partition("\n")
    _, to_append, added = rest.partition("To append to your config use ")
    hint = "Correct the key or the value in --set verl.… or in the recipe's table [verl]."
    if to_append:
        hint += f" A key that VERL reads although its config lacks it has a plus: --set verl.{added.strip()}"
    return UserError(f"VERL refuses a key: {said}", hint)
