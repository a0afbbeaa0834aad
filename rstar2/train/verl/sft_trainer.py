"""VERL's SFT trainer, which saves also when time is up, and saves and ends when it is asked to.

`python -m rstar2.train.verl.sft_trainer KEY=VALUE…` takes the keys of `verl.trainer.sft_trainer`.

VERL 0.9.1 saves every `trainer.save_freq` steps only. After each step this trainer sets the two numbers by which VERL
decides what to do next: `save_freq`, and for the last step the number of steps.
"""

from __future__ import annotations

from typing import Any

import torch.distributed
from verl.trainer import sft_trainer

from rstar2.train.trainer.saving import AtStepEnd, SaveTiming


class SftTrainer(sft_trainer.SFTTrainer):  # type: ignore[misc]
    """VERL's trainer with another decision on when to save."""

    def _build_engine(self) -> None:
        super()._build_engine()
        self._train_batch = self.training_client.train_batch
        self.training_client.train_batch = self._train_and_decide

    def _build_ckpt_handler(self) -> None:
        super()._build_ckpt_handler()
        self._every: int = self.save_freq
        self._timing = SaveTiming.of_config(self.config.trainer)
        self._save = self.ckpt_handler.save_checkpoint
        self.ckpt_handler.save_checkpoint = self._save_and_note

    def _train_and_decide(self, data: Any) -> Any:
        output = self._train_batch(data=data)
        now = self._decision()
        self.save_freq = 1 if now.save else self._every
        if now.stop:
            self.total_training_steps = 0  # fewer than there were: this step is the last
        return output

    def _decision(self) -> AtStepEnd:
        """Returns the first rank's decision: saving is a collective operation, so all ranks have to do the same."""
        decision = [self._timing.at_step_end() if self.rank == 0 else None]
        torch.distributed.broadcast_object_list(decision, src=0)
        [now] = decision
        assert now is not None
        return now

    def _save_and_note(self, step: int) -> None:
        self._save(step=step)
        self._timing.saved()


if __name__ == "__main__":
    sft_trainer.SFTTrainer = SftTrainer
    sft_trainer.main()
