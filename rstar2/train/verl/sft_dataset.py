"""Gives VERL's SFT trainer conversations that are encoded already, as rollouts are (`rstar2.train.conversations`).

Every rank reads the same file, which is mapped into its memory: the pages that it reads belong to the machine's file
cache and are shared by all ranks of a node.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import torch
from torch.utils.data import Dataset


class EncodedConversations(Dataset):  # type: ignore[misc]
    """Named by VERL's setting `data.custom_cls`; rows are not padded, as VERL's `data.pad_mode` is by default."""

    def __init__(self, parquet_files: str | list[str], **_: Any) -> None:
        self._files = [parquet_files] if isinstance(parquet_files, str) else list(parquet_files)
        self._open()

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """`input_ids`, `position_ids` and `loss_mask`, each of shape (T,)."""
        number = bisect_right(self._offsets, index) - 1
        batch, row = self._batches[number], index - self._offsets[number]
        ids = _integers(batch.column("input_ids")[row])
        return {
            "input_ids": ids,
            "position_ids": torch.arange(len(ids)),
            "loss_mask": _integers(batch.column("loss_mask")[row]),
        }

    def __getstate__(self) -> dict[str, Any]:
        """A process that is sent the dataset opens the files itself."""
        return {"_files": self._files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._files = state["_files"]
        self._open()

    def _open(self) -> None:
        readers = [pyarrow.ipc.open_file(pyarrow.memory_map(str(Path(file)))) for file in self._files]
        self._batches = [
            reader.get_batch(number) for reader in readers for number in range(reader.num_record_batches)
        ]
        self._offsets: list[int] = list(accumulate((batch.num_rows for batch in self._batches), initial=0))
        """Batch `i` has the rows `_offsets[i]` to `_offsets[i + 1] - 1`. The last entry is the number of all rows."""


def _integers(row: Any) -> torch.Tensor:
    """The numbers of a row, copied out of the file."""
    return torch.from_numpy(row.values.to_numpy().astype(np.int64))
