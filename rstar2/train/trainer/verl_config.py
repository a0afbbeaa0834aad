"""Checks a recipe's table `[verl]` against VERL's config before training starts."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rstar2.errors import UserError


def check_verl_keys(
    trainer: Literal["ppo_trainer", "sft_trainer_engine"], recipes: Iterable[list[str]]
) -> None:
    """Checks that VERL's config accepts all keys and values that recipes set. If VERL is not installed, nothing is
    checked.

    The check takes only half a second, because Hydra reads VERL's files without importing VERL.

    Args:
        trainer: the name of the config file of VERL's trainer.
        recipes: the result of `rstar2.train.command.verl_overrides` for each recipe.

    Raises:
        UserError: VERL's config rejects a key or value.
    """
    verl = find_spec("verl")
    checked = {tuple(overrides) for overrides in recipes} - {()}
    if verl is None or not checked:
        return
    from hydra import compose, initialize_config_dir
    from hydra.errors import HydraException

    folders = verl.submodule_search_locations or []
    with initialize_config_dir(str(Path(folders[0]) / "trainer" / "config"), version_base=None):
        for overrides in checked:
            try:
                compose(trainer, list(overrides))
            except HydraException as error:
                raise _user_error(error) from error


def _user_error(error: Exception) -> UserError:
    message, _, rest = str(error).partition("\n")
    _, to_append, added = rest.partition("To append to your config use ")
    hint = "Correct the key or the value in --set verl.… or in the recipe's table [verl]."
    if to_append:
        hint += f" If VERL reads a key that its config lacks, write it with a plus sign: --set verl.{added.strip()}"
    return UserError(f"VERL refuses a key: {message}", hint)
