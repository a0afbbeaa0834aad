"""Makes VERL's RL trainer save a checkpoint when enough time has passed. When a signal asks training to stop, the
trainer saves a checkpoint and stops.

VERL 0.9.1 saves a checkpoint only every `trainer.save_freq` steps. VERL's key `trainer.checkpoint_callback_class` names
the callback in this module, so only the trainer's main process imports this module. Importing this module replaces
`PPOTrainer.step`.

After the update of each step, the callback sets `save_freq`, which VERL reads immediately afterwards. To stop training,
the callback also sets the total number of steps to the number of the current step. VERL then saves a checkpoint, writes
the step's metrics, and ends as it does after a regular last step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from rstar2.train.trainer.saving import SaveTiming


class SavesInTime(CheckpointCallback):  # type: ignore[misc]
    """Decides after each step whether VERL saves a checkpoint."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._timing = SaveTiming.of_config(config.trainer)
        self._every = config.trainer.save_freq

    def step_ended(self, trainer: PPOTrainer) -> None:
        """Sets VERL's settings for saving. The callback runs after the update of a step, and VERL reads the settings
        after the callback."""
        now = self._timing.at_step_end(trainer.global_steps)
        trainer.config.trainer.save_freq = 1 if now.save else self._every
        if now.stop:
            trainer.total_training_steps = trainer.global_steps

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        self._timing.saved()


def _with_decision(step: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `PPOTrainer.step`, so that the callback decides after each step."""

    @functools.wraps(step)
    def decided(trainer: PPOTrainer, *args: Any, **kwargs: Any) -> Any:
        batch = step(trainer, *args, **kwargs)
        trainer.checkpoint_callback.step_ended(trainer)
        return batch

    return decided


PPOTrainer.step = _with_decision(PPOTrainer.step)
