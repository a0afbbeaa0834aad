"""Converts a VERL checkpoint to a Hugging Face model: `python -m rstar2.train.verl.output.export CHECKPOINT MODEL`.

CHECKPOINT is the folder with the ranks' `model_world_size_…` files. The conversion uses VERL's merger, with one change:
the weights keep their precision, because the next stage starts from these weights. By default, the merger rounds the
weights to bfloat16.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from verl.model_merger.base_model_merger import ModelMergerConfig
from verl.model_merger.fsdp_model_merger import FSDPModelMerger, merge_non_dtensor_shards


class _Merger(FSDPModelMerger):  # type: ignore[misc]
    def _load_and_merge_state_dicts(
        self, world_size: int, total_shards: int, *mesh: Any
    ) -> dict[str, torch.Tensor]:
        names = [f"model_world_size_{world_size}_rank_{rank}.pt" for rank in range(total_shards)]
        folder = Path(self.config.local_dir)
        shards = [torch.load(folder / name, map_location="cpu", weights_only=False) for name in names]
        merged = {}
        for key in list(shards[0]):
            parts = [shard.pop(key) for shard in shards]
            if isinstance(parts[0], DTensor):
                # If the shards are replicated, the last placement is the one that shards.
                placement = parts[0].placements[-1]
                merged[key] = self._merge_by_placement([part._local_tensor for part in parts], placement)
            else:
                merged[key] = merge_non_dtensor_shards(key, parts)
        return merged


def export(checkpoint: Path, model: Path) -> None:
    """Writes the model of a checkpoint to the folder `model`."""
    model.mkdir(parents=True, exist_ok=True)
    config = ModelMergerConfig(
        operation="merge",
        backend="fsdp",
        local_dir=str(checkpoint),
        target_dir=str(model),
        hf_model_config_path=str(checkpoint / "huggingface"),
    )
    _Merger(config).merge_and_save()


if __name__ == "__main__":
    export(Path(sys.argv[1]), Path(sys.argv[2]))
