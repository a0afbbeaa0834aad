"""Gives VERL's SFT trainer conversations that are encoded already, as rollouts are (`rstar2.train.conversations`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from rstar2.data.parquet import read_rows


class EncodedConversations(Dataset):  # type: ignore[misc]
    """Named by VERL's setting `data.custom_cls`; rows are not padded, as VERL's `data.pad_mode` is by default."""

    def __init__(self, parquet_files: str | list[str], **_: Any) -> None:
        files = [parquet_files] if isinstance(parquet_files, str) else parquet_files
        self._rows = [row for file in files for row in read_rows(Path(file), "input_ids")]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """`input_ids`, `position_ids` and `loss_mask`, each of shape (T,)."""
        row = self._rows[index]
        ids = torch.tensor(row["input_ids"])
        return {
            "input_ids": ids,
            "position_ids": torch.arange(len(ids)),
            "loss_mask": torch.tensor(row["loss_mask"]),
        }
