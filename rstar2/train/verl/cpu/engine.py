"""VERL's FSDP engine of a language model, on a CPU: other micro-batches, and memory given back between them."""

from __future__ import annotations

from typing import Any

from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp import FSDPEngineWithLMHead, transformer_impl

from rstar2.train.verl.cpu.micro_batches import padded_micro_batches
from rstar2.train.verl.cpu.platform import NAME, free_unused

transformer_impl.prepare_micro_batches = padded_micro_batches


@EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device=NAME)
class CpuTrainingEngine(FSDPEngineWithLMHead):  # type: ignore[misc]
    """VERL's engine for CUDA, which works where every tensor is on the CPU.

    VERL's value models have none: no algorithm here trains a critic.
    """

    def forward_step(self, *args: Any, **kwargs: Any) -> Any:
        """A micro-batch's loss and outputs.

        The one before had other lengths, and this one's activations would not fit the blocks that it left.
        """
        free_unused()
        return super().forward_step(*args, **kwargs)
