"""Reads a trainer's command line as VERL does, with its defaults, overrides and validation."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any


def compose_config(config: str, argv: list[str]) -> Any:
    """Return the config that VERL would get: its defaults, with the overrides of our command line.

    The overrides must set values, not groups of defaults. Hydra's own config is not part of it.
    """
    from hydra._internal.config_loader_impl import ConfigLoaderImpl

    resolved = copy.deepcopy(_defaults(config))
    overrides = [_override(word) for word in argv if not word.startswith("hydra.")]
    assert [each.key_or_group for each in overrides if "." not in str(each.key_or_group)] == []
    ConfigLoaderImpl._apply_overrides_to_config(overrides, resolved)
    return resolved


@cache
def _defaults(config: str) -> Any:
    """Return VERL's defaults. They are cached, because hydra needs nearly a second to read their thirty files."""
    import verl.trainer
    from hydra import compose, initialize_config_dir

    folder = Path(verl.trainer.__file__).parent / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return compose(config_name=config)


@cache
def _override(word: str) -> Any:
    """Parses one word of a command line. Hydra takes milliseconds per word, and command lines share most words."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(word)


def accepted(argv: list[str]) -> Any:
    """Return the config of an RL trainer after VERL has validated it. Raises what VERL raises."""
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    config = compose_config("ppo_trainer", argv)
    validate_config(config, need_reference_policy(config), need_critic(config))
    omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    omega_conf_to_dataclass(config.algorithm)
    return config
