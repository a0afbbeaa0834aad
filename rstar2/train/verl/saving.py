"""Has VERL's RL trainer save when time is up, and save and end when it is asked to; works by being imported.

VERL 0.9.1 saves every `trainer.save_freq` steps only. VERL's key `trainer.checkpoint_callback_class` names the callback
here, so only the trainer's own process imports this module. At the end of each step's update the callback sets
`save_freq`, which VERL reads right after that, and for the last step the number of steps: VERL then saves, writes the
step's metrics and ends as it does after any last step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from verl.trainer.ppo.checkpoint_callback import CheckpointCallback
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from rstar2.train.trainer.saving import SaveTiming


class SavesInTime(CheckpointCallback):  # type: ignore[misc]
    """Notes when a checkpoint is saved, and decides when the next one is."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self._timing = SaveTiming.of_config(config.trainer)
        self._every = config.trainer.save_freq

    def step_ended(self, trainer: PPOTrainer) -> None:
        """Called after a step's update, before VERL decides whether it saves."""
        now = self._timing.at_step_end(trainer.global_steps)
        trainer.config.trainer.save_freq = 1 if now.save else self._every
        if now.stop:
            trainer.total_training_steps = trainer.global_steps

    def on_save(self, *args: Any, **kwargs: Any) -> None:
        self._timing.saved()


def _then_decide(step: Callable[..., Any]) -> Callable[..., Any]:
    """Stands in for `PPOTrainer.step`."""

    @functools.wraps(step)
    def decided(trainer: PPOTrainer, *args: Any, **kwargs: Any) -> Any:
        batch = step(trainer, *args, **kwargs)
        trainer.checkpoint_callback.step_ended(trainer)
        return batch

    return decided


PPOTrainer.step = _then_decide(PPOTrainer.step)
