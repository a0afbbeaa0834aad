"""VERL's SFT trainer, with our own rule for saving and stopping, and our own measurement of the validation loss.

`python -m rstar2.train.verl.sft_trainer KEY=VALUE…` takes the same keys as `verl.trainer.sft_trainer`.

VERL 0.9.1 saves a checkpoint only every `trainer.save_freq` steps. After each step, this trainer sets two numbers that
VERL reads next: `save_freq`, and the total number of steps if training should stop.

VERL's validation drops an incomplete last batch, so it measures nothing if all rows together do not fill one batch.
VERL averages the loss over batches. Our trainer uses every row, and its loss is the mean over all tokens that are
trained on.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from verl.trainer import sft_trainer
from verl.utils import tensordict_utils as tu

from rstar2.train.records.steps import VALIDATION_METRIC
from rstar2.train.trainer.saving import STOP_AFTER, AtStepEnd, SaveTiming


class SftTrainer(sft_trainer.SFTTrainer):  # type: ignore[misc]
    """VERL's trainer with rstar2's rule for saving checkpoints and rstar2's validation."""

    # These attributes are VERL's, which declares no types for them.
    val_dataset: Any
    test_freq: Any
    save_freq: Any
    total_training_steps: Any

    def _build_dataset(self) -> None:
        super()._build_dataset()
        self._validation = self.val_dataset
        self.val_dataset = None

    def _build_engine(self) -> None:
        super()._build_engine()
        self._train_batch = self.training_client.train_batch
        self.training_client.train_batch = self._train_and_decide

    def _init_engine(self) -> None:
        super()._init_engine()
        self._measure_every: int = self.test_freq
        self.test_freq = -1
        self._last_step: int = self.total_training_steps
        self._steps_done = 0
        """Number of steps since this process started."""

    def _build_ckpt_handler(self) -> None:
        super()._build_ckpt_handler()
        self._every: int = self.save_freq
        self._timing = SaveTiming.of_config(self.config.trainer)
        self._save = self.ckpt_handler.save_checkpoint
        self.ckpt_handler.save_checkpoint = self._save_and_note
        self._load_place = self.ckpt_handler._load_dataloader_state
        self.ckpt_handler._load_dataloader_state = self._load_place_in_epoch

    def _train_and_decide(self, data: Any) -> Any:
        output = self._train_batch(data=data)
        self._steps_done += 1
        step = self.resume_global_step + self._steps_done
        if self._is_measured(step):
            loss = self._validation_loss()
            if output is not None:
                metrics = {**tu.get(output, "metrics"), VALIDATION_METRIC: loss}
                tu.assign_non_tensor(output, metrics=metrics)
        now = self._decision(step)
        stop = now.stop or step == self.config.trainer[STOP_AFTER]
        self.save_freq = 1 if now.save or stop else self._every
        if stop:
            self.total_training_steps = 0  # fewer than have been done, so VERL ends after this step
        return output

    def _is_measured(self, step: int) -> bool:
        """Returns whether the validation loss is measured after this step.

        The loss is measured every `test_freq` steps, every `save_freq` steps, and at the last step, so that the saved
        models can be compared by their validation losses.
        """
        if not self._validation:
            return False
        at_stop = step in (self._last_step, self.config.trainer[STOP_AFTER])
        return at_stop or step % self._measure_every == 0 or step % self._every == 0

    def _validation_loss(self) -> float:
        """Measures the loss over all validation conversations, in nats per token that is trained on."""
        ranks, rank = self.engine.get_data_parallel_size(), self.engine.get_data_parallel_rank()
        together = self.train_batch_size_per_dp * ranks
        loss, tokens = 0.0, 0
        for start in range(0, len(self._validation), together):
            rows = [self._validation[at] for at in range(start, min(start + together, len(self._validation)))]
            taught = sum(int(row["loss_mask"].sum()) for row in rows)
            # Every rank needs the same number of rows. The added rows have no taught tokens, so they do not count.
            while len(rows) % ranks:
                rows.append({**rows[0], "loss_mask": torch.zeros_like(rows[0]["loss_mask"])})
            batch = tu.get_tensordict(
                tensor_dict=self.collate_fn(rows[rank::ranks]), non_tensor_dict=self._batch_settings()
            )
            output = self.training_client.infer_batch(batch)
            if self.engine.is_mp_src_rank_with_outputs():
                loss += taught * tu.get(output, "metrics")["loss"]
            tokens += taught
        return loss / tokens

    def _batch_settings(self) -> dict[str, Any]:
        """Returns the settings that VERL's `fit` adds to the tensors of a batch."""
        data = self.config.data
        return {
            "use_remove_padding": self.config.model.use_remove_padding,
            "use_dynamic_bsz": data.use_dynamic_bsz,
            "max_token_len_per_gpu": data.max_token_len_per_gpu,
            "micro_batch_size_per_gpu": data.micro_batch_size_per_gpu,
            "temperature": 1.0,
            "global_batch_size": self.global_batch_size,
            "pad_mode": data.pad_mode,
            "pad_token_id": self.model_config.tokenizer.pad_token_id,
        }

    def _decision(self, step: int) -> AtStepEnd:
        """Returns the first rank's decision after a step. Saving is a collective operation, so all ranks must decide
        the same."""
        decision = [self._timing.at_step_end(step) if self.rank == 0 else None]
        torch.distributed.broadcast_object_list(decision, src=0)
        [now] = decision
        assert now is not None
        return now

    def _load_place_in_epoch(self, checkpoint: str) -> None:
        """Restores the position within an epoch from a checkpoint.

        The position is not restored if the checkpoint was saved at the last step of an epoch. At the end of an epoch
        all batches are used up, so VERL would skip the next epoch.
        """
        if self.ckpt_handler.resume_global_step % self.steps_per_epoch:
            self._load_place(checkpoint)

    def _save_and_note(self, step: int) -> None:
        self._save(step=step)
        self._timing.saved()


if __name__ == "__main__":
    sft_trainer.SFTTrainer = SftTrainer
    sft_trainer.main()
